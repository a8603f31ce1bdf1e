// Counting, warning and switching of the host fallback. Random operators draw from the card's generator,
// also on this way.
#include "torch_device/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <atomic>
#include <mutex>

#include "torch_device/backend.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

std::mutex mutex;
std::map<std::string, std::int64_t>& counts() {
  static auto* c = new std::map<std::string, std::int64_t>;
  return *c;
}
std::map<std::string, bool>& warned() {
  static auto* w = new std::map<std::string, bool>;
  return *w;
}
std::atomic<FallbackMode> mode{FallbackMode::Warn};
void (*hook)(const std::string&) = nullptr;

std::string full_name(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

/// Makes the host's default generator continue the card's sequence while an operator without a generator
/// argument runs.
class LentGenerator {
 public:
  explicit LentGenerator(at::Generator device)
      : device_(std::move(device)), host_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(host_.mutex());
    saved_ = host_.get_state();
    host_.set_state(device_.get_state());
  }
  ~LentGenerator() {
    const std::lock_guard lock(host_.mutex());
    device_.set_state(host_.get_state());
    host_.set_state(saved_);
  }
  LentGenerator(const LentGenerator&) = delete;
  LentGenerator& operator=(const LentGenerator&) = delete;

 private:
  at::Generator device_, host_;
  at::Tensor saved_;
};

c10::DeviceIndex device_of(const torch::jit::Stack& stack, std::size_t first) {
  for (std::size_t i = first; i < stack.size(); ++i)
    if (stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().device().type() == kSpyre)
      return stack[i].toTensor().device().index();
  return current_device();
}

/// Operators that take host tensors beside device tensors on every device: indices, lengths, steps.
constexpr const char* kMixed[] = {"aten::index",        "aten::_index_put",   "aten::_unsafe_index",
                                  "aten::tensor_split", "aten::_pack_padded", "aten::segment_reduce",
                                  "aten::_fused_",      "aten::_foreach_"};

/// Refuses host tensors with dims beside device tensors, and tensors of two cards.
void check_devices(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string name = full_name(op);
  std::optional<c10::Device> device;
  bool host = false;
  auto look = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (t.is_cpu()) {
      host |= t.dim() > 0;
      return;
    }
    if (t.device().type() != kSpyre) return;
    TORCH_CHECK(!device || *device == t.device(), "Expected all tensors to be on the same device, but ", name,
                " got tensors on ", *device, " and ", t.device());
    device = t.device();
  };
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) look(stack[i].toTensor());
    if (stack[i].isTensorList())
      for (const at::Tensor& t : stack[i].toTensorVector()) look(t);
  }
  if (!host || !device) return;
  for (const char* mixed : kMixed)
    if (name.starts_with(mixed)) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", name, " got tensors on ", *device,
              " and cpu");
}

}  // namespace

void check_allowed(const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(mode.load() != FallbackMode::Error,
                              "Spyre backend does not support: ", full_name(op),
                              " in eager mode, and TORCH_LOOM_FALLBACK=error forbids running it on the CPU");
}

void note_fallback(const c10::OperatorHandle& op) {
  const std::string name = full_name(op);
  check_allowed(op);
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    ++counts()[name];
    first = !std::exchange(warned()[name], true);
  }
  if (first && mode.load() == FallbackMode::Warn && hook != nullptr) hook(name);
}

namespace {

/// Runs the operator on the CPU; its devices have been checked.
void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t begin = stack->size() - arguments.size();
  const c10::Device card{c10::DeviceType::PrivateUse1, device_of(*stack, begin)};
  bool takes_generator = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "generator") continue;
    takes_generator = true;
    c10::IValue& v = (*stack)[begin + i];
    v = host_generator(v.isNone() ? std::nullopt : std::optional<at::Generator>(v.toGenerator()), card);
  }
  if (!takes_generator && op.hasTag(at::Tag::nondeterministic_seeded)) {
    const LentGenerator lent(host_generator(std::nullopt, card));
    return at::native::cpu_fallback(op, stack);
  }
  at::native::cpu_fallback(op, stack);
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);
  compute(op, stack);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_devices(op, *stack);  // a call that is refused is no fallback
  note_fallback(op);
  compute(op, stack);
}

std::map<std::string, std::int64_t> fallback_counts() {
  const std::lock_guard lock(mutex);
  return counts();
}

void reset_fallback_counts() {
  const std::lock_guard lock(mutex);
  counts().clear();
}

void set_fallback_mode(FallbackMode m) { mode.store(m); }
FallbackMode fallback_mode() { return mode.load(); }
void set_fallback_hook(void (*h)(const std::string&)) { hook = h; }

}  // namespace loom::dev
