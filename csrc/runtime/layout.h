// How a storage's elements lie in device memory.
//
// A storage has a host geometry (the sizes and strides of its allocation, size-1 dims dropped, sorted by
// descending stride) and a layout: device_size and stride_map as in the public stick layouts. Everything
// else asks only one question, "at which device element is host element h?", which AxisMap answers per
// geometry dim. Because the layout depends on the geometry alone, any tensor that covers its storage
// exactly determines its layout from its own sizes and strides.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/types.h"

namespace loom::rt {

using Dims = std::vector<std::int64_t>;

enum class Kind : std::uint8_t { Default, RowMajor, Custom };
const char* kind_name(Kind);

/// One term of a coordinate: ((index / div) % mod) * stride device elements.
struct Digit {
  std::int64_t div, mod, stride;
};

/// One dim of the host geometry and where its index goes.
struct AxisMap {
  std::int64_t size, host_stride;
  std::vector<Digit> digits;
};

struct Layout {
  Kind kind = Kind::Default;
  Format format = Format::DF16;
  Dims device_size, stride_map;
  std::vector<AxisMap> axes;  // descending host stride
  std::int64_t elements = 0;  // host elements covered
  std::int64_t bytes = 0;     // on the device, whole sticks
  /// All axes but the stick's have one digit and the stick's has (tile, lane): what the fast transfer
  /// understands.
  bool regular = true;
  int stick_axis = -1;           // axis that fills the sticks, -1 when there is none
  std::int64_t tile_stride = 0;  // device elements from a stick of that axis to the next

  /// Device element of host element `h` (relative to the start of the storage).
  std::int64_t at(std::int64_t h) const {
    std::int64_t out = 0;
    for (const AxisMap& a : axes) {
      const std::int64_t index = h / a.host_stride % a.size;
      for (const Digit& d : a.digits) out += index / d.div % d.mod * d.stride;
    }
    return out;
  }
};

using LayoutPtr = std::shared_ptr<const Layout>;

/// Layout of an allocation of `elements` host elements with this geometry. A geometry with holes or
/// overlaps is taken as one dim of `elements`.
LayoutPtr make_layout(Kind kind, Format format, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides, std::int64_t elements);

/// Raw layout from public fields; throws std::invalid_argument when some host element has no place or
/// shares one.
LayoutPtr make_custom(Format format, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides, const Dims& device_size, const Dims& stride_map);

/// True when both put every host element at the same device element.
bool same_bytes(const Layout& a, const Layout& b);

}  // namespace loom::rt
