// Running pending work: as one program where the target has one for the graph, node by node otherwise.
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <algorithm>
#include <utility>

#include "torch_device/eager_fused.h"
#include "torch_device/eager_pending.h"
#include "torch_device/eager_write.h"
#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev::eager {
namespace {

constexpr std::size_t kPrograms = 4;       // per graph, each under guards of its own
constexpr std::size_t kRemembered = 2048;  // graphs
int patience = 1;
thread_local int running = 0;

std::unordered_map<std::string, Known>& known_graphs() {
  static auto* g = new std::unordered_map<std::string, Known>;
  return *g;
}

/// Pending work runs on its own stream, and outside of the dispatch state of whoever needed it.
class Running {
 public:
  Running(c10::DeviceIndex card, std::uint64_t stream) : card_(card), before_(current_stream(card)) {
    ++running;
    select_stream(card, stream);
  }
  ~Running() {
    select_stream(card_, before_);
    --running;
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  c10::DeviceIndex card_;
  std::uint64_t before_;
  c10::impl::ForceDispatchKeyGuard keys_{c10::impl::LocalDispatchKeySet(c10::impl::PODLocalDispatchKeySet{})};
  at::AutoDispatchBelowADInplaceOrView below_;
};

template <typename T>
void put(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put(std::string& key, const c10::DimVector& dims) {
  put(key, static_cast<std::uint8_t>(dims.size()));
  for (const std::int64_t d : dims) put(key, d);
}

std::string lines(c10::ArrayRef<Node> nodes) {
  const auto text = [](const Node& n) {
    return n.origin ? *n.origin : std::string("a line outside of Python");
  };
  const std::string first = text(nodes.front()), last = text(nodes.back());
  return first == last ? first : first + " to " + last;
}

/// Is the error being handled the user's interrupt? It says nothing about the work that it met.
bool interrupted() {
  try {
    throw;
  } catch (const py::error_already_set& e) {
    const py::gil_scoped_acquire gil;
    return e.matches(PyExc_KeyboardInterrupt);
  } catch (...) {
    return false;
  }
}

py::tuple ints(c10::IntArrayRef values) {
  py::tuple out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = values[i];
  return out;
}

py::object torch_dtype(c10::ScalarType t) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(t)));
}

}  // namespace

bool is_running() { return running > 0; }

void set_patience(int n) { patience = n; }

void forget_graphs() {
  const Lock lock;
  known_graphs().clear();
}

std::vector<std::shared_ptr<const Program>> programs_of(const py::handle& list) {
  std::vector<std::shared_ptr<const Program>> out;
  for (const auto& p : list) out.push_back(p.cast<std::shared_ptr<Program>>());
  return out;
}

at::Tensor Pending::base(const Slot& slot) const {
  c10::DimVector sizes, strides;
  for (const rt::AxisMap& a : slot.record->layout->axes) {
    sizes.push_back(a.size);
    strides.push_back(a.host_stride);
  }
  return make_view(slot.storage, sizes, strides, 0, scalar_type_of(slot.record->dtype));
}

at::Tensor Pending::tensor(const View& v) const {
  return make_view(slots_[static_cast<std::size_t>(v.slot)].storage, v.sizes, v.strides, v.offset, v.type);
}

// ---- what a run of nodes is ----

Piece Pending::piece(std::size_t begin, std::size_t end) const {
  Piece p;
  p.begin = begin;
  p.end = end;
  p.call.card = card_;
  std::vector<std::int32_t> local(slots_.size(), -1);
  const auto view = [&](const View& v) {
    std::int32_t number = -1;
    if (v.slot >= 0) {
      auto& place = local[static_cast<std::size_t>(v.slot)];
      if (place < 0) {
        place = static_cast<std::int32_t>(p.slots.size());
        p.slots.push_back(v.slot);
      }
      number = place;
    }
    for (std::string* key : {&p.key, &p.content}) {
      put(*key, number);
      put(*key, v.offset);
      put(*key, v.sizes);
      put(*key, v.strides);
    }
  };
  for (std::size_t n = begin; n < end; ++n) {
    const Node& node = nodes_[n];
    const char form = node.site == nullptr ? '-' : static_cast<char>('0' + static_cast<int>(node.site->form));
    put(p.key, node.program);
    put(p.key, static_cast<char>(node.kind));
    put(p.key, form);
    p.content += static_cast<char>('0' + static_cast<int>(node.kind));
    p.content += form;
    if (node.entry) {
      const auto& table = *node.site->table;
      p.content += table.name + '.' + table.overload + ' ' + node.entry->structural + '\0';
    }
    for (const View& v : node.reads) view(v);
    for (const View& v : node.writes) view(v);
    for (const Number& x : node.numbers) {
      for (std::string* key : {&p.key, &p.content}) put(*key, x.size ? 's' : x.floating ? 'f' : 'i');
      if (x.size) {
        put(p.key, x.whole);
        put(p.content, x.whole);
      } else {
        p.call.numbers.push_back(x);
      }
    }
  }
  for (const std::int32_t s : p.slots) {
    const Slot& slot = slots_[static_cast<std::size_t>(s)];
    const bool filled = slot.record->bytes != 0;
    const bool live = slot.last >= end || slot.storage.use_count() > 1;
    p.filled.push_back(filled);
    p.live.push_back(live);
    if (!filled && live) p.results.push_back(s);
    for (std::string* key : {&p.key, &p.content}) {
      put(*key, static_cast<char>(slot.record->dtype));
      put(*key, static_cast<char>((filled ? 1 : 0) + (live ? 2 : 0)));
      for (const rt::AxisMap& a : slot.record->layout->axes) put(*key, a.size);
    }
  }
  // Only now: these tensors use the storages too.
  for (std::size_t i = 0; i < p.slots.size(); ++i)
    if (p.filled[i]) p.call.tensors.push_back(base(slots_[static_cast<std::size_t>(p.slots[i])]));
  return p;
}

py::tuple Pending::described(const Piece& p) const {
  std::vector<std::int32_t> local(slots_.size(), -1);
  py::list slots, nodes;
  for (std::size_t i = 0; i < p.slots.size(); ++i) {
    const Slot& slot = slots_[static_cast<std::size_t>(p.slots[i])];
    local[static_cast<std::size_t>(p.slots[i])] = static_cast<std::int32_t>(i);
    py::list sizes;
    for (const rt::AxisMap& a : slot.record->layout->axes) sizes.append(a.size);
    slots.append(py::make_tuple(py::tuple(sizes), torch_dtype(scalar_type_of(slot.record->dtype)),
                                static_cast<bool>(p.filled[i]), static_cast<bool>(p.live[i])));
  }
  const auto view = [&](const View& v) -> py::object {
    if (v.slot < 0) return py::none();
    return py::make_tuple(local[static_cast<std::size_t>(v.slot)], ints(v.sizes), ints(v.strides), v.offset);
  };
  for (std::size_t n = p.begin; n < p.end; ++n) {
    const Node& node = nodes_[n];
    py::list reads, writes, numbers;
    for (const View& v : node.reads) reads.append(view(v));
    for (const View& v : node.writes) writes.append(view(v));
    for (const Number& x : node.numbers)
      numbers.append(py::make_tuple(
          x.floating ? py::object(py::float_(x.real)) : py::object(py::int_(x.whole)), x.size       ? "size"
                                                                                       : x.floating ? "float"
                                                                                                    : "int"));
    const char* kind = node.kind == Node::Kind::Compute ? "compute"
                       : node.kind == Node::Kind::Copy  ? "copy"
                                                        : "fill";
    py::object name = py::none(), overload = py::none(), arguments = py::none();
    if (node.site != nullptr) {
      name = py::str(node.site->table->name);
      overload = py::str(node.site->table->overload);
      arguments = node.entry->arguments->object;
    }
    nodes.append(py::make_tuple(kind, name, overload, arguments, reads, writes, numbers));
  }
  return py::make_tuple(slots, nodes, static_cast<int>(card_));
}

// ---- which way it runs ----

const Program* Pending::program_for(Piece& p, Known& known) {
  const auto accepted = [&]() -> const Program* {
    for (const auto& program : known.programs)
      if (program->accepts(p.call)) return program.get();
    return nullptr;
  };
  if (const Program* found = accepted()) return found;
  if (is_compiling() || eager_compiler() == nullptr || known.cut != 0) return nullptr;
  const auto ask = [&](const py::object& description) {
    const py::object answer =
        py::reinterpret_borrow<py::object>(eager_compiler())
            .attr("graph")(py::bytes(p.content), description, static_cast<int>(card_), known.programs.size());
    if (py::isinstance<py::int_>(answer)) {
      known.cut = answer.cast<std::size_t>();
    } else if (!answer.is_none()) {
      known.programs = programs_of(answer);
    }
  };
  if (!known.asked) {
    known.asked = true;
    const py::gil_scoped_acquire gil;
    const Compiling now;
    ask(py::none());
    if (const Program* found = accepted()) return found;
  }
  if (known.cut != 0 || known.seen++ < patience || known.programs.size() >= kPrograms) return nullptr;
  const py::gil_scoped_acquire gil;
  const Compiling now;
  ask(described(p));
  return accepted();
}

void Pending::run_range(std::size_t begin, std::size_t end) {
  if (end - begin > 1 && !error_) {
    Piece p = piece(begin, end);
    if (running == 1 && known_graphs().size() > kRemembered)
      std::erase_if(known_graphs(), [](const auto& k) { return k.second.programs.empty(); });
    const auto [place, fresh] = known_graphs().try_emplace(p.key);
    Known& known = place->second;
    if (fresh)
      for (std::size_t n = begin; n < end; ++n)
        if (nodes_[n].entry) known.entries.push_back(nodes_[n].entry);
    const Program* program = nullptr;
    try {
      program = program_for(p, known);
    } catch (const std::exception&) {  // the work itself needs no compiler
      error_ = std::current_exception();
    }
    if (program != nullptr) {
      try {
        return run_program(*program, p);
      } catch (const std::exception&) {
        if (overwrites(p)) throw;  // what it has done cannot be done again
        if (interrupted()) error_ = std::current_exception();
      }
    } else if (!error_ && known.cut != 0 && known.cut < end - begin) {
      const std::size_t middle = begin + known.cut;
      p = Piece{};
      run_range(begin, middle);
      return run_range(middle, end);
    }
  }
  replay_range(begin, end);
  ++mutable_fused_counts().replayed;
}

/// One by one. Work that needs what failed is left out; the rest has its values.
void Pending::replay_range(std::size_t begin, std::size_t end) {
  const auto failed = [&](const View& v) {
    return v.slot >= 0 && slots_[static_cast<std::size_t>(v.slot)].failed;
  };
  for (std::size_t n = begin; n < end; ++n) {
    Node& node = nodes_[n];
    bool done = false;
    if (std::none_of(node.reads.begin(), node.reads.end(), failed) &&
        std::none_of(node.writes.begin(), node.writes.end(), failed)) {
      for (int attempt = 0; attempt < 2 && !done; ++attempt) {
        try {
          replay(node);
          done = true;
        } catch (const std::exception&) {
          if (!error_ || (attempt == 0 && interrupted())) error_ = std::current_exception();
          if (!interrupted()) break;
        }
      }
    }
    if (done) continue;
    for (const View& v : node.writes)
      if (v.slot >= 0) slots_[static_cast<std::size_t>(v.slot)].failed = true;
  }
}

/// Does it write to memory that had a value before?
bool Pending::overwrites(const Piece& p) const {
  const auto filled = [&](const View& v) {
    return v.slot >= 0 && slots_[static_cast<std::size_t>(v.slot)].record->bytes != 0;
  };
  for (std::size_t n = p.begin; n < p.end; ++n)
    if (std::any_of(nodes_[n].writes.begin(), nodes_[n].writes.end(), filled)) return true;
  return false;
}

void Pending::run_program(const Program& program, Piece& p) {
  c10::SmallVector<rt::Origin, 16> origins;
  for (std::size_t n = p.begin; n < p.end; ++n) origins.push_back(nodes_[n].origin);
  const auto values = program.run(p.call, origins);
  TORCH_INTERNAL_ASSERT(values.size() == p.results.size(), "a program's outputs and its graph disagree");
  for (std::size_t i = 0; i < values.size(); ++i)
    give(slots_[static_cast<std::size_t>(p.results[i])], values[i]);
  ++mutable_fused_counts().fused;
}

void Pending::give(Slot& slot, const at::Tensor& value) {
  rt::Record &to = *slot.record, &from = peek_record(value);
  if (to.bytes == 0 && value.storage().use_count() == 1 && value.storage_offset() == 0 &&
      from.root == nullptr && from.host_bytes == to.host_bytes && from.dtype == to.dtype &&
      rt::same_bytes(*from.layout, *to.layout))
    return rt::take_block(to, from);
  copy_elements(value.sizes() == base(slot).sizes()
                    ? base(slot)
                    : make_view(slot.storage, value.sizes(), value.strides(), 0, value.scalar_type()),
                value, false);
}

void Pending::replay(Node& node) {
  Call call;
  call.card = card_;
  call.numbers = node.numbers;
  for (const View& v : node.reads) call.tensors.push_back(tensor(v));
  try {
    switch (node.kind) {
      case Node::Kind::Copy:
        return copy_elements(tensor(node.writes[0]), call.tensors[0], false);
      case Node::Kind::Fill: {
        const Number& n = node.numbers[0];
        const at::Tensor to = tensor(node.writes[0]);
        const at::Tensor one = at::scalar_tensor(n.floating ? at::Scalar(n.real) : at::Scalar(n.whole),
                                                 at::TensorOptions(to.scalar_type()));
        return copy_private(to, one.expand(to.sizes()));
      }
      case Node::Kind::Compute:
        break;
    }
    c10::SmallVector<at::Tensor, 2> into;
    if (!node.site->written.empty())
      for (const View& v : node.writes) into.push_back(tensor(v));
    auto results = compute(*node.site, *node.program, call, into, node.origin);
    if (!into.empty()) return;
    for (std::size_t i = 0; i < node.writes.size(); ++i)
      if (node.writes[i].slot >= 0) give(slots_[static_cast<std::size_t>(node.writes[i].slot)], results[i]);
  } catch (c10::Error& e) {
    e.add_context("in an operator of fused mode, called at " + lines(node));
    throw;
  }
}

void Pending::release(const std::string* failure) {
  for (Slot& slot : slots_) {
    auto& mention = static_cast<Mention&>(*slot.record->promise);
    mention.graph = nullptr;
    if (failure != nullptr && slot.record->bytes == 0) mention.failure = *failure;
    if (slot.record->bytes != 0) slot.record->settled.store(true, std::memory_order_release);
  }
  std::vector<Slot> gone;
  gone.swap(slots_);
  nodes_.clear();
  bytes_ = 0;
  repetition_.restart();
  repeated_ = 0;
}

void Pending::run(std::size_t cut) {
  if (nodes_.empty()) return release(nullptr);
  try {
    const Running here(card_, stream_);
    const Busy working(*this);
    error_ = nullptr;
    if (cut != 0) run_range(0, cut);
    run_range(cut, nodes_.size());
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    const auto* own = dynamic_cast<const c10::Error*>(&e);
    const std::string failure = "this tensor has no value, because work of fused mode recorded at " +
                                lines(nodes_) +
                                " failed: " + (own != nullptr ? own->what_without_backtrace() : e.what());
    release(&failure);
    throw;
  }
  release(nullptr);
}

}  // namespace loom::dev::eager
