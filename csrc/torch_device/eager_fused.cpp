// Recording: which calls are held back, and as what. Running is in eager_fused_run.cpp.
#include "torch_device/eager_fused.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "torch_device/eager_pending.h"
#include "torch_device/eager_write.h"
#include "torch_device/launch.h"
#include "torch_device/storage.h"

namespace loom::dev::eager {
namespace {

constexpr std::size_t kMaxNodes = 512;
/// Part of a card's memory that results and operands of pending work may take.
constexpr std::int64_t kMemoryShare = 8;

std::map<std::pair<c10::DeviceIndex, std::uint64_t>, std::unique_ptr<Pending>>& graphs() {
  static auto* g = new std::map<std::pair<c10::DeviceIndex, std::uint64_t>, std::unique_ptr<Pending>>;
  return *g;
}

Pending& graph_of(c10::DeviceIndex card) {
  const std::uint64_t stream = current_stream(card);
  auto& slot = graphs()[{card, stream}];
  if (!slot) slot = std::make_unique<Pending>(card, stream);
  slot->make_room();
  return *slot;
}

/// Work that another stream holds back on the storage of `t` comes first.
void finish_elsewhere(const at::Tensor& t, const Pending& here) {
  const auto* m = static_cast<const Mention*>(peek_record(t).promise.get());
  if (m != nullptr && m->graph != nullptr && m->graph != &here) m->graph->run();
}

rt::Origin line() {
  const pybind11::gil_scoped_acquire gil;
  return python_line();
}

/// Would a tensor of these sizes and strides cover its memory without a gap and only once?
bool dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 6> dims;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) dims.emplace_back(strides[d], sizes[d]);
  std::sort(dims.begin(), dims.end());
  std::int64_t step = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != step) return false;
    step *= size;
  }
  return true;
}

std::int64_t numel(c10::IntArrayRef sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) n *= s;
  return n;
}

FusedCounts counts;
std::atomic<bool> used{false};  // something was recorded in this process

/// Is the number one that every kernel takes? Kernels have numbers of 32 bits and refuse wider ones.
bool narrow(const Number& n) {
  return n.floating || (n.whole >= std::numeric_limits<std::int32_t>::min() &&
                        n.whole <= std::numeric_limits<std::int32_t>::max());
}

}  // namespace

FusedCounts& mutable_fused_counts() { return counts; }
FusedCounts fused_counts() { return counts; }

std::recursive_mutex& recorder_mutex() {
  static auto* m = new std::recursive_mutex;
  return *m;
}

Lock::Lock() {
  if (recorder_mutex().try_lock()) return;
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release others;  // the holder may wait for it
    recorder_mutex().lock();
  } else {
    recorder_mutex().lock();
  }
}
Lock::~Lock() { recorder_mutex().unlock(); }

bool fits(const at::Tensor& t) {
  if (t.device().type() != kSpyre || t.is_neg() || t.is_conj() || t.numel() == 0) return false;
  const rt::Record& r = peek_record(t);
  if (r.root != nullptr || r.aliased || r.raw || r.dtype != dtype_of(t.scalar_type())) return false;
  if (r.layout->kind != rt::Kind::Default) return false;
  const auto* m = static_cast<const Mention*>(r.promise.get());
  if (m != nullptr && !m->failure.empty()) return false;
  std::int64_t step = 1, last = t.storage_offset();
  for (std::size_t a = r.layout->axes.size(); a-- > 0;) {
    if (r.layout->axes[a].host_stride != step) return false;
    step *= r.layout->axes[a].size;
  }
  for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return step == r.layout->elements && last < step &&
         t.storage().nbytes() == static_cast<std::size_t>(step) * t.itemsize();
}

View Pending::view(const at::Tensor& t) {
  rt::Record& r = peek_record(t);
  if (!r.promise) r.promise = std::make_unique<Mention>();
  auto& mention = static_cast<Mention&>(*r.promise);
  if (mention.graph == nullptr) {
    mention.graph = this;
    mention.slot = static_cast<std::int32_t>(slots_.size());
    slots_.push_back({t.storage(), &r, 0, r.bytes != 0});
    r.settled.store(false, std::memory_order_release);
    bytes_ += r.layout->bytes;
  }
  View v;
  v.slot = mention.slot;
  v.offset = t.storage_offset();
  v.sizes.assign(t.sizes().begin(), t.sizes().end());
  v.strides.assign(t.strides().begin(), t.strides().end());
  v.type = t.scalar_type();
  return v;
}

View Pending::read(const at::Tensor& t) {
  View v = view(t);
  Slot& slot = slots_[static_cast<std::size_t>(v.slot)];
  if (!slot.defined) {  // memory that nobody wrote: whatever it holds
    allocate_block(*slot.record);
    slot.defined = true;
  }
  return v;
}

View Pending::write(const at::Tensor& t) {
  View v = view(t);
  Slot& slot = slots_[static_cast<std::size_t>(v.slot)];
  if (!slot.defined && !(numel(v.sizes) == slot.record->layout->elements && dense(v.sizes, v.strides)))
    allocate_block(*slot.record);  // what is not written stays what it is
  slot.defined = true;
  return v;
}

void Pending::append(Node&& node) {
  std::uint64_t structure =
      reinterpret_cast<std::uintptr_t>(node.program) + static_cast<std::uint64_t>(node.kind);
  const auto mix = [&](std::int64_t v) {
    structure = (structure ^ static_cast<std::uint64_t>(v)) * 0x9E3779B97F4A7C15ull;
    structure ^= structure >> 29;
  };
  const auto mention = [&](const View& v) {
    if (v.slot < 0) return;
    slots_[static_cast<std::size_t>(v.slot)].last = nodes_.size();
    for (const std::int64_t s : v.sizes) mix(s);
    for (const std::int64_t s : v.strides) mix(s);
    mix(v.offset);
  };
  for (const View& v : node.reads) mention(v);
  for (const View& v : node.writes) mention(v);
  nodes_.push_back(std::move(node));
  ++counts.recorded;
  used.store(true, std::memory_order_release);
  repeated_ = repetition_.add(structure);
}

void Pending::make_room() {
  if (busy_ || nodes_.empty()) return;
  if (repeated_ != 0 && repeated_ <= nodes_.size()) return run(nodes_.size() - repeated_);
  const auto limit = static_cast<std::int64_t>(rt::card(card_).memory().limit()) / kMemoryShare;
  if (nodes_.size() >= kMaxNodes || bytes_ > limit) run();
}

namespace {

/// Appends a node that reads and writes these tensors; an undefined one stands for a result that is None.
void take(Node&& node, c10::DeviceIndex card, c10::ArrayRef<at::Tensor> reads,
          c10::ArrayRef<at::Tensor> writes) {
  const Lock lock;
  Pending& graph = graph_of(card);
  for (const auto& tensors : {reads, writes})
    for (const at::Tensor& t : tensors)
      if (t.defined()) finish_elsewhere(t, graph);
  {
    const Pending::Busy taking(graph);
    for (const at::Tensor& t : reads) node.reads.push_back(graph.read(t));
    for (const at::Tensor& t : writes) node.writes.push_back(t.defined() ? graph.write(t) : View{});
  }
  graph.append(std::move(node));
}

}  // namespace

bool defer(const Site& site, const std::shared_ptr<const Entry>& entry, const Program& program, Call& call,
           torch::jit::Stack* stack, std::size_t arguments) {
  const auto given = torch::jit::last(*stack, arguments);
  check_written(site, given);
  c10::SmallVector<Shape, 3> shapes;
  if (!program.shapes(call, &shapes)) return false;
  for (const at::Tensor& t : call.tensors)
    if (!fits(t)) return false;
  // A number that may be refused is refused in its own call.
  if (!std::all_of(call.numbers.begin(), call.numbers.end(), narrow)) return false;
  c10::SmallVector<at::Tensor, 3> results;
  if (site.written.empty()) {
    for (const Shape& s : shapes) {
      results.push_back(s.none ? at::Tensor() : promise_tensor(s.sizes, s.strides, s.type, call.card));
      if (!s.none && !(dense(s.sizes, s.strides) && fits(results.back()))) return false;
    }
  } else {
    for (std::size_t i = 0; i < site.written.size(); ++i) {
      const at::Tensor& into = given[site.written[i]].toTensor();
      if (shapes[i].none || into.device().index() != call.card) return false;
      prepare_written(site, into, shapes[i].sizes, shapes[i].type);
      if (!fits(into)) return false;
      results.push_back(into);
    }
  }
  Node node;
  node.site = &site;
  node.entry = entry;
  node.program = &program;
  node.numbers = call.numbers;
  node.origin = line();
  take(std::move(node), call.card, call.tensors, results);
  call.tensors.clear();
  torch::jit::drop(*stack, arguments);
  for (at::Tensor& t : results) stack->emplace_back(std::move(t));
  return true;
}

bool defer_copy(const at::Tensor& dst, const at::Tensor& src) {
  const auto convertible = [](const at::Tensor& t) {
    return t.scalar_type() == at::kHalf || t.scalar_type() == at::kFloat;
  };
  if (!defers() || dst.device() != src.device() || !fits(dst) || !fits(src)) return false;
  if (dst.scalar_type() != src.scalar_type() && !(convertible(dst) && convertible(src))) return false;
  Node node;
  node.kind = Node::Kind::Copy;
  node.origin = line();
  take(std::move(node), dst.device().index(), src, dst);
  return true;
}

bool defer_fill(const at::Tensor& self, const at::Scalar& value) {
  if (!defers() || !fits(self) || value.isComplex()) return false;
  Node node;
  node.kind = Node::Kind::Fill;
  Number n;
  n.floating = at::isFloatingType(self.scalar_type());
  if (!n.floating && value.isFloatingPoint()) return false;
  n.real = value.toDouble();
  n.whole = n.floating ? 0 : value.toLong();
  if (!narrow(n) || (n.floating && !std::isfinite(n.real))) return false;
  node.numbers.push_back(n);
  node.origin = line();
  take(std::move(node), self.device().index(), {}, self);
  return true;
}

}  // namespace loom::dev::eager

namespace loom::dev {

using eager::Lock;
using eager::Mention;

void settle(rt::Record& r) {
  const Lock lock;
  auto* m = static_cast<Mention*>(r.promise.get());
  if (m != nullptr && m->graph != nullptr && !m->graph->busy()) m->graph->run();
  TORCH_CHECK(m == nullptr || m->failure.empty(), m == nullptr ? "" : m->failure);
  if (r.bytes == 0) allocate_block(r);
  if (m == nullptr || m->graph == nullptr) r.settled.store(true, std::memory_order_release);
}

void finish_pending(c10::DeviceIndex card) {
  if (!eager::used.load(std::memory_order_acquire)) return;
  const Lock lock;
  for (auto& [where, graph] : eager::graphs())
    if ((card < 0 || card == where.first) && !graph->busy() && !graph->empty()) graph->run();
}

}  // namespace loom::dev
