// Building layouts. DEFAULT is the public rule by rank: [o1 .. o(r-2), tiles of the stick dim, o0, E];
// ROW_MAJOR is [rows, tiles, E] with the rows of all outer dims in one.
#include "runtime/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace loom::rt {
namespace {

struct HostDim {
  std::int64_t size, stride;
};

/// Sizes saturate: what is beyond 63 bits is beyond every memory, and refused where memory is asked for.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

/// Geometry without size-1 dims, sorted by descending stride; one flat dim when it is not dense.
std::vector<HostDim> geometry(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                              std::int64_t elements) {
  std::vector<HostDim> dims;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1) dims.push_back({sizes[i], strides[i]});
  std::stable_sort(dims.begin(), dims.end(),
                   [](const HostDim& a, const HostDim& b) { return a.stride > b.stride; });
  std::int64_t expected = 1;
  bool dense = true;
  for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
    dense = dense && d->stride == expected;
    expected = times(expected, d->size);
  }
  if (dense && expected == elements) return dims;
  if (elements == 1) return {};
  return {{elements, 1}};
}

std::int64_t product(const Dims& d) { return std::accumulate(d.begin(), d.end(), std::int64_t{1}, times); }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Row-major element strides of device_size.
Dims device_strides(const Dims& size) {
  Dims out(size.size(), 1);
  for (std::size_t i = size.size(); i-- > 1;) out[i - 1] = times(out[i], size[i]);
  return out;
}

void finish(Layout& l) { l.bytes = times(product(l.device_size), format_bytes(l.format)); }

void build_default(Layout& l, const std::vector<HostDim>& dims) {
  const std::int64_t lanes = rt::lanes(l.format);
  const std::size_t r = dims.size();
  if (r == 0) {
    l.device_size = {1, lanes};
    l.stride_map = {-1, -1};
    return finish(l);
  }
  const HostDim stick = dims[r - 1];
  const std::int64_t tiles = ceil_div(stick.size, lanes);
  for (std::size_t i = 1; i + 1 < r; ++i) {
    l.device_size.push_back(dims[i].size);
    l.stride_map.push_back(dims[i].stride);
  }
  const std::size_t tile_dim = l.device_size.size();
  l.device_size.push_back(tiles);
  l.stride_map.push_back(times(stick.stride, lanes));
  if (r >= 2) {
    l.device_size.push_back(dims[0].size);
    l.stride_map.push_back(dims[0].stride);
  }
  l.device_size.push_back(lanes);
  l.stride_map.push_back(stick.stride);

  const Dims strides = device_strides(l.device_size);
  if (r >= 2) l.axes.push_back({dims[0].size, dims[0].stride, {{1, dims[0].size, strides[tile_dim + 1]}}});
  for (std::size_t i = 1; i + 1 < r; ++i)
    l.axes.push_back({dims[i].size, dims[i].stride, {{1, dims[i].size, strides[i - 1]}}});
  l.tile_stride = strides[tile_dim];
  l.stick_axis = static_cast<int>(l.axes.size());
  l.axes.push_back({stick.size, stick.stride, {{lanes, tiles, l.tile_stride}, {1, lanes, 1}}});
  finish(l);
}

void build_row_major(Layout& l, const std::vector<HostDim>& dims) {
  const std::int64_t lanes = rt::lanes(l.format);
  const std::size_t r = dims.size();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < r; ++i) rows = times(rows, dims[i].size);
  const std::int64_t columns = r == 0 ? 1 : dims[r - 1].size;
  const std::int64_t tiles = ceil_div(columns, lanes);
  l.device_size = {rows, tiles, lanes};
  l.stride_map = {r >= 2 ? columns : -1, r >= 1 ? lanes : -1, r >= 1 ? 1 : -1};
  l.tile_stride = lanes;
  std::int64_t stride = times(tiles, lanes);
  std::vector<AxisMap> outer;
  for (std::size_t i = r; i-- > 1;) {
    const HostDim& d = dims[i - 1];
    outer.push_back({d.size, d.stride, {{1, d.size, stride}}});
    stride = times(stride, d.size);
  }
  l.axes.assign(outer.rbegin(), outer.rend());
  if (r >= 1) {
    l.stick_axis = static_cast<int>(l.axes.size());
    l.axes.push_back({columns, 1, {{lanes, tiles, lanes}, {1, lanes, 1}}});
  }
  finish(l);
}

/// (extent, map) pairs with neighbours merged where they are one dim: equal lists mean equal bytes.
std::vector<std::pair<std::int64_t, std::int64_t>> canonical(const Layout& l) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (std::size_t i = 0; i < l.device_size.size(); ++i) {
    const std::int64_t n = l.device_size[i], s = l.stride_map[i];
    if (n == 1) continue;
    if (!out.empty() && s > 0 && out.back().second == times(s, n)) {
      out.back() = {times(out.back().first, n), s};
    } else {
      out.emplace_back(n, s);
    }
  }
  return out;
}

}  // namespace

const char* kind_name(Kind k) {
  return k == Kind::Default ? "default" : k == Kind::RowMajor ? "row_major" : "custom";
}

LayoutPtr make_layout(Kind kind, Format format, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides, std::int64_t elements) {
  auto l = std::make_shared<Layout>();
  l->kind = kind;
  l->format = format;
  l->elements = elements;
  const auto dims = elements == 0 ? std::vector<HostDim>{} : geometry(sizes, strides, elements);
  if (kind == Kind::RowMajor) {
    build_row_major(*l, dims);
  } else {
    build_default(*l, dims);
  }
  if (elements == 0) {
    l->device_size[0] = 0;
    l->bytes = 0;
  }
  return l;
}

LayoutPtr make_custom(Format format, std::span<const std::int64_t> sizes,
                      std::span<const std::int64_t> strides, const Dims& device_size,
                      const Dims& stride_map) {
  if (device_size.size() != stride_map.size() || device_size.empty())
    throw std::invalid_argument("device_size and stride_map must have the same number of dims, at least one");
  if (device_size.back() != lanes(format))
    throw std::invalid_argument("the last device dim must be a stick of " + std::to_string(lanes(format)) +
                                " elements, got " + std::to_string(device_size.back()));
  for (std::int64_t n : device_size)
    if (n < 0) throw std::invalid_argument("device_size has a negative entry: " + std::to_string(n));
  auto l = std::make_shared<Layout>();
  l->kind = Kind::Custom;
  l->format = format;
  l->device_size = device_size;
  l->stride_map = stride_map;
  l->elements = 1;
  for (std::int64_t s : sizes) l->elements = times(l->elements, s);
  const auto dims = geometry(sizes, strides, l->elements);
  const Dims device = device_strides(device_size);
  for (const HostDim& d : dims) l->axes.push_back({d.size, d.stride, {}});
  // A device dim belongs to the host dim with the largest stride that is not above its map entry; walking
  // outwards, every further dim of the same host dim is the next digit of its index.
  for (std::size_t i = device_size.size(); i-- > 0;) {
    const std::int64_t map = stride_map[i];
    if (map <= 0 || device_size[i] == 1) continue;
    auto axis =
        std::find_if(l->axes.begin(), l->axes.end(), [&](const AxisMap& a) { return a.host_stride <= map; });
    if (axis == l->axes.end() || map % axis->host_stride != 0)
      throw std::invalid_argument("stride_map entry " + std::to_string(map) + " matches no host dim");
    axis->digits.push_back({map / axis->host_stride, device_size[i], device[i]});
  }
  for (AxisMap& a : l->axes) {
    std::sort(a.digits.begin(), a.digits.end(), [](const Digit& x, const Digit& y) { return x.div < y.div; });
    std::int64_t covered = 1;
    for (const Digit& d : a.digits) {
      if (d.div != covered)
        throw std::invalid_argument("the layout does not give each host element one place");
      covered = times(covered, d.mod);
    }
    if (covered < a.size)
      throw std::invalid_argument("the layout holds " + std::to_string(covered) + " of " +
                                  std::to_string(a.size) + " elements of a host dim");
    std::reverse(a.digits.begin(), a.digits.end());
  }
  finish(*l);
  for (std::size_t j = 0; j < l->axes.size() && l->regular; ++j) {
    const std::vector<Digit>& digits = l->axes[j].digits;
    if (digits.size() == 1 && digits[0].stride != 1) continue;
    const std::int64_t lanes = rt::lanes(format);
    const bool stick = digits.back().stride == 1 && digits.back().mod == lanes &&
                       (digits.size() == 1 || (digits.size() == 2 && digits[0].div == lanes));
    l->regular = stick && l->stick_axis < 0;
    l->stick_axis = static_cast<int>(j);
    l->tile_stride = digits.size() == 2 ? digits[0].stride : 0;
  }
  return l;
}

bool same_bytes(const Layout& a, const Layout& b) {
  return a.format == b.format && a.bytes == b.bytes && canonical(a) == canonical(b);
}

}  // namespace loom::rt
