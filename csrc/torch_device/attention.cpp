// Attention on this device is one operator: torch's dispatcher is told to keep it whole, so that the compiler
// sees it as such. Eager mode computes it by its definition.
#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

namespace at::native {
namespace {

/// The whole operator has no gradient; what is to be differentiated is taken apart.
int64_t choose_backend(const Tensor& query, const Tensor& key, const Tensor& value,
                       const std::optional<Tensor>&, double, bool, std::optional<double>, bool) {
  const bool differentiated =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return static_cast<int64_t>(differentiated ? sdp::SDPBackend::math : sdp::SDPBackend::overrideable);
}

}  // namespace

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_backend)

}  // namespace at::native

namespace loom::dev {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias,
    double dropout, bool causal, bool debug_mask, std::optional<double> scale) {
  TORCH_CHECK(!debug_mask,
              "Spyre backend does not support: scaled_dot_product_attention with return_debug_mask");
  auto [out, weights] = at::_scaled_dot_product_attention_math(query, key, value, bias, dropout, causal,
                                                               std::nullopt, scale, false);
  const auto none = at::empty({0}, query.options());
  const auto log_sum =
      at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat));
  const auto seed = at::empty({}, at::TensorOptions().dtype(at::kLong));
  return {out, log_sum, Tensor(), Tensor(), query.sym_size(2), key.sym_size(2), seed, seed, none};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
}

}  // namespace loom::dev
