// Operators that change several arguments, or whose results depend on data in size, made of operators that
// the recorder compiles.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <array>
#include <vector>

#include "torch_device/eager.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

using eager::recorded;

// ---- batch norm: the functional form also returns the new running statistics ----

std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const OptTensor& weight, const OptTensor& bias,
                                              const OptTensor& mean, const OptTensor& variance, bool training,
                                              double momentum, double eps) {
  const bool running = mean.has_value() && mean->defined();
  torch::jit::Stack out;
  if (!training) {
    TORCH_CHECK(running, "Expected running_mean and running_var to be defined when training=False");
    out = recorded("aten::_native_batch_norm_legit_no_training", "",
                   {x, weight, bias, *mean, *variance, momentum, eps});
  } else if (!running) {
    out = recorded("aten::_native_batch_norm_legit", "no_stats", {x, weight, bias, true, momentum, eps});
  } else {
    out = recorded("aten::_native_batch_norm_legit_functional", "",
                   {x, weight, bias, *mean, *variance, true, momentum, eps});
    mean->copy_(out[3].toTensor());
    variance->copy_(out[4].toTensor());
  }
  return {out[0].toTensor(), out[1].toTensor(), out[2].toTensor()};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_legit(const Tensor& x, const OptTensor& weight,
                                                    const OptTensor& bias, Tensor& mean, Tensor& variance,
                                                    bool training, double momentum, double eps) {
  return batch_norm(x, weight, bias, mean, variance, training, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_with_update(const Tensor& x, const OptTensor& weight,
                                                                  const OptTensor& bias, Tensor& mean,
                                                                  Tensor& variance, double momentum,
                                                                  double eps) {
  auto [out, save_mean, save_scale] = batch_norm(x, weight, bias, mean, variance, true, momentum, eps);
  return {out, save_mean, save_scale, at::empty({0}, x.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& grad, const Tensor& x,
                                                       const Tensor& weight, const OptTensor& mean,
                                                       const OptTensor& variance, const OptTensor& save_mean,
                                                       const OptTensor& save_scale, bool training, double eps,
                                                       std::array<bool, 3> wanted, const Tensor&) {
  return at::native_batch_norm_backward(grad, x, weight, mean, variance, save_mean, save_scale, training, eps,
                                        wanted);
}

// ---- matrices that are written whole ----

Tensor& eye_rectangle_out(c10::SymInt rows, c10::SymInt columns, Tensor& out) {
  const std::int64_t n = rows.expect_int(), m = columns.expect_int();
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m}).zero_();
  out.diagonal().fill_(1);
  return out;
}
Tensor& eye_out(c10::SymInt n, Tensor& out) { return eye_rectangle_out(n, n, out); }

/// Zeros of a gradient that nobody computed; here as plain zeros.
Tensor zeros_for_gradient(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout> layout, std::optional<at::Device> device,
                          std::optional<bool> pinned) {
  return at::zeros(C10_AS_INTARRAYREF_SLOW(size), dtype, layout, device, pinned);
}

// ---- exponential of matrices ----

constexpr int kTerms = 12;      // 0.5^13 / 13! is far below the last bit of a float32
constexpr int kSquarings = 16;  // for norms up to 2^15

/// Taylor series of x / 2^s, squared s times; s follows from the 1-norm of each matrix (scaling and squaring,
/// Moler and Van Loan 2003).
Tensor scaled_and_squared(const Tensor& x) {
  if (x.numel() == 0) return x.clone();
  const Tensor wide = x.to(at::kFloat);
  const Tensor norm = wide.abs().sum({-2}, true).amax({-1}, true);
  const Tensor times = norm.log2().add(1).ceil().clamp(0, kSquarings);
  const Tensor scaled = wide * at::exp2(-times);
  const Tensor one = at::eye(x.size(-1), wide.options()).expand(wide.sizes());
  Tensor out = one;
  for (int k = kTerms; k > 0; --k) out = one + at::matmul(scaled, out) * (1.0 / k);
  const double most = times.max().item().toDouble();
  for (int k = 0; k < most; ++k) out = at::where(times > k, at::matmul(out, out), out);
  return out.to(x.scalar_type());
}
Tensor& matrix_exp_out(const Tensor& x, Tensor& out) { return write_out(out, scaled_and_squared(x)); }

// ---- scans that PyTorch wants written into two tensors ----

void scan_extremes(const char* name, const Tensor& x, Tensor& values, Tensor& places, std::int64_t dim) {
  const torch::jit::Stack out = recorded(name, "", {x, dim});
  values.copy_(out[0].toTensor());
  places.copy_(out[1].toTensor());
}
void running_maximum(const Tensor& x, Tensor& values, Tensor& places, std::int64_t dim) {
  scan_extremes("aten::cummax", x, values, places, dim);
}
void running_minimum(const Tensor& x, Tensor& values, Tensor& places, std::int64_t dim) {
  scan_extremes("aten::cummin", x, values, places, dim);
}

// ---- indexing: masks become places, places on the host come to the device ----

std::vector<OptTensor> places(const Tensor& x, const c10::List<OptTensor>& indices) {
  std::vector<OptTensor> out;
  for (const OptTensor& given : indices) {
    if (!given.has_value() || !given->defined()) {
      out.emplace_back();
      continue;
    }
    TORCH_CHECK(given->is_cpu() || given->device() == x.device(),
                "indices should be either on cpu or on the same device as the indexed tensor (", x.device(),
                "), not on ", given->device());
    const Tensor index = given->to(x.device());
    if (index.scalar_type() != at::kBool && index.scalar_type() != at::kByte) {
      out.emplace_back(index);
      continue;
    }
    const auto first = static_cast<std::int64_t>(out.size());
    for (std::int64_t d = 0; d < index.dim(); ++d)
      TORCH_CHECK_INDEX(first + d < x.dim() && index.size(d) == x.size(first + d), "The shape of the mask ",
                        index.sizes(), " at index ", d, " does not match the shape of the indexed tensor ",
                        x.sizes(), " at index ", first + d);
    const Tensor found = at::nonzero(index);
    for (std::int64_t d = 0; d < index.dim(); ++d) out.emplace_back(found.select(1, d));
  }
  return out;
}

c10::IValue listed(const std::vector<OptTensor>& tensors) {
  c10::List<OptTensor> out;
  for (const OptTensor& t : tensors) out.push_back(t);
  return out;
}

/// Elements at plain places. PyTorch marks `index` itself as one whose size depends on data, for the sake of
/// masks.
Tensor elements(const Tensor& x, const c10::List<OptTensor>& indices) {
  return recorded("aten::_unsafe_index", "Tensor", {x, listed(places(x, indices))})[0].toTensor();
}
Tensor& index_out(const Tensor& x, const c10::List<OptTensor>& indices, Tensor& out) {
  return write_out(out, elements(x, indices));
}

Tensor& index_put_impl(Tensor& x, const c10::List<OptTensor>& indices, const Tensor& values, bool accumulate,
                       bool unsafe) {
  recorded("aten::index_put_", "", {x, listed(places(x, indices)), values.to(x.device()), accumulate});
  return x;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", &batch_norm);
  m.impl("_native_batch_norm_legit", &batch_norm_legit);
  m.impl("_batch_norm_with_update", &batch_norm_with_update);
  m.impl("batch_norm_backward", &batch_norm_backward);
  m.impl("linalg_matrix_exp", &scaled_and_squared);
  m.impl("linalg_matrix_exp.out", &matrix_exp_out);
  m.impl("eye.out", &eye_out);
  m.impl("eye.m_out", &eye_rectangle_out);
  m.impl("_efficientzerotensor", &zeros_for_gradient);
  m.impl("_cummax_helper", &running_maximum);
  m.impl("_cummin_helper", &running_minimum);
  m.impl("index.Tensor", &elements);
  m.impl("index.Tensor_out", &index_out);
  m.impl("_index_put_impl_", &index_put_impl);
}

}  // namespace
}  // namespace loom::dev
