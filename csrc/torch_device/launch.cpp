// Launching from Python: tensors and numbers become argument values without Python-level work.
#include "torch_device/launch.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/python_variable.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>

#include "bindings/timing.h"
#include "runtime/plan.h"
#include "torch_device/arguments.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev {
namespace {

/// Kept per thread so that a launch allocates no vectors.
thread_local std::vector<chip::ArgValue> scratch;

/// Argument values of a launch, in `scratch`.
std::span<const chip::ArgValue> values(const rt::Plan& plan, PyObject* const* items, std::size_t n,
                                       std::uint64_t stream) {
  const auto& args = plan.args();
  if (n != args.size()) {
    std::string text = "kernel '" + plan.name() + "' takes " + std::to_string(args.size()) + " arguments (";
    for (std::size_t i = 0; i < args.size(); ++i) text += (i != 0 ? ", " : "") + args[i].name;
    throw rt::LaunchError(text + "), got " + std::to_string(n));
  }
  scratch.clear();
  for (std::size_t i = 0; i < n; ++i)
    scratch.push_back(args[i].kind == 0 ? buffer(plan, i, items[i], stream) : number(plan, i, items[i]));
  return scratch;
}

/// Is a file part of the machinery between the user's line and a launch: torch itself, this package, or a
/// wrapper that Inductor generated?
bool is_machinery(const std::string& file) {
  for (const char* part : {"/torch/", "/torch_loom/", "/torchinductor_", "<frozen"})
    if (file.find(part) != std::string::npos) return true;
  const char* cache = std::getenv("TORCHINDUCTOR_CACHE_DIR");
  return file.starts_with('<') || (cache != nullptr && *cache != 0 && file.starts_with(cache));
}

/// The frame that called `backward` and waits for it, when exactly one thread does; a new reference.
PyFrameObject* waiting_for_backward() {
  PyFrameObject* found = nullptr;
  for (PyThreadState* t = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); t != nullptr;
       t = PyThreadState_Next(t)) {
    PyFrameObject* frame = PyThreadState_GetFrame(t);
    if (frame == nullptr) continue;
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool backward = PyUnicode_CompareWithASCIIString(code->co_name, "_engine_run_backward") == 0;
    Py_DECREF(code);
    if (backward && found != nullptr) {
      Py_DECREF(frame);
      Py_CLEAR(found);
      return nullptr;
    }
    if (backward) {
      found = frame;
    } else {
      Py_DECREF(frame);
    }
  }
  return found;
}

}  // namespace

// Code objects are few; what is known of them is kept.
rt::Origin python_line() {
  struct Key {
    PyObject* code;
    int line;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const {
      return std::hash<void*>()(k.code) * 31 + static_cast<std::size_t>(k.line);
    }
  };
  static auto* files = new std::unordered_map<PyObject*, std::string>;  // empty: machinery
  static auto* known = new std::unordered_map<Key, rt::Origin, Hash>;
  PyFrameObject* frame = PyEval_GetFrame();
  py::object held;
  if (frame == nullptr) {  // a thread of the autograd engine
    frame = waiting_for_backward();
    held = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(frame));
  }
  while (frame != nullptr) {
    // The code object is kept alive: its address is the key.
    PyObject* code = reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
    auto file = files->find(code);
    if (file == files->end()) {
      const auto name = py::reinterpret_steal<py::object>(PyObject_GetAttrString(code, "co_filename"));
      std::string text = py::str(name).cast<std::string>();
      file = files->emplace(code, is_machinery(text) ? std::string() : std::move(text)).first;
    } else {
      Py_DECREF(code);
    }
    if (!file->second.empty()) {
      const Key key{code, PyFrame_GetLineNumber(frame)};
      auto& text = (*known)[key];
      if (!text) text = std::make_shared<const std::string>(file->second + ":" + std::to_string(key.line));
      return text;
    }
    frame = PyFrame_GetBack(frame);
    held = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(frame));
  }
  return nullptr;
}

namespace {

void launch(const std::shared_ptr<rt::Plan>& plan, PyObject* const* items, std::size_t n) {
  const std::uint64_t stream = current_stream(static_cast<c10::DeviceIndex>(plan->card().index()));
  const auto args = values(*plan, items, n, stream);
  const rt::Origin where = python_line();
  const py::gil_scoped_release release;
  rt::launch(plan, args, plan->card().stream(stream), where);
}

std::shared_ptr<rt::Plan> prepare(const py::object& source, const std::string& name, int device) {
  py::object image = source;
  if (!PyBytes_Check(source.ptr()))
    image = py::module_::import("torch_loom.spyrecode.directory").attr("read_image")(source);
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(image.ptr(), &data, &size) != 0) throw py::error_already_set();
  rt::Card& card = rt::card(device < 0 ? current_device() : device);
  const py::gil_scoped_release release;
  return rt::Plan::prepare(
      card, {reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)}, name);
}

/// Arguments as Python numbers; buffers as addresses, or as (address, bytes), which is what `_chip` takes.
py::list numbers(const std::vector<chip::ArgInfo>& infos, const std::vector<chip::ArgValue>& args,
                 bool pairs) {
  py::list out;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (infos[i].kind == 0 && pairs && args[i].between) {
      out.append(py::make_tuple(args[i].address, args[i].bytes, args[i].share));
    } else if (infos[i].kind == 0 && pairs) {
      out.append(py::make_tuple(args[i].address, args[i].bytes));
    } else if (infos[i].kind == 0) {
      out.append(args[i].address);
    } else if (infos[i].kind == 2) {
      out.append(std::bit_cast<float>(static_cast<std::uint32_t>(args[i].number)));
    } else {
      out.append(args[i].number);
    }
  }
  return out;
}

/// (name, begin, end) of the stages that are over, ns of the steady clock.
py::list stages(const rt::LaunchRecord& r) {
  py::list out;
  for (std::size_t i = 0; i < rt::kStageNames.size(); ++i) {
    const rt::StageTime& t = (*r.stages)[i];
    const std::int64_t end = t.end_ns.load(std::memory_order_acquire);
    if (end != 0)
      out.append(py::make_tuple(rt::kStageNames[i], t.begin_ns.load(std::memory_order_relaxed), end));
  }
  return out;
}

chip::Timing time_of(const rt::Plan& plan, const py::object& source, const chip::ClockParams& params) {
  if (py::isinstance<rt::LaunchRecord>(source)) {
    const auto& record = source.cast<const rt::LaunchRecord&>();
    if (record.plan.get() != &plan)
      throw py::value_error("the record is of kernel '" + record.plan->name() + "', not of '" + plan.name() +
                            "'");
    return plan.time(record.args, params);
  }
  const Items items(source);
  if (items.size() != plan.args().size())
    throw rt::LaunchError("kernel '" + plan.name() + "' takes " + std::to_string(plan.args().size()) +
                          " arguments, got " + std::to_string(items.size()));
  std::vector<chip::ArgValue> args;
  for (std::size_t i = 0; i < items.size(); ++i) {
    PyObject* o = items.data()[i];
    if (plan.args()[i].kind != 0) {
      args.push_back(number(plan, i, o));
    } else {
      args.push_back(PyTuple_Check(o) ? place(o) : buffer(plan, i, o, 0));
    }
  }
  return plan.time(args, params);
}

/// Microseconds of one launch below the Python layer: best of several rounds, the queue empty before each.
double measure_launch(const std::shared_ptr<rt::Plan>& plan, const py::object& arguments, int calls) {
  const std::uint64_t id = current_stream(static_cast<c10::DeviceIndex>(plan->card().index()));
  const Items items(arguments);
  const auto args = values(*plan, items.data(), items.size(), id);
  const py::gil_scoped_release release;
  rt::Stream& stream = plan->card().stream(id);
  double best = 1e300;
  for (int round = 0; round < 7; ++round) {
    stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) rt::launch(plan, args, stream, nullptr);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / calls);
  }
  stream.synchronize();
  return best;
}

int host_threads() { return at::get_num_threads(); }

void* host_library() {
  static void* handle = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return handle;
}

void single_threaded_blas() {
  using SetThreads = void (*)(int);
  void* lib = host_library();
  if (lib == nullptr) return;
  for (const char* name : {"omp_set_num_threads", "openblas_set_num_threads_local"})
    if (auto* f = reinterpret_cast<SetThreads>(::dlsym(lib, name))) f(1);
  if (auto* f = reinterpret_cast<int (*)(int)>(::dlsym(lib, "MKL_Set_Num_Threads_Local"))) (void)f(1);
}

}  // namespace

void lend_host_services() {
  rt::HostServices s;
  void* lib = host_library();
  if (lib != nullptr) s.sgemm = reinterpret_cast<chip::Sgemm>(::dlsym(lib, "sgemm_"));
  s.thread_init = &single_threaded_blas;
  s.threads = &host_threads;
  rt::set_host_services(s);
}

void bind_launch(py::module_& m) {
  static py::exception<rt::LaunchError> launch_error(m, "LaunchError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const rt::LaunchError& e) {
      py::set_error(launch_error, e.what());
    } catch (const rt::OutOfMemory& e) {
      PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), e.what());
    }
  });

  loom::bindings::bind_timing(m);

  py::class_<rt::Plan, std::shared_ptr<rt::Plan>>(m, "Plan")
      .def_property_readonly("name", &rt::Plan::name)
      .def_property_readonly("device_index", [](const rt::Plan& p) { return p.card().index(); })
      .def_property_readonly("address", &rt::Plan::address)
      .def_property_readonly("bytes", &rt::Plan::bytes)
      .def_property_readonly("image", [](const rt::Plan& p) { return py::bytes(p.image()); })
      .def_property_readonly("launches", &rt::Plan::launches)
      .def_property_readonly("cores", &rt::Plan::cores)
      .def_property_readonly("lx_used", &rt::Plan::lx_used)
      .def_property_readonly("args",
                             [](const rt::Plan& p) {
                               py::list out;
                               for (const auto& a : p.args())
                                 out.append(py::make_tuple(a.name, a.kind, a.elem, a.access));
                               return out;
                             })
      .def("launch",
           [](const std::shared_ptr<rt::Plan>& p, const py::handle& args) {
             const Items items(args);
             launch(p, items.data(), items.size());
           })
      .def("__call__",
           [](const std::shared_ptr<rt::Plan>& p, const py::args& args) {
             const Items items(args);
             launch(p, items.data(), items.size());
           })
      .def("time", &time_of, py::arg("args"), py::arg("clock_params"))
      .def("__repr__", [](const rt::Plan& p) {
        return "<Plan '" + p.name() + "' on spyre:" + std::to_string(p.card().index()) + ">";
      });

  py::class_<rt::LaunchRecord>(m, "LaunchRecord")
      .def_property_readonly("name", [](const rt::LaunchRecord& r) { return r.plan->name(); })
      .def_property_readonly(
          "plan", [](const rt::LaunchRecord& r) { return std::const_pointer_cast<rt::Plan>(r.plan); })
      .def_property_readonly("args",
                             [](const rt::LaunchRecord& r) { return numbers(r.plan->args(), r.args, false); })
      .def_property_readonly("call",
                             [](const rt::LaunchRecord& r) { return numbers(r.plan->args(), r.args, true); })
      .def_readonly("stream", &rt::LaunchRecord::stream)
      .def_property_readonly("origin",
                             [](const rt::LaunchRecord& r) { return r.origin ? *r.origin : std::string(); })
      .def_property_readonly("stages", &stages);

  py::class_<rt::LaunchCount, std::shared_ptr<rt::LaunchCount>>(m, "LaunchCount")
      .def_readonly("name", &rt::LaunchCount::name)
      .def_property_readonly("image", [](const rt::LaunchCount& c) { return py::bytes(*c.image); })
      .def_property_readonly("call", [](const rt::LaunchCount& c) { return numbers(c.infos, c.args, true); })
      .def_property_readonly("launches", [](const rt::LaunchCount& c) { return c.launches.load(); })
      .def_property_readonly("origin",
                             [](const rt::LaunchCount& c) { return c.origin ? *c.origin : std::string(); });

  m.def("prepare", &prepare, py::arg("program"), py::arg("name") = "", py::arg("device_index") = -1);
  m.def("measure_launch", &measure_launch, py::arg("plan"), py::arg("args"), py::arg("calls"));
  m.def("enable_launch_log", &rt::set_launch_log, py::arg("on") = true);
  m.def("launch_log", &rt::launch_log);
  m.def("clear_launch_log", &rt::clear_launch_log);
  m.def("launch_counts", [] {
    std::vector<std::shared_ptr<rt::LaunchCount>> out;
    for (const auto& entry : rt::launch_counts())
      out.push_back(std::const_pointer_cast<rt::LaunchCount>(entry));
    return out;
  });
  m.def("copy_counts", [] {
    const rt::CopyCount c = rt::copy_counts();
    return std::make_pair(c.copies, c.bytes);
  });
  m.def("clear_launch_counts", &rt::clear_launch_counts);
  m.def("set_timing_only", &rt::set_timing_only, py::arg("on"));
  m.def("timing_only", &rt::timing_only);
  m.def("set_clock", &rt::set_clock, py::arg("params"));
  m.def("set_blocking", &rt::set_blocking, py::arg("on"), py::call_guard<py::gil_scoped_release>());
  m.def("blocking", &rt::blocking);
}

}  // namespace loom::dev
