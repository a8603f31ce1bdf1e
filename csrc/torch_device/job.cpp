// Jobs from Python: programs that run as one unit, see runtime/job.h.
#include "runtime/job.h"

#include "torch_device/arguments.h"
#include "torch_device/launch.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev {

namespace {

/// A step: (plan, arguments), each argument ("external", i), ("own", i) or ("number", i).
rt::JobStep job_step(const py::handle& source) {
  const auto pair = source.cast<std::pair<std::shared_ptr<rt::Plan>, py::list>>();
  rt::JobStep step{pair.first, {}};
  for (const py::handle item : pair.second) {
    const auto named = item.cast<std::pair<std::string, std::size_t>>();
    rt::JobArg arg;
    arg.index = named.second;
    if (named.first == "external") {
      arg.kind = rt::JobArg::Kind::External;
    } else if (named.first == "own") {
      arg.kind = rt::JobArg::Kind::Own;
    } else if (named.first != "number") {
      throw py::value_error("an argument of a job is external, own or number, not '" + named.first + "'");
    }
    step.args.push_back(arg);
  }
  return step;
}

std::shared_ptr<rt::Job> make_job(const py::list& steps, const py::list& own, std::uint64_t pool_bytes) {
  std::vector<rt::JobStep> program;
  for (const py::handle step : steps) program.push_back(job_step(step));
  std::vector<chip::ArgValue> places;
  for (const py::handle o : own) places.push_back(place(o));
  return rt::Job::make(std::move(program), std::move(places), pool_bytes);
}

/// Launch with tensors and numbers of the caller; `pool` is a tensor of at least pool_bytes, or None.
void launch_job(const rt::Job& job, const py::handle& tensors, const py::handle& numbers,
                const py::handle& pool) {
  const Items items(tensors), given(numbers);
  rt::Card& card = job.steps().front().plan->card();
  const std::uint64_t stream = current_stream(static_cast<c10::DeviceIndex>(card.index()));
  if (items.size() != job.externals())
    throw rt::LaunchError("the job takes " + std::to_string(job.externals()) + " tensors, got " +
                          std::to_string(items.size()));
  std::vector<chip::ArgValue> externals(items.size());
  std::vector<std::int64_t> values;
  for (const rt::JobStep& step : job.steps())
    for (std::size_t i = 0; i < step.args.size(); ++i) {
      const std::size_t at = step.args[i].index;
      if (step.args[i].kind == rt::JobArg::Kind::External) {
        externals[at] = buffer(*step.plan, i, items.data()[at], stream);
      } else if (step.args[i].kind == rt::JobArg::Kind::Number) {
        if (at >= given.size()) throw rt::LaunchError("the job takes more numbers than it was given");
        values.push_back(number(*step.plan, i, given.data()[at]).number);
      }
    }
  chip::ArgValue memory;
  if (!pool.is_none()) {
    rt::Record& r = record_of(pool.cast<at::Tensor>());
    rt::note_use(r, stream);
    memory.address = r.address;
    memory.bytes = r.bytes;
  }
  const rt::Origin where = python_line();
  const py::gil_scoped_release release;
  job.launch(externals, values, memory, card.stream(stream), where);
}

}  // namespace

void bind_job(py::module_& m) {
  py::class_<rt::Job, std::shared_ptr<rt::Job>>(m, "Job")
      .def(py::init(&make_job), py::arg("steps"), py::arg("own"), py::arg("pool_bytes"))
      .def_property_readonly("pool_bytes", &rt::Job::pool_bytes)
      .def("launch", &launch_job, py::arg("tensors"), py::arg("numbers"), py::arg("pool"));
}

}  // namespace loom::dev
