// Python classes of the clock's results, for the two native modules.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "chip/chip.h"

namespace loom::bindings {

namespace py = pybind11;

inline void bind_timing(py::module_& m) {
  using chip::Timing;
  using chip::UnitTime;
  py::class_<UnitTime>(m, "UnitTime", py::module_local())
      .def_readonly("busy_cycles", &UnitTime::busy_cycles)
      .def_readonly("wait_cycles", &UnitTime::wait_cycles);
  py::class_<Timing>(m, "Timing", py::module_local())
      .def_readonly("cycles", &Timing::cycles)
      .def_readonly("ns", &Timing::ns)
      .def_readonly("launch_cycles", &Timing::launch_cycles)
      .def_readonly("pt_util", &Timing::pt_util)
      .def_readonly("sfu_util", &Timing::sfu_util)
      .def_readonly("ddr_read_bytes", &Timing::ddr_read_bytes)
      .def_readonly("ddr_write_bytes", &Timing::ddr_write_bytes)
      .def_readonly("macs", &Timing::macs)
      .def_readonly("events", &Timing::events)
      .def_readonly("bottleneck", &Timing::bottleneck)
      .def_readonly("shares", &Timing::shares)
      .def_readonly("link_bytes", &Timing::link_bytes)
      .def_readonly("energy_pj", &Timing::energy_pj)
      .def_readonly("between_bytes", &Timing::between_bytes)
      .def_readonly("units", &Timing::units)
      .def("__repr__", [](const Timing& t) {
        return "Timing(cycles=" + std::to_string(t.cycles) + ", ns=" + std::to_string(t.ns) +
               ", bottleneck='" + t.bottleneck + "')";
      });
}

template <typename T>
py::array_t<T> column(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

/// A trace as a dict of NumPy arrays.
inline py::dict as_dict(const chip::Trace& t) {
  py::dict d;
  d["timing"] = t.timing;
  d["names"] = t.names;
  d["tracks"] = t.tracks;
  d["core"] = column(t.core);
  d["track"] = column(t.track);
  d["begin"] = column(t.begin);
  d["end"] = column(t.end);
  d["what"] = column(t.what);
  d["kind"] = column(t.kind);
  d["flow_from_core"] = column(t.flow_from_core);
  d["flow_from_track"] = column(t.flow_from_track);
  d["flow_sent"] = column(t.flow_sent);
  d["flow_to_core"] = column(t.flow_to_core);
  d["flow_to_track"] = column(t.flow_to_track);
  d["flow_seen"] = column(t.flow_seen);
  d["flow_channel"] = column(t.flow_channel);
  d["truncated"] = t.truncated;
  return d;
}

}  // namespace loom::bindings
