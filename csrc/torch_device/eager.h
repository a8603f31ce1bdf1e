// The eager recorder: one boxed kernel for every operator without a device kernel of its own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

namespace loom::dev::eager {

/// `Host` runs every operator on the CPU; `Debug` waits for each operator and so raises its errors at once;
/// `Fused` holds operators back and runs them together.
enum class Mode : std::uint8_t { Host, Debug, Strict, Fused };

/// Runs the operator's compiled program, or falls back to the host when there is none.
void run_operator(const c10::OperatorHandle&, torch::jit::Stack*);

/// The recorder's results of a call with all arguments of the schema.
torch::jit::Stack recorded(const char* name, const char* overload, torch::jit::Stack);

/// Registers that kernel for the operators of aten that need one.
void register_operators();

/// Adds the Python side: programs, modes, counters.
void bind_eager(pybind11::module_&);

}  // namespace loom::dev::eager
