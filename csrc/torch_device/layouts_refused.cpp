// Tensors that are not strided have no form on the device. PyTorch gives them dispatch keys of their own;
// whatever has no kernel of PyTorch's there ends in one error, instead of a list of all backends that do have
// one.
#include <torch/library.h>

namespace loom::dev {
namespace {

void refuse(const c10::OperatorHandle& op, const char* kind) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "Spyre backend does not support ", kind, " tensors (",
                              op.operator_name(), "); keep them on the CPU or make them dense");
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "sparse"); }
void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "nested"); }
void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse(op, "quantized"); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace
}  // namespace loom::dev
