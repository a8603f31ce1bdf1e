// Python objects as arguments of launches, without Python-level work.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "runtime/plan.h"

namespace loom::dev {

/// A list or tuple as an array of borrowed references.
struct Items {
  pybind11::object sequence;
  explicit Items(const pybind11::handle& h)
      : sequence(pybind11::reinterpret_steal<pybind11::object>(
            PySequence_Fast(h.ptr(), "launch takes a list of arguments"))) {
    if (!sequence) throw pybind11::error_already_set();
  }
  PyObject* const* data() const { return PySequence_Fast_ITEMS(sequence.ptr()); }
  std::size_t size() const { return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr())); }
};

/// A tensor as argument `i` of a plan; the stream is noted as a user of its memory. Throws LaunchError.
chip::ArgValue buffer(const rt::Plan&, std::size_t i, PyObject*, std::uint64_t stream);

/// A number as argument `i` of a plan. Throws LaunchError.
chip::ArgValue number(const rt::Plan&, std::size_t i, PyObject*);

/// A place without a tensor: (address, bytes), or (address, bytes, share) of a buffer between programs of a
/// job.
chip::ArgValue place(const pybind11::handle&);

/// Adds `Job` to the module.
void bind_job(pybind11::module_&);

}  // namespace loom::dev
