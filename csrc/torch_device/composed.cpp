// Operators that change several arguments, or whose results depend on data in size, made of operators that
// the recorder compiles.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <vector>

#include "torch_device/eager.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;

/// The recorder's answer to a call of an operator.
torch::jit::Stack recorded(const char* name, const char* overload, torch::jit::Stack stack) {
  eager::run_operator(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), &stack);
  return stack;
}

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
  m.impl("_cummax_helper", &running_maximum);
  m.impl("_cummin_helper", &running_minimum);
  m.impl("index.Tensor", &elements);
  m.impl("index.Tensor_out", &index_out);
  m.impl("_index_put_impl_", &index_put_impl);
}

}  // namespace
}  // namespace loom::dev
