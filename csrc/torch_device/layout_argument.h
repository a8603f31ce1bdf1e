// The argument `device_layout=` of factories and `Tensor.to`.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace loom::dev {

/// Adds to the module: add_layout_function(module, type, name, handler), add_layout_method(type, name,
/// handler), which make a call with `device_layout=` a call of handler(original, *args, **kwargs), and
/// restore_layout_functions().
void bind_layout_argument(pybind11::module_& m);

}  // namespace loom::dev
