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

// ---- cells of recurrent networks: PyTorch takes them for fused kernels on every device but the host ----

void check_cell(const Tensor& input, const Tensor& hidden, const Tensor& before, const OptTensor& input_bias,
                const OptTensor& hidden_bias, std::int64_t gates) {
  TORCH_CHECK(input.dim() == 2 && input.sizes() == hidden.sizes(), "gates of a recurrent cell must be two ",
              "matrices of the same sizes, got ", input.sizes(), " and ", hidden.sizes());
  TORCH_CHECK(before.dim() == 2 && before.size(0) == input.size(0) && before.size(1) * gates == input.size(1),
              "the state of a recurrent cell has sizes ", before.sizes(),
              ", which do not fit gates of sizes ", input.sizes());
  for (const OptTensor& bias : {input_bias, hidden_bias})
    TORCH_CHECK(!bias.has_value() || !bias->defined() || bias->sizes() == input.sizes().slice(1),
                "a bias of a recurrent cell must have ", input.size(1), " elements, got sizes ",
                bias.has_value() && bias->defined() ? bias->sizes() : c10::IntArrayRef());
}

Tensor biased(const Tensor& gates, const OptTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

/// The third result is what the backward pass needs: the gates after their functions.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const OptTensor& input_bias,
                                             const OptTensor& hidden_bias) {
  check_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, 4);
  const Tensor gates = biased(input_gates, input_bias) + biased(hidden_gates, hidden_bias);
  const auto part = gates.chunk(4, 1);
  const Tensor in = part[0].sigmoid(), forget = part[1].sigmoid(), cell = part[2].tanh();
  const Tensor out = part[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptTensor& grad_hy, const OptTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const bool of_h = grad_hy.has_value() && grad_hy->defined();
  const bool of_c = grad_cy.has_value() && grad_cy->defined();
  if (!of_h && !of_c) return {};
  const auto part = workspace.chunk(4, 1);
  const Tensor &in = part[0], &forget = part[1], &cell = part[2], &out = part[3];
  const Tensor bent = cy.tanh();
  Tensor grad_out = at::zeros_like(cy), grad_cell_state;
  if (of_h) {
    grad_out = at::sigmoid_backward(*grad_hy * bent, out);
    grad_cell_state = at::tanh_backward(*grad_hy * out, bent);
  }
  if (of_c) grad_cell_state = of_h ? grad_cell_state + *grad_cy : *grad_cy;
  const Tensor grad_gates = at::cat(
      {at::sigmoid_backward(grad_cell_state * cell, in), at::sigmoid_backward(grad_cell_state * cx, forget),
       at::tanh_backward(grad_cell_state * in, cell), grad_out},
      1);
  return {grad_gates, grad_cell_state * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

/// The second result is what the backward pass needs: the gates after their functions, the state before, and
/// what the reset gate weights.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const OptTensor& input_bias, const OptTensor& hidden_bias) {
  check_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, 3);
  const auto input = biased(input_gates, input_bias).chunk(3, 1);
  const auto hidden = biased(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid(), keep = (input[1] + hidden[1]).sigmoid();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + keep * (hx - fresh), at::cat({reset, keep, fresh, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto part = workspace.chunk(5, 1);
  const Tensor &reset = part[0], &keep = part[1], &fresh = part[2], &hx = part[3], &weighted = part[4];
  const Tensor grad_hx = grad_hy * keep;
  const Tensor grad_keep = at::sigmoid_backward(grad_hy * (hx - fresh), keep);
  const Tensor grad_fresh = at::tanh_backward(grad_hy - grad_hx, fresh);
  const Tensor grad_reset = at::sigmoid_backward(grad_fresh * weighted, reset);
  const Tensor of_input = at::cat({grad_reset, grad_keep, grad_fresh}, 1);
  const Tensor of_hidden = at::cat({grad_reset, grad_keep, grad_fresh * reset}, 1);
  return {of_input, of_hidden, grad_hx, has_bias ? of_input.sum(0) : Tensor(),
          has_bias ? of_hidden.sum(0) : Tensor()};
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
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace loom::dev
