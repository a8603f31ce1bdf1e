// Dispatch of eager operators: key, look-up, run; the host where there is no program.
#include "torch_device/eager.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

#include "torch_device/eager_key.h"
#include "torch_device/eager_site.h"
#include "torch_device/fallback.h"
#include "torch_device/launch.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev::eager {
namespace {

std::atomic<Mode> global_mode{Mode::Host};
thread_local int local_mode = -1;  // -1: follow the global mode
thread_local bool compiling = false;
PyObject* compiler = nullptr;  // torch_loom.eager.compiler: program(...) and refuse(...)
std::atomic<std::int64_t> hits{0}, misses{0};

Mode mode() {
  return local_mode >= 0 ? static_cast<Mode>(local_mode) : global_mode.load(std::memory_order_relaxed);
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

/// Compiling happens outside of the dispatch state of the operator that asked for it.
class CleanState {
 public:
  CleanState() { compiling = true; }
  ~CleanState() { compiling = false; }
  CleanState(const CleanState&) = delete;
  CleanState& operator=(const CleanState&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_{c10::impl::LocalDispatchKeySet(c10::impl::PODLocalDispatchKeySet{})};
};

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
  const CleanState clean;
  const py::object answer = py::reinterpret_borrow<py::object>(compiler).attr("program")(
      site.table->name, site.table->overload, py::bytes(key), described(site, op.schema(), arguments),
      static_cast<int>(call.card), before ? before->programs.size() : 0);
  if (answer.is(py::bool_(false))) return {};  // not now: the compiler itself is at work
  if (py::isinstance<py::str>(answer)) return {nullptr, answer.cast<std::string>()};
  auto entry = std::make_shared<Entry>();
  if (answer.is_none()) {
    entry->refused = true;
    if (before) entry->programs = before->programs;
  } else {
    for (const auto& p : answer) entry->programs.push_back(p.cast<std::shared_ptr<Program>>());
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
    py::reinterpret_borrow<py::object>(compiler).attr("refuse")(site.table->name, site.table->overload,
                                                                py::bytes(structural), doubt);
  }
  note_fallback(op);
}

/// Overlapping writes of elementwise operators are refused as on the CPU, wherever the operator runs.
void check_written(const Site& site, c10::ArrayRef<c10::IValue> arguments) {
  if (!site.pointwise) return;
  for (const std::size_t w : site.written) {
    const at::Tensor& self = arguments[w].toTensor();
    at::assert_no_internal_overlap(self);
    for (const std::size_t i : site.inputs)
      if (arguments[i].isTensor() && arguments[i].toTensor().defined())
        at::assert_no_partial_overlap(self, arguments[i].toTensor());
  }
}

/// Results of an operator that writes its arguments go to where those lie.
void write_back(const Site& site, const at::Tensor& into, const at::Tensor& result) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), into.scalar_type()), "result type ",
              c10::toString(result.scalar_type()), " can't be cast to the desired output type ",
              c10::toString(into.scalar_type()));
  if (site.form == Form::Out) {
    at::native::resize_output(into, result.sizes());
  } else {
    TORCH_CHECK(into.sizes() == result.sizes(), "output with shape ", into.sizes(),
                " doesn't match the broadcast shape ", result.sizes());
  }
  copy_elements(into, result, false);
}

/// May the program write its result straight over `self`? An elementwise kernel reads and writes an element
/// in the same place.
bool direct(const Site& site, const Program& program, const at::Tensor& self, const Call& call) {
  if (site.form != Form::InPlace || !site.pointwise || !program.writes_once()) return false;
  if (!has_layout(self, rt::Kind::Default) || !self.is_same(call.tensors[0])) return false;
  for (std::size_t i = 1; i < call.tensors.size(); ++i) {
    const at::Tensor& t = call.tensors[i];
    if (t.is_alias_of(self) && !(t.sizes() == self.sizes() && t.strides() == self.strides())) return false;
  }
  return program.result_matches(call, self);
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
  const bool over = into.size() == 1 && direct(site, program, into[0], call);
  auto results = program.run(call, origin, over ? &into[0] : nullptr);
  if (!into.empty() && !over)
    for (std::size_t i = 0; i < into.size(); ++i) write_back(site, into[i], results[i]);
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
    Answer answer = compile(site, op, arguments, structural, call, entry);
    if (!answer.doubt.empty()) return ask_host(site, op, stack, whole_key, structural, answer.doubt);
    entry = std::move(answer.entry);
    if (entry) remember(*site.table, whole_key, entry);
    program = entry ? accepted(*entry, call) : nullptr;
  } else {
    hits.fetch_add(1, std::memory_order_relaxed);
  }
  if (program == nullptr) return to_host(site, op, stack);
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
  m.def("exchange_local_eager_mode", [](int value) { return std::exchange(local_mode, value); });
  m.def("eager_mode", [] { return static_cast<int>(mode()); });
  m.def("eager_counts", [] {
    py::dict d;
    d["hits"] = hits.load();
    d["misses"] = misses.load();
    d["launches"] = launches();
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
