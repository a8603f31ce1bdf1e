// Dispatch of eager operators: key, look-up, run; the host where there is no program.
#include "torch_device/eager.h"

#include <ATen/ThreadLocalPythonObjects.h>
#include <ATen/core/enum_tag.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_set>

#include "torch_device/eager_fused.h"
#include "torch_device/eager_key.h"
#include "torch_device/eager_pending.h"
#include "torch_device/eager_site.h"
#include "torch_device/eager_write.h"
#include "torch_device/fallback.h"
#include "torch_device/launch.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev::eager {
namespace {

std::atomic<Mode> global_mode{Mode::Host};
thread_local bool compiling = false;
PyObject* compiler = nullptr;  // torch_loom.eager.compiler: program(...) and refuse(...)
std::atomic<std::int64_t> hits{0}, misses{0};

/// A thread's own mode goes with PyTorch's thread state, so that backward runs in the mode of its caller.
/// Kept as one of these objects, whose addresses are its values.
const std::string& local_key() {
  static const auto* key = new std::string("torch_loom.eager_mode");
  return *key;
}
std::array<PyObject*, 4> mode_objects{};

int local_mode() {
  using Objects = at::impl::ThreadLocalPythonObjects;
  if (!Objects::contains(local_key())) return -1;
  const PyObject* held = Objects::get(local_key())->ptr(getPyInterpreter());
  for (std::size_t i = 0; i < mode_objects.size(); ++i)
    if (mode_objects[i] == held) return static_cast<int>(i);
  return -1;
}

/// Needs the GIL.
int exchange_local_mode(int value) {
  using Objects = at::impl::ThreadLocalPythonObjects;
  const int before = local_mode();
  if (value < 0) {
    if (before >= 0) Objects::erase(local_key());
  } else {
    PyObject* o = mode_objects.at(static_cast<std::size_t>(value));
    Py_INCREF(o);
    Objects::set(local_key(), std::make_shared<c10::SafePyObject>(o, getPyInterpreter()));
  }
  return before;
}

Mode mode() {
  const int local = local_mode();
  return local >= 0 ? static_cast<Mode>(local) : global_mode.load(std::memory_order_relaxed);
}

std::shared_ptr<const Entry> find(Table& table, const std::string& key) {
  const std::shared_lock lock(table.mutex);
  const auto found = table.entries.find(key);
  return found == table.entries.end() ? nullptr : found->second;
}

const Program* accepted(const Entry& entry, const Call& call) {
  for (const auto& p : entry.programs)
    if (p->accepts(call)) return p.get();
  return nullptr;
}

void remember(Table& table, const std::string& key, std::shared_ptr<const Entry> entry) {
  const std::unique_lock lock(table.mutex);
  table.entries[key] = std::move(entry);
}

/// What the compiler said about a call without a program.
struct Answer {
  std::shared_ptr<const Entry> entry;  // null: it did not decide
  std::string doubt;                   // tracing raised this error, which may be the caller's
};

Answer compile(const Site& site, const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
               const std::string& key, const Call& call, const std::shared_ptr<const Entry>& before) {
  misses.fetch_add(1, std::memory_order_relaxed);
  const py::gil_scoped_acquire gil;
  const Compiling now;
  const py::list call_arguments = described(site, op.schema(), arguments);
  const py::object answer = py::reinterpret_borrow<py::object>(compiler).attr("program")(
      site.table->name, site.table->overload, py::bytes(key), call_arguments, static_cast<int>(call.card),
      before ? before->programs.size() : 0);
  if (answer.is(py::bool_(false))) return {};  // not now: the compiler itself is at work
  if (py::isinstance<py::str>(answer)) return {nullptr, answer.cast<std::string>()};
  auto entry = std::make_shared<Entry>();
  if (answer.is_none()) {
    entry->refused = true;
    if (before) entry->programs = before->programs;
  } else {
    entry->programs = programs_of(answer);
    entry->structural = key;
    entry->arguments = std::make_shared<const Held>(call_arguments);
  }
  return {entry, {}};
}

/// Tracing raised an error that may be the caller's. The host decides: it raises the operator's own error, or
/// its success shows that the operator cannot be traced.
void ask_host(const Site& site, const c10::OperatorHandle& op, torch::jit::Stack* stack,
              const std::string& key, const std::string& structural, const std::string& doubt) {
  run_on_host(op, stack);
  auto entry = std::make_shared<Entry>();
  entry->refused = true;
  remember(*site.table, key, entry);
  {
    const py::gil_scoped_acquire gil;
    const Compiling now;
    py::reinterpret_borrow<py::object>(compiler).attr("refuse")(site.table->name, site.table->overload,
                                                                py::bytes(structural), doubt);
  }
  note_fallback(op);
}

rt::Origin line() {
  const py::gil_scoped_acquire gil;
  return python_line();
}

void execute(const Site& site, const Program& program, Call& call, torch::jit::Stack* stack,
             c10::ArrayRef<c10::IValue> arguments) {
  const rt::Origin origin = line();
  c10::SmallVector<at::Tensor, 2> into;
  for (const std::size_t i : site.written) into.push_back(arguments[i].toTensor());
  check_written(site, arguments);
  auto results = compute(site, program, call, into, origin);
  torch::jit::drop(*stack, arguments.size());
  if (into.empty()) {
    for (auto& r : results) stack->emplace_back(std::move(r));
  } else {
    for (auto& t : into) stack->emplace_back(std::move(t));
  }
}

/// Structured operators of PyTorch: the ones that check what they are given before a kernel runs.
bool structured(const c10::OperatorHandle& op) {
  // Functional forms have a kernel of the CPU then; others of that dispatch key are compositions of views.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

void to_host(const Site& site, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_written(site, torch::jit::last(*stack, op.schema().arguments().size()));
  fallback(op, stack);
}

}  // namespace

namespace {

/// Sets what Dynamo calls for each new frame of this thread and returns what was set before.
py::object exchange_frame_watcher(const py::object& watcher) {
  return py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")(watcher);
}

}  // namespace

Compiling::Compiling()
    : keys_(c10::impl::LocalDispatchKeySet(c10::impl::PODLocalDispatchKeySet{})),
      before_(compiling),
      watcher_(exchange_frame_watcher(py::none())) {
  compiling = true;
}
Compiling::~Compiling() {
  compiling = before_;
  const py::error_scope raised;  // an error may be on its way
  try {
    exchange_frame_watcher(watcher_);
  } catch (const py::error_already_set& e) {
    TORCH_WARN("torch.compile will not see further frames of this thread: ", e.what());
  }
}

bool is_compiling() { return compiling; }
PyObject* eager_compiler() { return compiler; }
bool defers() { return !compiling && compiler != nullptr && !is_running() && mode() == Mode::Fused; }

void run_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Mode m = mode();
  const Site& site = site_of(op);
  if (m == Mode::Host || compiling || compiler == nullptr || site.form == Form::None)
    return to_host(site, op, stack);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  thread_local std::string key;
  key.clear();
  Call call;
  switch (describe(site, op.schema(), arguments, &key, &call)) {
    case Described::Nothing:  // no element to compute from: no fallback to speak of
      return run_on_host(op, stack);
    case Described::Odd:
      return to_host(site, op, stack);
    case Described::Call:
      break;
  }
  key.push_back(static_cast<char>(call.card));  // programs in memory belong to a card
  auto entry = find(*site.table, key);
  const Program* program = entry ? accepted(*entry, call) : nullptr;
  if (program == nullptr && !(entry && entry->refused)) {
    const std::string structural = key.substr(0, key.size() - 1), whole_key = key;
    // Programs from the disk may all be for other sizes: then one more is compiled.
    for (int i = 0; i < 2 && program == nullptr && !(entry && entry->refused); ++i) {
      Answer answer = compile(site, op, arguments, structural, call, entry);
      if (!answer.doubt.empty()) return ask_host(site, op, stack, whole_key, structural, answer.doubt);
      entry = std::move(answer.entry);
      if (entry) remember(*site.table, whole_key, entry);
      program = entry ? accepted(*entry, call) : nullptr;
      if (!entry) break;  // this is no time to compile
    }
  } else {
    hits.fetch_add(1, std::memory_order_relaxed);
  }
  if (program == nullptr) return to_host(site, op, stack);
  if (m == Mode::Fused && defer(site, entry, *program, call, stack, arguments.size())) return;
  const c10::DeviceIndex card = call.card;
  execute(site, *program, call, stack, arguments);
  if (m == Mode::Debug) rt::card(card).stream(current_stream(card)).synchronize();
}

namespace {

/// Composite operators that are better compiled whole than taken apart.
bool whole(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::native_layer_norm",
                                                     "aten::native_group_norm",
                                                     "aten::embedding",
                                                     "aten::masked_fill",
                                                     "aten::rsub",
                                                     "aten::addmv",
                                                     "aten::logcumsumexp",
                                                     "aten::logit",
                                                     "aten::silu_backward"};
  return names.contains(name);
}

/// Operators that got the recorder's kernel, for listings.
std::vector<std::string>& registered() {
  static auto* names = new std::vector<std::string>;
  return *names;
}

bool wants_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  if (op.operator_name().name.rfind("aten::", 0) != 0) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::PrivateUse1)) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return false;
  if (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd))
    return whole(op.operator_name().name);
  return structured(op);
}

}  // namespace

namespace {

/// PyTorch asks other devices for these two; they are the general operators under another name.
void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  run_operator(op, stack);
}
void convolution_backward(const c10::OperatorHandle& called, torch::jit::Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(called.schema().arguments().size());
  const std::vector<std::int64_t> bias{first->toTensor().size(1)};
  stack->insert(first + 3, c10::IValue(bias));
  run_operator(op, stack);
}

}  // namespace

torch::jit::Stack recorded(const char* name, const char* overload, torch::jit::Stack stack) {
  run_operator(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), &stack);
  return stack;
}

void register_operators() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library->impl("convolution_backward_overrideable",
                torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !wants_kernel(*op)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_operator>());
    registered().push_back(full);
  }
}

void bind_eager(py::module_& m) {
  py::class_<Program, std::shared_ptr<Program>>(m, "EagerProgram")
      .def(py::init<const py::object&, const py::list&>(), py::arg("program"), py::arg("kernels"));
  m.def("set_eager_compiler", [](const py::object& f) { compiler = py::object(f).release().ptr(); });
  m.def("set_eager_mode", [](int value) { global_mode.store(static_cast<Mode>(value)); });
  for (std::size_t i = 0; i < mode_objects.size(); ++i)
    mode_objects[i] = py::str("eager mode " + std::to_string(i)).release().ptr();
  m.def("exchange_local_eager_mode", &exchange_local_mode);
  m.def(
      "finish_pending", [](int card) { finish_pending(static_cast<c10::DeviceIndex>(card)); },
      py::arg("card") = -1, py::call_guard<py::gil_scoped_release>());
  m.def("set_fuse_patience", &set_patience);
  m.def("forget_eager_graphs", &forget_graphs);
  m.def("eager_mode", [] { return static_cast<int>(mode()); });
  m.def("eager_counts", [] {
    py::dict d;
    d["hits"] = hits.load();
    d["misses"] = misses.load();
    d["launches"] = launches();
    d["kernels"] = kernels_launched();
    const FusedCounts fused = fused_counts();
    d["recorded"] = fused.recorded;
    d["fused"] = fused.fused;
    d["replayed"] = fused.replayed;
    return d;
  });
  m.def("eager_tables", [] {
    py::list out;
    for (const auto& t : tables()) {
      const std::shared_lock lock(t->mutex);
      std::size_t programs = 0, refused = 0;
      for (const auto& [key, entry] : t->entries) {
        programs += entry->programs.size();
        refused += entry->refused ? 1 : 0;
      }
      out.append(py::make_tuple(t->name, t->overload, programs, refused));
    }
    return out;
  });
  m.def("eager_operators", [] { return registered(); });
  m.def("eager_compiles", [](const std::string& name, const std::string& overload) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    return op.has_value() && site_of(*op).form != Form::None;
  });
  m.def("clear_eager_programs", [] {
    for (const auto& t : tables()) {
      std::unordered_map<std::string, std::shared_ptr<const Entry>> gone;
      const std::unique_lock lock(t->mutex);
      gone.swap(t->entries);
    }
  });
}

}  // namespace loom::dev::eager
