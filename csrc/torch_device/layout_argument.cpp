// The argument `device_layout=` of factories and `Tensor.to`, which the public stack adds and programs for
// the card use. PyTorch's argument parser refuses names it does not know and offers no extension point, so
// each function is replaced by one of the same kind (a built-in, a method descriptor) with the same name and
// text. It looks for the keyword: without it the call goes straight on to the original, with it to a Python
// handler.
//
// `torch.empty` is also an attribute of the type that PyTorch's C++ side asks for the identity of a function
// under
// `__torch_function__`; both places get the same object, so that modes and subclasses still recognise it.
#include "torch_device/layout_argument.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace loom::dev {
namespace {

constexpr std::size_t kMaxFunctions = 16;

/// A replaced function. Lives as long as the process: the replacement points at its definition.
struct Replaced {
  py::object original, handler, replacement, owner, type;
  std::string name, doc;
  PyMethodDef definition{};
};
std::vector<Replaced*>& table() {
  static auto* t = new std::vector<Replaced*>;
  return *t;
}
PyObject* keyword = nullptr;  // "device_layout", interned

bool has_keyword(PyObject* names) {
  if (names == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (name == keyword || PyUnicode_Compare(name, keyword) == 0) return true;
  }
  return false;
}

/// Calls handler(original, *args, **kwargs) or original(*args, **kwargs). `self` is null for functions.
PyObject* forward(const Replaced& r, PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  const bool handled = has_keyword(names);
  if (!handled && self == nullptr)
    return PyObject_Vectorcall(r.original.ptr(), args, static_cast<std::size_t>(n), names);
  const Py_ssize_t total = n + (names != nullptr ? PyTuple_GET_SIZE(names) : 0);
  std::array<PyObject*, 16> few;
  std::vector<PyObject*> many;
  PyObject** all = few.data();
  if (static_cast<std::size_t>(total) + 2 > few.size()) {
    many.resize(static_cast<std::size_t>(total) + 2);
    all = many.data();
  }
  Py_ssize_t at = 0;
  if (handled) all[at++] = r.original.ptr();
  if (self != nullptr) all[at++] = self;
  std::copy(args, args + total, all + at);
  return PyObject_Vectorcall(handled ? r.handler.ptr() : r.original.ptr(), all,
                             static_cast<std::size_t>(at + n), names);
}

template <std::size_t I>
PyObject* function(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return forward(*table()[I], nullptr, args, n, names);
}
template <std::size_t I>
PyObject* method(PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* names) {
  return forward(*table()[I], self, args, n, names);
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
template <std::size_t... I>
constexpr std::array<Fast, sizeof...(I)> functions(std::index_sequence<I...>) {
  return {&function<I>...};
}
template <std::size_t... I>
constexpr std::array<Fast, sizeof...(I)> methods(std::index_sequence<I...>) {
  return {&method<I>...};
}
constexpr auto kFunctions = functions(std::make_index_sequence<kMaxFunctions>());
constexpr auto kMethods = methods(std::make_index_sequence<kMaxFunctions>());

/// Sets or restores `name` of a static type; Python itself refuses to change those.
void set_in_type(const py::object& type, const std::string& name, const py::object& value) {
  auto* t = reinterpret_cast<PyTypeObject*>(type.ptr());
  const auto held = py::reinterpret_steal<py::object>(PyStaticMethod_New(value.ptr()));
  if (!held || PyDict_SetItemString(t->tp_dict, name.c_str(), held.ptr()) != 0) throw py::error_already_set();
  PyType_Modified(t);
}

Replaced& add(const py::object& owner, const std::string& name, const py::object& handler,
              const std::array<Fast, kMaxFunctions>& entries) {
  if (table().size() == kMaxFunctions) throw py::value_error("too many functions take device_layout=");
  keyword = PyUnicode_InternFromString("device_layout");
  auto* r = new Replaced{owner.attr(name.c_str()), handler, {}, owner, {}, name, {}, {}};
  const py::object doc = r->original.attr("__doc__");
  if (!doc.is_none()) r->doc = doc.cast<std::string>();
  r->definition = {r->name.c_str(),
                   reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entries[table().size()])),
                   METH_FASTCALL | METH_KEYWORDS, doc.is_none() ? nullptr : r->doc.c_str()};
  table().push_back(r);
  return *r;
}

void add_function(const py::object& module, const py::object& type, const std::string& name,
                  const py::object& handler) {
  if (!PyType_Check(type.ptr()) || !type.attr(name.c_str()).is(module.attr(name.c_str())))
    throw py::value_error("'" + name + "' is not a function of the given type");
  Replaced& r = add(module, name, handler, kFunctions);
  r.type = type;
  r.definition.ml_flags |= METH_STATIC;
  r.replacement = py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&r.definition, type.ptr(), r.original.attr("__module__").ptr()));
  if (!r.replacement) throw py::error_already_set();
  module.attr(name.c_str()) = r.replacement;
  set_in_type(type, name, r.replacement);
}

void add_method(const py::object& type, const std::string& name, const py::object& handler) {
  Replaced& r = add(type, name, handler, kMethods);
  r.replacement = py::reinterpret_steal<py::object>(
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &r.definition));
  if (!r.replacement) throw py::error_already_set();
  type.attr(name.c_str()) = r.replacement;
}

/// Puts every original back. Replacements that somebody still holds go on working.
void restore() {
  for (const Replaced* r : table()) {
    r->owner.attr(r->name.c_str()) = r->original;
    if (r->type) set_in_type(r->type, r->name, r->original);
  }
}

}  // namespace

void bind_layout_argument(py::module_& m) {
  m.def("add_layout_function", &add_function);
  m.def("add_layout_method", &add_method);
  m.def("restore_layout_functions", &restore);
}

}  // namespace loom::dev
