// Structural keys: everything about a call that a program may depend on, and nothing else.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "torch_device/eager_site.h"

namespace loom::dev::eager {

/// A call that may have a program; one without any element on the device to compute from; one with arguments
/// that have no structure (tensors of several devices, generators, complex numbers).
enum class Described : std::uint8_t { Call, Nothing, Odd };

/// Reads the arguments of a call. `key` gets the structural key; `call` the tensors and numbers that are left
/// open.
Described describe(const Site&, const c10::FunctionSchema&, c10::ArrayRef<c10::IValue> arguments,
                   std::string* key, Call* call);

/// The same arguments for the tracing side: a list of ("tensor", sizes, order, ranks,
/// dtype, device index), ("number", value, kind), ("constant", value) and ("list", [...]), with the keyword
/// of keyword-only ones.
pybind11::list described(const Site&, const c10::FunctionSchema&, c10::ArrayRef<c10::IValue> arguments);

}  // namespace loom::dev::eager
