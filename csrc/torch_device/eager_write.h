// Where results of an operator go: the checks before anything runs, and the operator's run itself.
#pragma once

#include "torch_device/eager_site.h"

namespace loom::dev::eager {

/// Overlapping writes of elementwise operators are refused as on the CPU, wherever the operator runs.
void check_written(const Site&, c10::ArrayRef<c10::IValue> arguments);

/// Makes `into` ready for a result of these sizes and dtype (an out= argument is resized), or raises
/// PyTorch's error.
void prepare_written(const Site&, const at::Tensor& into, c10::IntArrayRef sizes, c10::ScalarType);

/// Runs a program now. Without `into` its outputs are returned; otherwise they go there.
c10::SmallVector<at::Tensor, 3> compute(const Site&, const Program&, Call&, c10::ArrayRef<at::Tensor> into,
                                        const rt::Origin&);

}  // namespace loom::dev::eager
