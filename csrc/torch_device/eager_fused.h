// Fused mode: operators are noted as nodes of a pending graph and run together later. A node's operands are
// views of storages; a storage's value is what the last node wrote, or its block.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_device/eager_loop.h"
#include "torch_device/eager_site.h"

namespace loom::dev::eager {

/// Part of a storage of the graph, as a tensor sees it; slot -1 stands for a result that is None.
struct View {
  std::int32_t slot = -1;
  std::int64_t offset = 0;
  c10::DimVector sizes, strides;
  c10::ScalarType type = c10::ScalarType::Undefined;
};

struct Node {
  enum class Kind : std::uint8_t { Compute, Copy, Fill };
  Kind kind = Kind::Compute;
  const Site* site = nullptr;
  std::shared_ptr<const Entry> entry;  // keeps the program
  const Program* program = nullptr;
  c10::SmallVector<View, 3> reads;
  c10::SmallVector<View, 2> writes;
  c10::SmallVector<Number, 2> numbers;
  rt::Origin origin;
};

/// A storage that pending nodes use. The graph keeps it: an operand outlives its tensors.
struct Slot {
  c10::Storage storage;
  rt::Record* record = nullptr;
  std::size_t last = 0;  // node that uses it last
  bool defined = false;  // has a block, or a node wrote all of it
  bool failed = false;   // the node that was to write it did not
};

/// Programs of a graph that was seen, by its key.
struct Known {
  std::vector<std::shared_ptr<const Program>> programs;
  std::vector<std::shared_ptr<const Entry>> entries;  // their programs' addresses are part of the key
  int seen = 0;
  std::size_t cut = 0;  // the target wants it in two pieces
  bool asked = false;   // the cache on disk was asked
};

/// What a run of nodes needs to run as one program.
struct Piece {
  std::size_t begin = 0, end = 0;
  std::vector<std::int32_t> slots;    // in order of first use
  std::vector<bool> live, filled;     // per slot: somebody will look at it; it has a block now
  std::string key, content;           // by program identities; by what they are made of
  Call call;                          // blocks of filled slots; open numbers
  std::vector<std::int32_t> results;  // live slots without a block
};

/// Work that was dispatched and not yet run, of one stream. Used under the recorder's lock.
class Pending {
 public:
  Pending(c10::DeviceIndex card, std::uint64_t stream) : card_(card), stream_(stream) {}

  bool empty() const { return nodes_.empty(); }
  /// While it runs or takes a node it must not be run.
  bool busy() const { return busy_; }
  class Busy;
  c10::DeviceIndex card() const { return card_; }
  /// Runs everything; the first `cut` nodes as a graph of their own.
  void run(std::size_t cut = 0);

  /// The view of a tensor that `fits`.
  View read(const at::Tensor&);
  View write(const at::Tensor&);
  /// Appends a node.
  void append(Node&&);
  /// Before a node is taken: runs what has become too much, or has repeated itself.
  void make_room();

 private:
  View view(const at::Tensor&);
  void run_range(std::size_t begin, std::size_t end);
  Piece piece(std::size_t begin, std::size_t end) const;
  const Program* program_for(Piece&, Known&);
  void run_program(const Program&, Piece&);
  void replay(Node&);
  void replay_range(std::size_t begin, std::size_t end);
  bool overwrites(const Piece&) const;
  void give(Slot&, const at::Tensor& value);
  at::Tensor base(const Slot&) const;
  at::Tensor tensor(const View&) const;
  pybind11::tuple described(const Piece&) const;
  void release(const std::string* failure);

  c10::DeviceIndex card_;
  std::uint64_t stream_;
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;
  std::int64_t bytes_ = 0;
  bool busy_ = false;
  std::exception_ptr error_;  // first one of the run
  std::size_t repeated_ = 0;  // length of the run that the last node completed
  Repetition repetition_;
};

class Pending::Busy {
 public:
  explicit Busy(Pending& graph) : graph_(graph), before_(graph.busy_) { graph_.busy_ = true; }
  ~Busy() { graph_.busy_ = before_; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Pending& graph_;
  bool before_;
};

/// Can the value of `t` be held back? Its storage must be dense, in the default layout, and not read in
/// other ways.
bool fits(const at::Tensor&);

/// Is the calling thread in fused mode, and free to record?
bool defers();
/// Notes a call of an operator and leaves its results on the stack; false: it has to run now.
bool defer(const Site&, const std::shared_ptr<const Entry>&, const Program&, Call&, torch::jit::Stack*,
           std::size_t arguments);
/// The same for copies inside of a card, and for fills; `dst` has the sizes of `src`.
bool defer_copy(const at::Tensor& dst, const at::Tensor& src);
bool defer_fill(const at::Tensor& self, const at::Scalar&);

/// Counts since the process started: nodes noted, graphs run as one program, graphs run node by node.
struct FusedCounts {
  std::int64_t recorded = 0, fused = 0, replayed = 0;
};
FusedCounts fused_counts();
/// How often a graph runs node by node before it is compiled.
void set_patience(int);
void forget_graphs();

/// A thread that compiles runs operators on the host, outside of the dispatch state of the operator that
/// asked, and unseen by Dynamo, which may be watching the caller's frames. Needs the GIL.
class Compiling {
 public:
  Compiling();
  ~Compiling();
  Compiling(const Compiling&) = delete;
  Compiling& operator=(const Compiling&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  bool before_;
  pybind11::object watcher_;
};

/// The Python side: torch_loom.eager.compiler, null before it is connected.
PyObject* eager_compiler();
/// True on a thread that compiles.
bool is_compiling();
/// Answer to a graph's key: programs, or nothing.
std::vector<std::shared_ptr<const Program>> programs_of(const pybind11::handle& list);

}  // namespace loom::dev::eager
