// Operators whose result has a size that depends on data: the size is counted on the device and read once,
// the rest is made of operators that the recorder compiles.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "torch_device/eager.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using at::Tensor;
using eager::recorded;
template <typename T>
using Opt = std::optional<T>;

std::int64_t read(const Tensor& one) { return one.item().toLong(); }

Tensor coordinates(const Tensor& x) {
  if (x.numel() == 0) return at::empty({0, x.dim()}, x.options().dtype(at::kLong));
  const std::int64_t count = read(at::ne(x, 0).sum());
  if (count == 0 || x.dim() == 0) return at::empty({count, x.dim()}, x.options().dtype(at::kLong));
  return recorded("aten::nonzero_static", "", {x, count, -1})[0].toTensor();
}

/// Coordinates of the first `size` elements that are not zero, or `fill` where there are none.
Tensor first_coordinates(const Tensor& x, c10::SymInt size, std::int64_t fill) {
  const std::int64_t count = size.expect_int();
  TORCH_CHECK(count >= 0, "nonzero_static: 'size' must be a non-negative integer, got ", count);
  if (count == 0 || x.dim() == 0 || x.numel() == 0)
    return at::full({count, x.dim()}, fill, x.options().dtype(at::kLong));
  return recorded("aten::nonzero_static", "", {x, count, fill})[0].toTensor();
}
Tensor& nonzero_static_out(const Tensor& x, c10::SymInt size, std::int64_t fill, Tensor& out) {
  return write_out(out, first_coordinates(x, size, fill));
}
Tensor& nonzero_out(const Tensor& x, Tensor& out) { return write_out(out, coordinates(x)); }

/// Places of the true elements of a vector.
Tensor places(const Tensor& flags) { return coordinates(flags).squeeze(1); }

Tensor under_mask(const Tensor& x, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto both = at::broadcast_tensors({x, mask.to(x.device())});
  return both[0].reshape(-1).index_select(0, places(both[1].reshape(-1)));
}
Tensor& masked_select_out(const Tensor& x, const Tensor& mask, Tensor& out) {
  return write_out(out, under_mask(x, mask));
}

bool same(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.device() == b.device(), "Cannot compare two tensors on different devices. Got: ", a.device(),
              " and ", b.device());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of data type ", a.scalar_type(),
              " but got data type ", b.scalar_type(), " for argument #2 'other' in call to equal");
  if (a.sizes() != b.sizes()) return false;
  return a.numel() == 0 || at::eq(a, b).all().item().toBool();
}

// ---- runs of equal neighbours ----

/// Where a row of dim 0 differs from the one before it; the first does.
Tensor begins(const Tensor& rows) {
  const std::int64_t n = rows.size(0);
  Tensor differ = at::ne(rows.narrow(0, 1, n - 1), rows.narrow(0, 0, n - 1));
  if (differ.dim() > 1) differ = differ.reshape({n - 1, -1}).any(1);
  return at::cat({at::ones({1}, differ.options()), differ});
}

/// Values, inverse and counts of runs along dim 0 of rows that are not empty.
std::tuple<Tensor, Tensor, Tensor> runs(const Tensor& rows, bool inverse, bool counts) {
  const Tensor first = begins(rows), starts = places(first);
  const Tensor none = at::empty({0}, starts.options());
  const Tensor ends =
      at::cat({starts.narrow(0, 1, starts.size(0) - 1), at::full({1}, rows.size(0), starts.options())});
  return {rows.index_select(0, starts), inverse ? first.cumsum(0).sub_(1) : none,
          counts ? ends.sub(starts) : none};
}

std::tuple<Tensor, Tensor, Tensor> unique2(const Tensor& x, bool, bool inverse, bool counts) {
  const Tensor none = at::empty({0}, x.options().dtype(at::kLong));
  if (x.numel() == 0) return {at::empty({0}, x.options()), at::empty(x.sizes(), none.options()), none};
  const auto [values, order] = x.reshape(-1).sort();
  auto [kept, back, count] = runs(values, inverse, counts);
  if (inverse) back = at::zeros_like(back).scatter(0, order, back).reshape(x.sizes());
  return {kept, back, count};
}
std::tuple<Tensor, Tensor> unique(const Tensor& x, bool sorted, bool inverse) {
  auto [kept, back, count] = unique2(x, sorted, inverse, false);
  return {kept, back};
}

std::tuple<Tensor, Tensor, Tensor> distinct_runs(const Tensor& x, bool inverse, bool counts,
                                                 Opt<std::int64_t> dim) {
  const Tensor none = at::empty({0}, x.options().dtype(at::kLong));
  if (!dim.has_value()) {
    if (x.numel() == 0) return {at::empty({0}, x.options()), at::empty(x.sizes(), none.options()), none};
    auto [kept, back, count] = runs(x.reshape(-1), inverse, counts);
    return {kept, inverse ? back.reshape(x.sizes()) : back, count};
  }
  TORCH_CHECK(x.numel() > 0,
              "Spyre backend does not support: unique_consecutive of a tensor without elements along a dim");
  auto [kept, back, count] = runs(x.movedim(*dim, 0).contiguous(), inverse, counts);
  return {kept.movedim(0, *dim).contiguous(), back, count};
}

// ---- counts ----

Tensor count_values(const Tensor& x, const Opt<Tensor>& weights, std::int64_t least) {
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  TORCH_CHECK(x.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  const bool weighted = weights.has_value() && weights->defined();
  const auto options = x.options().dtype(weighted ? weights->scalar_type() : at::kLong);
  if (x.numel() == 0) return at::zeros({least}, options);
  TORCH_CHECK(read(x.min()) >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const Tensor sums = at::zeros({std::max(read(x.max()) + 1, least)}, options);
  const Tensor index = x.to(at::kLong);
  return sums.index_add(0, index, weighted ? *weights : at::ones_like(index));
}

Tensor repeated_places(const Tensor& repeats, Opt<std::int64_t> size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  const auto options = repeats.options();
  if (repeats.numel() == 0) return at::empty_like(repeats);
  const Tensor ends = repeats.cumsum(0);
  TORCH_CHECK(read(repeats.min()) >= 0, "repeats can not be negative");
  const std::int64_t total = size.has_value() ? *size : read(ends.select(0, -1));
  if (total == 0) return at::empty({0}, options);
  return at::searchsorted(ends, at::arange(total, options), false, true).to(repeats.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &coordinates);
  m.impl("nonzero.out", &nonzero_out);
  m.impl("nonzero_static", &first_coordinates);
  m.impl("nonzero_static.out", &nonzero_static_out);
  m.impl("masked_select", &under_mask);
  m.impl("masked_select.out", &masked_select_out);
  m.impl("equal", &same);
  m.impl("_unique2", &unique2);
  m.impl("_unique", &unique);
  m.impl("unique_consecutive", &distinct_runs);
  m.impl("bincount", &count_values);
  m.impl("repeat_interleave.Tensor", &repeated_places);
}

}  // namespace
}  // namespace loom::dev
