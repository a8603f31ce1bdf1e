// The Python module `torch_loom._device`: registrations, storage layouts, runtime queries.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/convert.h"
#include "runtime/event.h"
#include "runtime/runtime.h"
#include "runtime/transfer.h"
#include "torch_device/arguments.h"
#include "torch_device/backend.h"
#include "torch_device/eager.h"
#include "torch_device/fallback.h"
#include "torch_device/launch.h"
#include "torch_device/layout_argument.h"
#include "torch_device/metadata.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev {
namespace {

PyObject* fallback_category = nullptr;

void warn_fallback(const std::string& op) {
  const py::gil_scoped_acquire gil;
  const std::string text =
      op + " has no spyre kernel in eager mode and runs on the CPU (torch.spyre.fallbacks() counts)";
  if (PyErr_WarnEx(fallback_category, text.c_str(), 1) != 0) throw python_error();
}

void collect_garbage() {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  py::module_::import("gc").attr("collect")();
}

rt::Kind kind_of(const std::string& name) {
  if (name == "default") return rt::Kind::Default;
  if (name == "row_major") return rt::Kind::RowMajor;
  throw py::value_error("layout kind must be 'default' or 'row_major', got '" + name + "'");
}

const at::Tensor& on_spyre(const at::Tensor& t, const char* what) {
  TORCH_CHECK_TYPE(t.device().type() == kSpyre, what, " needs a spyre tensor, got one on ", t.device());
  return t;
}

py::dict layout_dict(const at::Tensor& t) {
  const rt::Record& r = record_of(on_spyre(t, "layout"));
  py::dict d;
  d["kind"] = rt::kind_name(r.layout->kind);
  d["format"] = rt::format_name(r.layout->format);
  d["elem"] = static_cast<int>(r.layout->format);
  d["device_size"] = r.layout->device_size;
  d["stride_map"] = r.layout->stride_map;
  rt::Dims size, stride;
  for (const auto& a : r.layout->axes) {
    size.push_back(a.size);
    stride.push_back(a.host_stride);
  }
  d["geometry_size"] = size;
  d["geometry_stride"] = stride;
  d["address"] = r.address;
  d["bytes"] = r.bytes;
  d["raw"] = r.raw;
  return d;
}

at::Tensor relayout(const at::Tensor& t, const std::string& kind) {
  on_spyre(t, "relayout");
  const rt::Kind k = kind_of(kind);
  if (has_layout(t, k)) return t;
  const at::Tensor shape = at::empty_like(t, t.options().device(at::kMeta));
  at::Tensor out = make_tensor(t.sizes(), shape.strides(), t.scalar_type(), t.device().index(), k);
  const py::gil_scoped_release release;
  copy_elements(out, t.detach(), false);
  return out;
}

at::Tensor empty_strided(std::vector<std::int64_t> size, std::vector<std::int64_t> stride,
                         const py::object& dtype, int index, const std::string& kind) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "dtype must be a torch.dtype");
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  return make_tensor(size, stride, type, static_cast<c10::DeviceIndex>(index < 0 ? current_device() : index),
                     kind_of(kind));
}

at::Tensor empty_with_layout(const rt::Dims& size, const rt::Dims& stride, const py::object& dtype, int index,
                             const rt::Dims& device_size, const rt::Dims& stride_map) {
  TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "dtype must be a torch.dtype");
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  rt::Format format;
  supported_dtype(type, &format);
  return make_tensor(size, stride, type, static_cast<c10::DeviceIndex>(index < 0 ? current_device() : index),
                     raw_layout(format, size, stride, device_size, stride_map));
}

at::Tensor alias_with_layout(const at::Tensor& t, const rt::Dims& size, const rt::Dims& stride,
                             std::int64_t offset, const rt::Dims& device_size, const rt::Dims& stride_map) {
  const rt::Format format = record_of(on_spyre(t, "a reinterpretation")).layout->format;
  TORCH_CHECK_VALUE(size.size() == stride.size() && offset >= 0, "sizes, strides and offset do not fit");
  // The allocation that the layout describes starts at element 0: its outermost dim also covers the offset.
  rt::Dims whole = size, steps = stride;
  if (whole.empty()) {
    whole = {1};
    steps = {1};
  }
  const auto outer = static_cast<std::size_t>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  const std::int64_t step = std::max<std::int64_t>(steps[outer], 1);
  const std::int64_t before = offset / step + (offset % step != 0 ? 1 : 0);
  TORCH_CHECK_VALUE(!__builtin_add_overflow(whole[outer], before, &whole[outer]), "offset ", offset,
                    " is beyond every storage");
  return make_alias(t, size, stride, offset, raw_layout(format, whole, steps, device_size, stride_map));
}

void set_layout(const at::Tensor& t, const rt::Dims& device_size, const rt::Dims& stride_map) {
  rt::Record& r = record_of(on_spyre(t, "set_spyre_tensor_layout"));
  rt::Dims size, stride;
  for (const auto& a : r.layout->axes) {
    size.push_back(a.size);
    stride.push_back(a.host_stride);
  }
  auto layout = raw_layout(r.layout->format, size, stride, device_size, stride_map);
  if (static_cast<std::uint64_t>(layout->bytes) > r.bytes)
    throw rt::DeviceError("the layout takes " + std::to_string(layout->bytes) + " bytes, the storage has " +
                          std::to_string(r.bytes));
  r.layout = std::move(layout);
}

/// See rt::Record::content; pending work on the tensor has run.
std::uint64_t content_of(const at::Tensor& t) {
  return rt::content_of(record_of(on_spyre(t, "the number of a content")));
}

/// The bytes of a storage as the device holds them, for inspection and tests.
py::bytes device_bytes(const at::Tensor& t) {
  const rt::Record& r = record_of(on_spyre(t, "device_bytes"));
  rt::card(t.device().index()).stream(current_stream(t.device().index())).drain();
  return {reinterpret_cast<const char*>(r.base()), static_cast<std::size_t>(r.bytes)};
}

/// Seconds of the plain loop that transfers are compared with, best of `repeat`, on one thread: a memcpy of
/// the host bytes into a staging buffer and one conversion of that buffer. It knows no strides, sticks or
/// layouts. `to_device` chooses the direction.
double measure_plain_loop(const at::Tensor& host, bool to_device, int repeat) {
  TORCH_CHECK(host.is_cpu() && host.is_non_overlapping_and_dense(),
              "the plain loop needs a dense CPU tensor");
  rt::Format format;
  const rt::Dtype dtype = supported_dtype(host.scalar_type(), &format);
  const auto n = static_cast<std::size_t>(host.numel());
  const std::size_t host_bytes = n * static_cast<std::size_t>(rt::host_bytes(dtype));
  const std::size_t device_bytes = n * static_cast<std::size_t>(rt::format_bytes(format));
  const at::Tensor stage =
      at::zeros({static_cast<std::int64_t>(std::max(host_bytes, device_bytes))}, at::kByte);
  const at::Tensor out = at::zeros_like(stage);
  const rt::Phys outside = rt::host_phys(dtype), inside = rt::device_phys(dtype, format);
  const rt::Convert convert = to_device ? rt::converter(inside, outside) : rt::converter(outside, inside);
  rt::Runs all;
  all.n = n;
  double best = 1e300;
  for (int i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::int64_t bad = 0;
    if (to_device) {
      std::memcpy(stage.data_ptr(), host.data_ptr(), host_bytes);
      (void)convert(out.data_ptr(), stage.data_ptr(), all, &bad);
    } else {
      (void)convert(stage.data_ptr(), out.data_ptr(), all, &bad);
      std::memcpy(host.data_ptr(), stage.data_ptr(), host_bytes);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

py::dict counter(const rt::Counter& c) {
  py::dict d;
  d["current"] = c.current;
  d["peak"] = c.peak;
  d["allocated"] = c.increased;
  d["freed"] = c.decreased;
  return d;
}

py::dict memory_stats(int index) {
  const rt::MemoryStats s = rt::card(index).memory().stats();
  py::dict d;
  d["allocated_bytes"] = counter(s.allocated_bytes);
  d["reserved_bytes"] = counter(s.reserved_bytes);
  d["requested_bytes"] = counter(s.requested_bytes);
  d["allocation"] = counter(s.allocations);
  d["programs_bytes"] = s.programs_bytes;
  d["largest_free"] = s.largest_free;
  d["free_blocks"] = s.free_blocks;
  d["num_ooms"] = s.ooms;
  return d;
}

}  // namespace

PYBIND11_MODULE(_device, m) {
  py::register_exception<rt::DeviceError>(m, "DeviceError", PyExc_RuntimeError);
  m.def("register_backend", [](const py::object& category) {
    fallback_category = category.inc_ref().ptr();
    register_backend();
    register_metadata();
    eager::register_operators();
    lend_host_services();
    set_fallback_hook(&warn_fallback);
    set_out_of_memory_hook(&collect_garbage);
  });

  m.def("empty_strided", &empty_strided, py::arg("size"), py::arg("stride"), py::arg("dtype"),
        py::arg("device_index"), py::arg("kind"));
  m.def("layout", &layout_dict);
  m.def("expect", [](const at::Tensor& t, const std::string& kind) {
    return t.device().type() == kSpyre && has_layout(t, kind_of(kind));
  });
  m.def("relayout", &relayout);
  m.def("empty_with_layout", &empty_with_layout);
  m.def("alias_with_layout", &alias_with_layout);
  m.def("set_layout", &set_layout);
  m.def("device_bytes", &device_bytes);
  m.def("content_of", &content_of);
  m.def("measure_plain_loop", &measure_plain_loop, py::arg("host"), py::arg("to_device"), py::arg("repeat"));

  bind_launch(m);
  bind_job(m);
  bind_layout_argument(m);
  eager::bind_eager(m);

  m.def("fallbacks", &fallback_counts);
  m.def("reset_fallbacks", &reset_fallback_counts);
  m.def("set_fallback_mode", [](const std::string& mode) {
    if (mode != "warn" && mode != "silent" && mode != "error")
      throw py::value_error("fallback mode must be 'warn', 'silent' or 'error', got '" + mode + "'");
    set_fallback_mode(mode == "error"    ? FallbackMode::Error
                      : mode == "silent" ? FallbackMode::Silent
                                         : FallbackMode::Warn);
  });
  m.def("fallback_mode", [] {
    const auto mode = fallback_mode();
    return mode == FallbackMode::Error ? "error" : mode == FallbackMode::Silent ? "silent" : "warn";
  });

  m.def("ieee_numerics", [] { return rt::settings().ieee; });
  m.def("downcast_warning", &downcast_warning);
  m.def("set_downcast_warning", &set_downcast_warning);
  m.def("device_count", [] { return rt::settings().cards; });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("set_device", [](int i) { set_current_device(static_cast<c10::DeviceIndex>(i)); });
  m.def("started", &rt::started);
  m.def("in_bad_fork", &rt::in_bad_fork);
  m.def("start", [](int i) { (void)rt::card(i); });
  m.def("stop", [] {
    finish_pending();
    rt::stop();
  });
  m.def("default_generator", [](int i) { return default_generator(static_cast<c10::DeviceIndex>(i)); });
  m.def("current_stream", [](int i) { return current_stream(static_cast<c10::DeviceIndex>(i)); });
  m.def(
      "synchronize",
      [](int i) {
        rt::Card& card = rt::card(i);
        finish_pending(static_cast<c10::DeviceIndex>(i));
        card.synchronize();
      },
      py::call_guard<py::gil_scoped_release>());

  m.def("event_elapsed", [](std::uintptr_t a, std::uintptr_t b, bool modelled) {
    if (a == 0 || b == 0) throw rt::DeviceError("elapsed_time needs two recorded events");
    const auto &from = *reinterpret_cast<rt::Event*>(a), &to = *reinterpret_cast<rt::Event*>(b);
    return modelled ? from.modelled_ms(to) : from.wall_ms(to);
  });
  m.def("set_stream",
        [](int i, std::uint64_t id) { set_current_stream(static_cast<c10::DeviceIndex>(i), id); });

  m.def("capacity", [] { return rt::kCapacity; });
  m.def("memory_stats", &memory_stats);
  m.def("memory_info",
        [](int i) { return device_allocator().getMemoryInfo(static_cast<c10::DeviceIndex>(i)); });
  m.def("set_memory_limit", [](int i, std::uint64_t bytes) { rt::card(i).memory().set_limit(bytes); });
  m.def("reset_peak_memory_stats", [](int i) { rt::card(i).memory().reset_peak(); });
  m.def("reset_accumulated_memory_stats", [](int i) { rt::card(i).memory().reset_accumulated(); });
  m.def("empty_cache", [](int i) { rt::card(i).memory().trim(); });
  m.def("memory_blocks", [](int i) {
    py::list out;
    for (const auto& b : rt::card(i).memory().snapshot())
      out.append(py::make_tuple(b.address, b.bytes, b.allocated));
    return out;
  });
}

}  // namespace loom::dev
