#include "torch_device/arguments.h"

#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <string>

#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev {

namespace {

[[noreturn]] void bad_argument(const rt::Plan& plan, std::size_t i, const std::string& what) {
  throw rt::LaunchError("kernel '" + plan.name() + "': argument " + std::to_string(i) + " ('" +
                        plan.args()[i].name + "') " + what);
}

}  // namespace

chip::ArgValue buffer(const rt::Plan& plan, std::size_t i, PyObject* o, std::uint64_t stream) {
  if (!THPVariable_Check(o))
    bad_argument(plan, i, std::string("must be a spyre tensor, got ") + Py_TYPE(o)->tp_name);
  const at::Tensor& t = THPVariable_Unpack(o);
  if (t.device().type() != kSpyre)
    bad_argument(plan, i, "must be a spyre tensor, got one on " + t.device().str());
  rt::Record& r = record_of(t);
  if (r.card != &plan.card())
    bad_argument(plan, i,
                 "lies on " + t.device().str() +
                     ", the plan was prepared for spyre:" + std::to_string(plan.card().index()));
  // A byte widened to 32 bits is the same word with or without a sign; kernels call it I32.
  const bool widened = r.layout->format == rt::Format::U32;
  const auto elem = static_cast<int>(widened ? rt::Format::I32 : r.layout->format);
  if (r.bytes != 0 && elem != plan.args()[i].elem)
    bad_argument(plan, i,
                 "has device format " + std::string(rt::format_name(r.layout->format)) +
                     ", the kernel takes " + rt::format_name(static_cast<rt::Format>(plan.args()[i].elem)));
  rt::note_use(r, stream);
  if (plan.args()[i].access & 2) rt::note_write(r);
  return {r.address, r.bytes, 0};
}

chip::ArgValue place(const py::handle& o) {
  chip::ArgValue v;
  const auto numbers = o.cast<std::vector<std::uint64_t>>();
  if (numbers.size() != 2 && numbers.size() != 3)
    throw py::value_error("a place is (address, bytes[, share])");
  v.address = numbers[0];
  v.bytes = numbers[1];
  v.between = numbers.size() == 3;
  if (v.between) v.share = numbers[2];
  return v;
}

chip::ArgValue number(const rt::Plan& plan, std::size_t i, PyObject* o) {
  chip::ArgValue v;
  if (plan.args()[i].kind == 2) {
    const double d = PyFloat_Check(o) || PyLong_Check(o) ? PyFloat_AsDouble(o) : -1;
    if (!PyFloat_Check(o) && !PyLong_Check(o))
      bad_argument(plan, i, std::string("must be a float, got ") + Py_TYPE(o)->tp_name);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    v.number = std::bit_cast<std::uint32_t>(static_cast<float>(d));
    return v;
  }
  if (!PyIndex_Check(o)) bad_argument(plan, i, std::string("must be an int, got ") + Py_TYPE(o)->tp_name);
  v.number = PyLong_Check(o) ? PyLong_AsLongLong(o) : PyNumber_AsSsize_t(o, PyExc_OverflowError);
  if (v.number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return v;
}

}  // namespace loom::dev
