// Python module torch_loom._chip: the chip for tools and tests, with NumPy arrays and plain numbers only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>

#include "bindings/timing.h"
#include "chip/blas.h"
#include "chip/chip.h"
#include "chip/convert.h"

namespace py = pybind11;

namespace {

using namespace loom::chip;
using ProgramPtr = std::shared_ptr<const Program>;

/// pybind11 holds non-const objects; programs are only ever read.
struct ProgramHandle {
  ProgramPtr program;
  std::shared_ptr<const Corrector> corrector;

  explicit ProgramHandle(ProgramPtr p)
      : program(std::move(p)), corrector(std::make_shared<Corrector>(program)) {}

  std::vector<std::int64_t> table(std::span<const ArgValue> values) const {
    std::vector<std::int64_t> words(table_words(*program));
    corrector->correct(values, words);
    return words;
  }
};

std::vector<ArgValue> arguments(const Program& p, const py::sequence& args) {
  const auto& infos = args_of(p);
  if (args.size() != infos.size())
    throw Error("SC-E11", name_of(p) + ": " + std::to_string(args.size()) + " arguments, takes " +
                              std::to_string(infos.size()));
  std::vector<ArgValue> values(infos.size());
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const py::object arg = args[i];
    const auto refuse = [&](const char* wanted) {
      throw Error("SC-E11", name_of(p) + ": argument " + infos[i].name + " must be " + wanted);
    };
    if (infos[i].kind == 0) {
      const bool tuple = py::isinstance<py::tuple>(arg);
      if (!tuple || (py::len(arg) != 2 && py::len(arg) != 3))
        refuse("(address, bytes), or (address, bytes, share) of a buffer between programs of a job");
      const auto place = arg.cast<std::vector<std::uint64_t>>();
      values[i].address = place[0];
      values[i].bytes = place[1];
      values[i].between = place.size() == 3;
      if (values[i].between) values[i].share = place[2];
    } else if (infos[i].kind == 1) {
      if (!py::isinstance<py::int_>(arg)) refuse("an int");
      values[i].number = arg.cast<std::int64_t>();
    } else {
      if (!py::isinstance<py::float_>(arg) && !py::isinstance<py::int_>(arg)) refuse("a float");
      values[i].number = std::bit_cast<std::uint32_t>(static_cast<float>(arg.cast<double>()));
    }
  }
  return values;
}

/// A machine with a DDR of its own, reserved at device address 0 and committed where it is touched.
class PyMachine {
 public:
  PyMachine(int cores, std::int64_t lx_bytes, int threads, std::uint64_t ddr_bytes, bool blas,
            std::int64_t max_steps)
      : ddr_bytes_(ddr_bytes) {
    if (ddr_bytes == 0) throw Error("DEV-09", "a machine needs DDR");
    void* at = ::mmap(nullptr, ddr_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
    if (at == MAP_FAILED)
      throw Error("DEV-09", "the host cannot reserve " + std::to_string(ddr_bytes) + " bytes");
    ddr_ = static_cast<std::uint8_t*>(at);
    MachineOptions options;
    options.cores = cores;
    options.lx_bytes = lx_bytes;
    options.threads = threads;
    options.ddr = ddr_;
    options.ddr_bytes = ddr_bytes;
    if (max_steps > 0) options.max_steps = max_steps;
    if (blas) {
      options.sgemm = find_sgemm();
      options.thread_init = single_threaded_blas;
    }
    has_blas_ = options.sgemm != nullptr;
    try {
      machine_ = std::make_unique<Machine>(options);
    } catch (...) {
      ::munmap(ddr_, ddr_bytes_);
      throw;
    }
  }
  ~PyMachine() {
    machine_.reset();
    ::munmap(ddr_, ddr_bytes_);
  }
  PyMachine(const PyMachine&) = delete;
  PyMachine& operator=(const PyMachine&) = delete;

  void run(const ProgramHandle& handle, const py::sequence& args) {
    const ProgramPtr program = handle.program;
    const auto values = arguments(*program, args);
    const auto table = handle.table(values);
    py::gil_scoped_release unlocked;
    machine_->run(*program, table, values);
  }

  static py::array view(const py::object& self, std::uint8_t* data, std::size_t bytes) {
    return py::array_t<std::uint8_t>({static_cast<py::ssize_t>(bytes)}, {1}, data, self);
  }
  std::uint8_t* ddr_ = nullptr;
  std::uint64_t ddr_bytes_;
  bool has_blas_ = false;
  std::unique_ptr<Machine> machine_;
};

}  // namespace

PYBIND11_MODULE(_chip, m) {
  m.doc() = "The simulated chip: decode a program, run it (values) and time it (cycles). See docs/chip.md.";

  // The exception type lives as long as the interpreter.
  static PyObject* error_type =
      PyErr_NewExceptionWithDoc("torch_loom._chip.ChipError",
                                "Refused binary or argument, or failed execution; .code is SC-Exx or DEV-xx.",
                                PyExc_RuntimeError, nullptr);
  m.attr("ChipError") = py::reinterpret_borrow<py::object>(error_type);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& e) {
      py::object error = py::reinterpret_borrow<py::object>(error_type)(e.what());
      error.attr("code") = e.code();
      PyErr_SetObject(error_type, error.ptr());
    }
  });

  py::class_<ArgInfo>(m, "ArgInfo", py::module_local())
      .def_readonly("name", &ArgInfo::name)
      .def_readonly("kind", &ArgInfo::kind)
      .def_readonly("elem", &ArgInfo::elem)
      .def_readonly("access", &ArgInfo::access);

  py::class_<ProgramHandle>(m, "Program", py::module_local())
      .def_property_readonly("name", [](const ProgramHandle& h) { return name_of(*h.program); })
      .def_property_readonly("args", [](const ProgramHandle& h) { return args_of(*h.program); })
      .def_property_readonly("cores", [](const ProgramHandle& h) { return cores_of(*h.program); })
      .def_property_readonly("lx_used", [](const ProgramHandle& h) { return lx_used(*h.program); })
      .def_property_readonly("table_words", [](const ProgramHandle& h) { return table_words(*h.program); });

  m.def(
      "decode",
      [](const py::bytes& image) {
        const std::string_view view = image;
        return ProgramHandle{decode({reinterpret_cast<const std::uint8_t*>(view.data()), view.size()})};
      },
      py::arg("image"), "Decode, validate and link a binary. Raises ChipError (SC-E15..E17).");

  m.def(
      "table",
      [](const ProgramHandle& h, const py::sequence& args) {
        const auto table = h.table(arguments(*h.program, args));
        return py::array_t<std::int64_t>(static_cast<py::ssize_t>(table.size()), table.data());
      },
      py::arg("program"), py::arg("args"),
      "The value table of a launch. Raises ChipError (SC-E11..E13, E17).");

  py::class_<PyMachine>(m, "Machine", py::module_local())
      .def(py::init<int, std::int64_t, int, std::uint64_t, bool, std::int64_t>(), py::arg("cores") = 32,
           py::arg("lx_bytes") = 2 << 20, py::arg("threads") = 0,
           py::arg("ddr_bytes") = std::uint64_t{1} << 30, py::kw_only(), py::arg("blas") = false,
           py::arg("max_steps") = 0)
      .def_property_readonly("ddr",
                             [](py::object self) {
                               auto& machine = self.cast<PyMachine&>();
                               return PyMachine::view(self, machine.ddr_, machine.ddr_bytes_);
                             })
      .def_property_readonly("has_blas", [](const PyMachine& machine) { return machine.has_blas_; })
      .def("lx",
           [](py::object self, int core) {
             const auto lx = self.cast<PyMachine&>().machine_->lx(core);
             return PyMachine::view(self, lx.data(), lx.size());
           })
      .def("run", &PyMachine::run, py::arg("program"), py::arg("args"),
           "Run a launch to completion; args are (address, bytes), int or float in call order.");

  loom::bindings::bind_timing(m);

  m.def(
      "time",
      [](const ProgramHandle& h, const py::sequence& args, const ClockParams& params) {
        const auto values = arguments(*h.program, args);
        const auto table = h.table(values);
        py::gil_scoped_release unlocked;
        return time(*h.program, table, params, values);
      },
      py::arg("program"), py::arg("args"), py::arg("params"),
      "Modelled time of a launch; params is Chip.clock_params(). Addresses and contents of buffers in DDR do "
      "not "
      "matter.");

  m.def(
      "trace",
      [](const ProgramHandle& h, const py::sequence& args, const ClockParams& params, std::size_t max_spans) {
        const auto values = arguments(*h.program, args);
        const auto table = h.table(values);
        Trace found;
        {
          py::gil_scoped_release unlocked;
          found = trace(*h.program, table, params, max_spans, values);
        }
        return loom::bindings::as_dict(found);
      },
      py::arg("program"), py::arg("args"), py::arg("params"), py::arg("max_spans") = 1 << 20,
      "time() with a record of what each unit did when: a dict of columns (see docs/clock.md).");

  m.def("transfer_ns", &transfer_ns, py::arg("bytes"), py::arg("link"), py::arg("params"),
        "Time of a copy over \"pcie\" (host and card) or \"card\" (card to card) in ns.");

  m.def("df16_to_f32", [](py::array_t<std::uint16_t, py::array::c_style | py::array::forcecast> codes) {
    py::array_t<float> values(codes.size());
    df16_to_f32(codes.data(), values.mutable_data(), codes.size());
    return values;
  });
  m.def("f32_to_df16", [](py::array_t<float, py::array::c_style | py::array::forcecast> values) {
    py::array_t<std::uint16_t> codes(values.size());
    f32_to_df16(values.data(), codes.mutable_data(), values.size());
    return codes;
  });
}
