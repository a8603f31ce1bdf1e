// Moves the elements of one strided view to another: host or device on either side, any layouts, any
// bit patterns. Knows nothing of tensors, streams or allocation.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "runtime/layout.h"

namespace loom::rt {

/// One side of a transfer. `strides` and `offset` count host elements, as in a tensor; on the host side
/// they address `base` directly, on the device side they go through the layout.
struct Side {
  std::uint8_t* base = nullptr;
  const Layout* layout = nullptr;  // null: host memory
  Phys phys = Phys::F32;
  Dims strides;
  std::int64_t offset = 0;
};

/// An integer that the destination cannot hold.
struct ValueError : std::range_error {
  explicit ValueError(std::int64_t value)
      : std::range_error("value " + std::to_string(value) + " does not fit"), value(value) {}
  std::int64_t value;
};

/// dst[i] = convert(src[i]) for every index of `sizes`. The sides must not overlap. Padding of device
/// layouts is not written. Large transfers use up to `threads` host threads. Throws ValueError; the
/// destination is then partly written.
void transfer(const Dims& sizes, const Side& dst, const Side& src, int threads = 1);

}  // namespace loom::rt
