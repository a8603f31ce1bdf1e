// Random operators: fills are drawn on the host from the card's generator, so that seeds mean what they mean
// there; what depends on values of the device is computed from such fills on the device.
#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <limits>
#include <string>

#include "torch_device/backend.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using at::Tensor;
template <typename T>
using Opt = std::optional<T>;
using Gen = Opt<at::Generator>;

// ---- fills ----

template <typename Draw>
Tensor& random_fill(Tensor& self, const Gen& g, Draw draw) {
  const at::Generator generator = host_generator(g, self.device());
  if (self.numel() == 0) return self;
  Tensor host = at::empty(self.sizes(), self.options().device(at::kCPU));
  draw(host, generator);
  copy_private(self, host);
  return self;
}
Tensor& normal_(Tensor& self, double mean, double std, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.normal_(mean, std, cpu); });
}
Tensor& uniform_(Tensor& self, double from, double to, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.uniform_(from, to, cpu); });
}
Tensor& random_(Tensor& self, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) {
    t.random_(cpu);
    // The same draws as on the CPU, so that what follows stays in step; an int64 keeps the bits it can.
    if (t.scalar_type() == at::kLong) t.bitwise_and_(std::numeric_limits<std::int32_t>::max());
  });
}

/// Bounds of a draw [from, to) of int64 must be values that the device can hold.
void check_draw(const Tensor& self, std::int64_t from, Opt<std::int64_t> to) {
  using Limits = std::numeric_limits<std::int32_t>;
  if (self.scalar_type() != at::kLong || (to.has_value() && *to <= from)) return;
  TORCH_CHECK(from >= Limits::min() && to.has_value() && *to - 1 <= Limits::max(),
              "Spyre backend does not support: random_ of torch.int64 in [", from, ", ",
              to.has_value() ? std::to_string(*to) : "2**63",
              "); the device holds it as 32-bit integers, draw in [", Limits::min(), ", 2**31)");
}

Tensor& random_from(Tensor& self, std::int64_t from, Opt<std::int64_t> to, Gen g) {
  check_draw(self, from, to);
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.random_(from, to, cpu); });
}
Tensor& random_to(Tensor& self, std::int64_t to, Gen g) {
  check_draw(self, 0, to);
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.random_(to, cpu); });
}

Tensor& bernoulli_number(Tensor& self, double p, Gen g) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.bernoulli_(p, cpu); });
}
Tensor& exponential_(Tensor& self, double rate, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.exponential_(rate, cpu); });
}
Tensor& geometric_(Tensor& self, double p, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.geometric_(p, cpu); });
}
Tensor& cauchy_(Tensor& self, double median, double sigma, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.cauchy_(median, sigma, cpu); });
}
Tensor& log_normal_(Tensor& self, double mean, double std, Gen g) {
  return random_fill(self, g, [&](Tensor& t, const at::Generator& cpu) { t.log_normal_(mean, std, cpu); });
}
Tensor& randperm_out(std::int64_t n, Gen g, Tensor& out) {
  at::native::resize_output(out, {n});
  return random_fill(out, g, [&](Tensor& t, const at::Generator& cpu) { at::randperm_out(t, n, cpu); });
}

// ---- computed from fills ----

Tensor uniform_like(const Tensor& self) { return at::empty(self.sizes(), self.options().dtype(at::kFloat)); }

Tensor& bernoulli_tensor(Tensor& self, const Tensor& p, Gen g) {
  return self.copy_(at::lt(uniform_like(self).uniform_(0, 1, g), p.to(self.device())));
}
Tensor& bernoulli_out(const Tensor& p, Gen g, Tensor& out) {
  at::native::resize_output(out, p.sizes());
  return bernoulli_tensor(out, p, g);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, Opt<bool> train) {
  if (x.numel() == 0) return {x.clone(), at::empty_like(x, x.options().dtype(at::kBool))};
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  Tensor out = at::mul(x, mask).mul_(p < 1 ? 1 / (1 - p) : 0.0);
  return {std::move(out), std::move(mask)};
}

void check_std(double std) { TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std); }
Tensor normal_tensor_float(const Tensor& mean, double std, Gen g) {
  check_std(std);
  return at::empty_like(mean).normal_(0, std, g).add_(mean);
}
Tensor normal_float_tensor(double mean, const Tensor& std, Gen g) {
  return at::empty_like(std).normal_(0, 1, g).mul_(std).add_(mean);
}
Tensor normal_tensor_tensor(const Tensor& mean, const Tensor& std, Gen g) {
  const auto shape = at::infer_size_dimvector(mean.sizes(), std.sizes());
  return at::empty(shape, mean.options()).normal_(0, 1, g).mul_(std).add_(mean);
}

Tensor& normal_tensor_float_out(const Tensor& mean, double std, Gen g, Tensor& out) {
  return write_out(out, normal_tensor_float(mean, std, g));
}
Tensor& normal_float_tensor_out(double mean, const Tensor& std, Gen g, Tensor& out) {
  return write_out(out, normal_float_tensor(mean, std, g));
}
Tensor& normal_tensor_tensor_out(const Tensor& mean, const Tensor& std, Gen g, Tensor& out) {
  return write_out(out, normal_tensor_tensor(mean, std, g));
}

/// Places of the last dim with probabilities in proportion to p. Without replacement: the largest of p
/// divided by exponential variables; with it: where uniform variables fall in the running sum.
Tensor draw_places(const Tensor& p, std::int64_t count, bool replacement, Gen g) {
  TORCH_CHECK(p.dim() == 1 || p.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(p.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", p.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || count <= p.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  const Tensor weights = p.to(at::kFloat);
  if (!replacement) return std::get<1>(at::topk(weights.div(uniform_like(p).exponential_(1, g)), count, -1));
  const Tensor edges = weights.cumsum(-1);
  auto shape = p.sizes().vec();
  shape.back() = count;
  const Tensor draws =
      at::empty(shape, weights.options()).uniform_(0, 1, g).mul_(edges.narrow(-1, p.size(-1) - 1, 1));
  return at::searchsorted(edges, draws, false, true).clamp_max(p.size(-1) - 1);
}
Tensor& multinomial_out(const Tensor& p, std::int64_t count, bool replacement, Gen g, Tensor& out) {
  return write_out(out, draw_places(p, count, replacement, g));
}

Tensor rrelu(const Tensor& x, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper, bool training,
             Gen g) {
  if (!training) return at::leaky_relu(x, (lower.toDouble() + upper.toDouble()) / 2);
  const Tensor slopes = at::empty_like(x).uniform_(lower.toDouble(), upper.toDouble(), g);
  noise.copy_(at::where(x.le(0), slopes, at::scalar_tensor(1, slopes.options().device(at::kCPU))));
  return at::mul(x, noise);
}
Tensor& rrelu_(Tensor& x, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper, bool training,
               Gen g) {
  return x.copy_(rrelu(x, noise, lower, upper, training, g));
}
Tensor& rrelu_out(const Tensor& x, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
                  bool training, Gen g, Tensor& out) {
  return write_out(out, rrelu(x, noise, lower, upper, training, g));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("normal_", &normal_);
  m.impl("uniform_", &uniform_);
  m.impl("random_", &random_);
  m.impl("random_.from", &random_from);
  m.impl("random_.to", &random_to);
  m.impl("bernoulli_.float", &bernoulli_number);
  m.impl("bernoulli_.Tensor", &bernoulli_tensor);
  m.impl("bernoulli.out", &bernoulli_out);
  m.impl("exponential_", &exponential_);
  m.impl("geometric_", &geometric_);
  m.impl("cauchy_", &cauchy_);
  m.impl("log_normal_", &log_normal_);
  m.impl("randperm.generator_out", &randperm_out);
  m.impl("native_dropout", &native_dropout);
  m.impl("normal.Tensor_float", &normal_tensor_float);
  m.impl("normal.float_Tensor", &normal_float_tensor);
  m.impl("normal.Tensor_Tensor", &normal_tensor_tensor);
  m.impl("normal.Tensor_float_out", &normal_tensor_float_out);
  m.impl("normal.float_Tensor_out", &normal_float_tensor_out);
  m.impl("normal.Tensor_Tensor_out", &normal_tensor_tensor_out);
  m.impl("multinomial", &draw_places);
  m.impl("multinomial.out", &multinomial_out);
  m.impl("rrelu_with_noise", &rrelu);
  m.impl("rrelu_with_noise_", &rrelu_);
  m.impl("rrelu_with_noise.out", &rrelu_out);
}

}  // namespace
}  // namespace loom::dev
