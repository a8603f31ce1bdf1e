// Process-wide state: settings, cards, fork guard, tokens and the cache of layouts.
#include "runtime/runtime.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unordered_map>
#include <utility>

#include "runtime/convert.h"

namespace loom::rt {
namespace {

int env_int(const char* name, int fallback, int low, int high) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) return fallback;
  char* end = nullptr;
  const long v = std::strtol(text, &end, 10);
  if (*end != 0 || v < low || v > high)
    throw DeviceError(std::string(name) + " must be a whole number from " + std::to_string(low) + " to " +
                      std::to_string(high) + ", got '" + text + "'");
  return static_cast<int>(v);
}

/// Cards a process sees: the entries of SPYRE_DEVICES, else TORCH_LOOM_CARDS, else AIU_WORLD_SIZE, else one.
/// With TORCH_LOOM_CARDS set, SPYRE_DEVICES chooses among that many.
int visible_cards() {
  const int cards = env_int("TORCH_LOOM_CARDS", env_int("AIU_WORLD_SIZE", 1, 1, kMaxCards), 1, kMaxCards);
  const char* list = std::getenv("SPYRE_DEVICES");
  if (list == nullptr || *list == 0) return cards;
  const char* chosen = std::getenv("TORCH_LOOM_CARDS");
  const int limit = chosen != nullptr && *chosen != 0 ? cards : kMaxCards;
  std::vector<long> seen;
  for (const char* at = list;; ++at) {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);
    if (end == at || (*end != 0 && *end != ',') || number < 0 || number >= limit ||
        std::find(seen.begin(), seen.end(), number) != seen.end())
      throw DeviceError("SPYRE_DEVICES must list different card numbers from 0 to " +
                        std::to_string(limit - 1) + ", separated by commas, got '" + list + "'");
    seen.push_back(number);
    if (*end == 0) return static_cast<int>(seen.size());
    at = end;
  }
}

Settings read_settings() {
  Settings s;
  s.cards = visible_cards();
  s.threads = env_int("TORCH_LOOM_THREADS", 0, 0, 1024);
  s.poison = env_int("TORCH_LOOM_POISON", 0, 0, 1) != 0;
  s.blocking = env_int("TORCH_LOOM_BLOCKING", 0, 0, 1) != 0;
  const char* numerics = std::getenv("TORCH_LOOM_NUMERICS");
  if (numerics != nullptr && *numerics != 0) {
    if (std::strcmp(numerics, "ieee") != 0 && std::strcmp(numerics, "df16") != 0)
      throw DeviceError(std::string("TORCH_LOOM_NUMERICS must be 'df16' or 'ieee', got '") + numerics + "'");
    s.ieee = std::strcmp(numerics, "ieee") == 0;
  }
  return s;
}

HostServices services;

struct State {
  std::mutex mutex;
  std::array<std::atomic<Card*>, kMaxCards> cards{};
};

/// Never destroyed: tensors may outlive static destruction at exit.
State& state() {
  static State* s = new State;
  return *s;
}

std::atomic<bool> any_card{false};
std::atomic<bool> bad_fork{false};

void after_fork_in_child() {
  if (any_card.load()) bad_fork.store(true);
}

/// Tokens are addresses in a range nobody can touch: twice the device address keeps them unique, because
/// no dtype takes more than twice its device bytes on the host.
/// Behind them lie the tokens of blocks that were promised; those are given out in turn.
constexpr std::uint64_t kPromised = 2 * kAddressSpace, kTokenSpan = 2 * kPromised;

}  // namespace

const Settings& settings() {
  static const Settings s = read_settings();
  return s;
}

void set_host_services(const HostServices& s) { services = s; }

Card::Card(int index) : index_(index), memory_(index, &Card::passed, this) {
  void* p = ::mmap(nullptr, kTokenSpan, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw DeviceError("Failed to initialize Spyre runtime: no address space for tokens");
  tokens_ = static_cast<std::uint8_t*>(p);
}

Card::~Card() {
  ::munmap(tokens_, kTokenSpan);
  for (auto& s : streams_) delete s.exchange(nullptr);
}

bool Card::passed(void* card, const StreamPoint& at) {
  Stream* s = static_cast<Card*>(card)->streams_[at.stream].load(std::memory_order_acquire);
  return s == nullptr || s->passed(at.ticket);
}

Stream& Card::stream(std::uint64_t id) {
  if (id >= kStreams) throw DeviceError("stream " + std::to_string(id) + " does not exist on this card");
  Stream* s = streams_[id].load(std::memory_order_acquire);
  if (s != nullptr) return *s;
  const std::lock_guard lock(streams_mutex_);
  s = streams_[id].load(std::memory_order_acquire);
  if (s == nullptr) {
    s = new Stream(id, id > kLowStreams ? -1 : 0);
    streams_[id].store(s, std::memory_order_release);
  }
  return *s;
}

std::uint64_t Card::next_stream(bool high) {
  return high ? 1 + kLowStreams + next_high_.fetch_add(1) % kHighStreams
              : 1 + next_low_.fetch_add(1) % kLowStreams;
}

void Card::synchronize() {
  std::exception_ptr first;
  for (auto& slot : streams_) {
    Stream* s = slot.load(std::memory_order_acquire);
    if (s == nullptr) continue;
    try {
      s->synchronize();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Card::link(Record& r) {
  const std::lock_guard lock(records_mutex_);
  r.next = records_;
  if (records_ != nullptr) records_->previous = &r;
  records_ = &r;
}

void Card::unlink(Record& r) {
  const std::lock_guard lock(records_mutex_);
  (r.previous != nullptr ? r.previous->next : records_) = r.next;
  if (r.next != nullptr) r.next->previous = r.previous;
}

Record* Card::record_at(const void* token) {
  const std::lock_guard lock(records_mutex_);
  for (Record* r = records_; r != nullptr; r = r->next)
    if (r->token() == token) return r;
  return nullptr;
}

int host_threads() {
  if (settings().threads != 0) return settings().threads;
  return services.threads != nullptr ? services.threads()
                                     : static_cast<int>(std::thread::hardware_concurrency());
}

int transfer_threads() {
  // Two or three threads keep a memory busy; more would only be in each other's way.
  constexpr int kMost = 4;
  return std::clamp(std::min(host_threads(), static_cast<int>(std::thread::hardware_concurrency())), 1,
                    kMost);
}

void Card::run(const chip::Program& program, std::span<const std::int64_t> table,
               std::span<const chip::ArgValue> args) {
  const std::lock_guard lock(machine_mutex_);
  machine().run(program, table, args);
}

void Card::poison_lx(std::uint64_t at, std::uint64_t bytes) {
  const std::lock_guard lock(machine_mutex_);
  for (int core = 0; core < machine().cores(); ++core)
    std::memset(machine().lx(core).subspan(at, bytes).data(), 0xff, bytes);
}

chip::Machine& Card::machine() {
  if (!machine_) {
    chip::MachineOptions o;
    o.cores = settings().cores;
    o.lx_bytes = settings().lx_bytes;
    o.threads = host_threads();
    o.ddr = memory_.base();
    o.ddr_bytes = kAddressSpace;
    o.sgemm = services.sgemm;
    o.thread_init = services.thread_init;
    machine_ = std::make_unique<chip::Machine>(o);
  }
  return *machine_;
}

Card& card(int index) {
  State& s = state();
  if (bad_fork.load(std::memory_order_relaxed))
    throw DeviceError(
        "Cannot use the spyre device in a forked child process: its streams and memory belong to the parent. "
        "Start the child with the 'spawn' method (torch.multiprocessing.set_start_method('spawn'))");
  if (index < 0 || index >= settings().cards)
    throw DeviceError("spyre device " + std::to_string(index) +
                      " does not exist: " + std::to_string(settings().cards) + " visible (TORCH_LOOM_CARDS)");
  Card* c = s.cards[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
  if (c != nullptr) return *c;
  const std::lock_guard lock(s.mutex);
  c = s.cards[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
  if (c == nullptr) {
    static const bool watched = [] {
      return ::pthread_atfork(nullptr, nullptr, &after_fork_in_child) == 0;
    }();
    if (!watched) throw DeviceError("Failed to initialize Spyre runtime: cannot watch for forks");
    c = new Card(index);
    s.cards[static_cast<std::size_t>(index)].store(c, std::memory_order_release);
    any_card.store(true);
  }
  return *c;
}

bool started() { return any_card.load() && !bad_fork.load(); }
bool in_bad_fork() { return bad_fork.load(); }

void stop() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (auto& slot : s.cards) {
    Card* c = slot.load();
    if (c == nullptr) continue;
    const auto live = c->memory().stats().allocations.current;
    if (live != 0)
      throw DeviceError("cannot stop card " + std::to_string(c->index()) + ": " + std::to_string(live) +
                        " allocations are alive");
  }
  for (auto& slot : s.cards) delete slot.exchange(nullptr);
  any_card.store(false);
}

void* Record::token() const {
  if (promised != 0) return card->tokens() + promised;
  return bytes == 0 ? nullptr : card->tokens() + 2 * address;
}

int card_of_token(const void* token) {
  const auto* p = static_cast<const std::uint8_t*>(token);
  for (int i = 0; i < kMaxCards; ++i) {
    const Card* c = state().cards[static_cast<std::size_t>(i)].load(std::memory_order_acquire);
    if (c != nullptr && p >= c->tokens() && p < c->tokens() + kTokenSpan) return i;
  }
  return -1;
}

Record* record_of_token(const void* token) {
  const int index = card_of_token(token);
  return index < 0 ? nullptr : card(index).record_at(token);
}

Record::~Record() {
  if ((bytes == 0 && promised == 0) || root != nullptr || in_bad_fork()) return;
  card->unlink(*this);
  if (bytes == 0) return;
  std::vector<StreamPoint> after;
  streams.push_back(stream);
  for (std::uint64_t id : streams) {
    const Stream& s = card->stream(id);
    if (!s.idle()) after.push_back({id, s.issued()});
  }
  card->memory().free(address, std::move(after));
}

std::unique_ptr<Record> alias(Record& base, LayoutPtr layout, std::shared_ptr<void> owner) {
  if (static_cast<std::uint64_t>(layout->bytes) > base.bytes)
    throw DeviceError("the layout takes " + std::to_string(layout->bytes) + " bytes, the storage has " +
                      std::to_string(base.bytes));
  auto r = std::make_unique<Record>();
  r->card = base.card;
  r->address = base.address;
  r->bytes = base.bytes;
  r->dtype = base.dtype;
  r->host_bytes = base.host_bytes;
  r->stream = base.stream;
  r->root = base.root != nullptr ? base.root : &base;
  r->root->aliased = true;
  r->owner = std::move(owner);
  r->layout = std::move(layout);
  return r;
}

std::uint64_t fresh_content() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

namespace {

/// The record that owns the block.
template <typename R>
R& owner_of(R& record) {
  return record.root != nullptr ? *record.root : record;
}

}  // namespace

void note_write(Record& record) {
  owner_of(record).content.store(fresh_content(), std::memory_order_relaxed);
}

std::uint64_t content_of(const Record& record) {
  return owner_of(record).content.load(std::memory_order_relaxed);
}

void note_use(Record& record, std::uint64_t stream) {
  Record& r = owner_of(record);
  if (r.stream == stream || r.bytes == 0) return;
  const std::lock_guard lock(r.mutex);
  for (std::uint64_t s : r.streams)
    if (s == stream) return;
  r.streams.push_back(stream);
}

namespace {

void give_block(Record& r, std::uint64_t bytes) {
  r.address = r.card->memory().allocate(bytes);
  r.bytes = bytes;
  if (settings().poison) {
    // 0x7FFF is NaN as df16 and half, 0x7FFF7FFF is NaN as float32.
    const std::uint16_t nan = 0x7FFF;
    fill_run(r.base(), 1, &nan, 2, bytes / 2);
  }
}

}  // namespace

std::unique_ptr<Record> allocate(Card& card, Dtype dtype, LayoutPtr layout, std::uint64_t host_bytes,
                                 std::uint64_t stream) {
  auto r = std::make_unique<Record>();
  r->card = &card;
  r->dtype = dtype;
  r->host_bytes = host_bytes;
  r->stream = stream;
  const auto bytes = static_cast<std::uint64_t>(layout->bytes);
  r->layout = std::move(layout);
  if (bytes != 0) {
    give_block(*r, bytes);
    card.link(*r);
  }
  return r;
}

std::unique_ptr<Record> promise(Card& card, Dtype dtype, LayoutPtr layout, std::uint64_t host_bytes,
                                std::uint64_t stream) {
  static std::atomic<std::uint64_t> next{0};
  auto r = std::make_unique<Record>();
  r->card = &card;
  r->dtype = dtype;
  r->host_bytes = host_bytes;
  r->stream = stream;
  r->layout = std::move(layout);
  const std::uint64_t span = (host_bytes + kAlignment) / kAlignment * kAlignment;
  r->promised = kPromised + next.fetch_add(span, std::memory_order_relaxed) % (kPromised - kSegmentBytes);
  r->settled.store(false, std::memory_order_release);
  card.link(*r);
  return r;
}

void fulfil(Record& r, std::uint64_t stream) {
  r.stream = stream;
  give_block(r, static_cast<std::uint64_t>(r.layout->bytes));
}

void take_block(Record& to, Record& from) {
  note_write(to);
  to.address = from.address;
  to.stream = from.stream;
  to.streams = std::move(from.streams);
  to.bytes = std::exchange(from.bytes, 0);
  if (from.promised == 0) from.card->unlink(from);
}

LayoutPtr layout_for(Kind kind, Format format, std::span<const std::int64_t> sizes,
                     std::span<const std::int64_t> strides, std::int64_t elements) {
  struct Hash {
    std::size_t operator()(const Dims& key) const {
      std::size_t h = key.size();
      for (std::int64_t v : key) h = h * 0x9E3779B97F4A7C15ull + static_cast<std::size_t>(v) + (h >> 29);
      return h;
    }
  };
  thread_local std::unordered_map<Dims, LayoutPtr, Hash> cache;
  thread_local Dims key;
  key.assign({static_cast<std::int64_t>(kind), static_cast<std::int64_t>(format), elements});
  key.insert(key.end(), sizes.begin(), sizes.end());
  key.insert(key.end(), strides.begin(), strides.end());
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  LayoutPtr made = make_layout(kind, format, sizes, strides, elements);
  if (cache.size() > 4096) cache.clear();
  cache.emplace(key, made);
  return made;
}

}  // namespace loom::rt
