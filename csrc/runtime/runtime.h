// Cards and the process-wide runtime. Nothing starts at load time: the first operation on a card
// reserves its memory, the first launch builds its machine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chip/chip.h"
#include "runtime/layout.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace loom::rt {

/// Wrong use of the device that is not a program's fault.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Numbers that hold for the whole process, read from the environment when the runtime starts.
struct Settings {
  int cards = 1;    // TORCH_LOOM_CARDS
  int threads = 0;  // TORCH_LOOM_THREADS; 0: ask the host framework
  int cores = 32;
  std::int64_t lx_bytes = 2 << 20;
  bool ieee = false;      // TORCH_LOOM_NUMERICS=ieee
  bool poison = false;    // TORCH_LOOM_POISON=1: fresh device memory holds NaN
  bool blocking = false;  // TORCH_LOOM_BLOCKING=1: launches return after execution
};
const Settings& settings();

/// What the layer above lends the engine: a GEMM and how to prepare a worker thread.
struct HostServices {
  chip::Sgemm sgemm = nullptr;
  void (*thread_init)() = nullptr;
  int (*threads)() = nullptr;
};
void set_host_services(const HostServices&);
/// Host threads of the engine: TORCH_LOOM_THREADS, else what the host framework uses.
int host_threads();
/// Host threads of one large transfer: the same, but few and never more than the machine has.
int transfer_threads();

inline constexpr int kMaxCards = 64;
inline constexpr std::uint64_t kLowStreams = 32, kHighStreams = 32, kStreams = 1 + kLowStreams + kHighStreams;

/// Tables in flight, one ring per stream (see plan.cpp).
struct Rings;
struct RingsDeleter {
  void operator()(Rings*) const;
};

class Card {
 public:
  explicit Card(int index);
  ~Card();
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  int index() const { return index_; }
  Memory& memory() { return memory_; }
  /// Stream by number: 0 default, 1..32 low priority, 33..64 high. Created on first use.
  Stream& stream(std::uint64_t id);
  /// Number of the next stream of a pool, round robin.
  std::uint64_t next_stream(bool high);
  /// Waits for all streams; throws the first kept error of them.
  void synchronize();
  /// Runs one program on the machine; programs of a card exclude each other.
  void run(const chip::Program&, std::span<const std::int64_t> table, std::span<const chip::ArgValue> args);
  /// While held, programs run for the calling thread only.
  std::unique_lock<std::recursive_mutex> hold() { return std::unique_lock(machine_mutex_); }
  /// Fills these bytes of every core's LX with NaN.
  void poison_lx(std::uint64_t at, std::uint64_t bytes);

  /// Modelled device time spent so far, in ns; grows only while timing is on.
  double modelled_ns() const { return modelled_ns_.load(std::memory_order_relaxed); }
  void add_modelled(double ns) { modelled_ns_.fetch_add(ns, std::memory_order_relaxed); }

  Rings& rings();
  /// Start of the range that tokens of this card lie in; every access to it faults.
  std::uint8_t* tokens() const { return tokens_; }

  /// Every live record of the card is in a list, so that a bare token can be traced back to it.
  void link(struct Record&);
  void unlink(struct Record&);
  struct Record* record_at(const void* token);

  static bool passed(void* card, const StreamPoint& at);

 private:
  const int index_;
  Memory memory_;
  std::uint8_t* tokens_ = nullptr;
  std::mutex streams_mutex_;
  std::array<std::atomic<Stream*>, kStreams> streams_{};
  std::unique_ptr<Rings, RingsDeleter> rings_;
  std::atomic<std::uint64_t> next_low_{0}, next_high_{0};
  std::atomic<double> modelled_ns_{0};
  std::mutex records_mutex_;
  struct Record* records_ = nullptr;
  std::recursive_mutex machine_mutex_;
  chip::Machine& machine();
  std::unique_ptr<chip::Machine> machine_;
};

/// The card, started on first use. Throws DeviceError for a wrong index or in a forked child.
Card& card(int index);
bool started();
/// True in a child of a process that had started the runtime.
bool in_bad_fork();
/// Ends streams and gives all memory back. Throws DeviceError while allocations live, unless `force`.
void stop();

/// Card of a pointer token (any byte of its block), -1 when it is none.
int card_of_token(const void* token);
/// Record whose token this is, null when none is.
struct Record* record_of_token(const void* token);

/// Page-aligned host memory for asynchronous transfers.
void* allocate_pinned(std::size_t bytes);
void free_pinned(void*);
bool is_pinned(const void*);

/// What the layer above keeps with a record that is not settled.
struct Promise {
  virtual ~Promise() = default;
};

/// A number that was never handed out before; thread-safe.
std::uint64_t fresh_content();

/// Everything about one storage of a tensor.
struct Record {
  Card* card = nullptr;
  std::uint64_t address = 0;  // device address of the block; 0 for empty storages
  std::uint64_t bytes = 0;    // on the device; 0 also for a promised block
  std::uint64_t host_bytes = 0;
  Dtype dtype = Dtype::U8;  // what the storage holds, seen from the host
  bool raw = false;         // bytes allocated before any tensor gave them a type
  LayoutPtr layout;
  Record* root = nullptr;       // record that owns the block when this one only reads it another way
  std::shared_ptr<void> owner;  // keeps that record alive
  std::uint64_t stream = 0;     // stream current at allocation
  std::mutex mutex;             // guards `streams`
  Record *next = nullptr, *previous = nullptr;  // the card's list
  std::vector<std::uint64_t> streams;           // other streams that use the block (record_stream)
  std::uint64_t promised = 0;                   // place of its token if it was made without a block
  bool aliased = false;                         // another record reads the block too
  /// False while the block is only promised, or while work that the layer above holds back uses it.
  std::atomic<bool> settled{true};
  std::unique_ptr<Promise> promise;
  /// Another number after each write: equal numbers mean equal content, also of two storages.
  std::atomic<std::uint64_t> content{fresh_content()};

  std::uint8_t* base() const { return card->memory().host(address); }
  /// The token handed out as a pointer: unique, never dereferenceable, null for empty storages.
  void* token() const;
  ~Record();
};

/// Remembers that `stream` uses the record's block, so that freeing waits for it.
void note_use(Record&, std::uint64_t stream);

/// Remembers that the record's block gets another content.
void note_write(Record&);
/// Number of the content of the record's block, see Record::content.
std::uint64_t content_of(const Record&);

/// New storage record with undefined content.
std::unique_ptr<Record> allocate(Card&, Dtype, LayoutPtr, std::uint64_t host_bytes, std::uint64_t stream);

/// New storage record whose block is allocated later; not settled until then.
std::unique_ptr<Record> promise(Card&, Dtype, LayoutPtr, std::uint64_t host_bytes, std::uint64_t stream);

/// Allocates the block of a promised record, for use on `stream`.
void fulfil(Record&, std::uint64_t stream);

/// Gives a promised record the block of `from`, which keeps none.
void take_block(Record& to, Record& from);

/// Second record of a block with another layout; `owner` keeps the first one alive.
std::unique_ptr<Record> alias(Record&, LayoutPtr, std::shared_ptr<void> owner);

/// Layout objects are shared: equal questions give the same object.
LayoutPtr layout_for(Kind, Format, std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides,
                     std::int64_t elements);

}  // namespace loom::rt
