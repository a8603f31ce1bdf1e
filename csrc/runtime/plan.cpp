// The launch path allocates nothing once a stream's ring has grown to the number of launches in flight.
#include "runtime/plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

namespace loom::rt {

/// One launch in flight: its arguments, its table on the host and its slot on the device.
struct Packet {
  std::shared_ptr<const Plan> plan;
  std::vector<chip::ArgValue> args;
  std::vector<std::int64_t> table;
  std::uint64_t slot = 0, slot_bytes = 0;
  Origin origin;
  std::vector<LxRange> fresh;          // of a step of a job
  bool run = true;                     // false: only timed
  std::shared_ptr<StageTimes> stages;  // while launches are logged
};

namespace {

/// More launches than this in one stream make the caller wait: freed memory is only reused once the
/// stream has passed, so an endless queue would hold the intermediates of all of them.
constexpr std::uint64_t kMaxInFlight = 256;

/// Stamps begin and end of a stage; does nothing for a launch that is not logged.
class StageTimer {
 public:
  StageTimer(const Packet& p, std::size_t stage) : stages_(p.stages), stage_(stage) {
    if (stages_) (*stages_)[stage_].begin_ns.store(now(), std::memory_order_relaxed);
  }
  ~StageTimer() {
    if (stages_) (*stages_)[stage_].end_ns.store(now(), std::memory_order_release);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::shared_ptr<StageTimes> stages_;
  std::size_t stage_;
};

/// Packets of one stream. A packet returns when its launch is over.
class Ring {
 public:
  Packet* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<Packet>());
      return all_.back().get();
    }
    Packet* p = free_.back();
    free_.pop_back();
    return p;
  }
  void give(Packet* p) {
    p->plan.reset();
    p->origin.reset();
    p->stages.reset();
    p->fresh.clear();
    const std::lock_guard lock(mutex_);
    free_.push_back(p);
  }

 private:
  std::mutex mutex_;
  std::deque<std::unique_ptr<Packet>> all_;
  std::vector<Packet*> free_;
};

struct Log {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<LaunchRecord> records;
};
Log& log() {
  static Log* l = new Log;
  return *l;
}

struct Clock {
  std::atomic<bool> on{false};
  std::atomic<std::int64_t> generation{0};
  std::mutex mutex;
  std::shared_ptr<const chip::ClockParams> params;
};
Clock& clock_state() {
  static Clock* c = new Clock;
  return *c;
}

/// Rates in force, null while the clock is off.
std::shared_ptr<const chip::ClockParams> clock_params() {
  Clock& c = clock_state();
  if (!c.on.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(c.mutex);
  return c.params;
}

std::atomic<int> blocking_mode{-1};  // -1: not set, follow the settings
std::atomic<bool> only_time{false};

std::string describe(const Plan& plan, const char* what, const Origin& origin) {
  std::string text = "kernel '" + plan.name() + "': " + what;
  if (origin) text += " (launched at " + *origin + ")";
  return text;
}

/// With TORCH_LOOM_POISON=1 the bytes of a kept buffer hold NaN until its first writer runs, and again after
/// the job: a program that reads what nobody kept for it shows.
class KeptMemory {
 public:
  explicit KeptMemory(Card& card) : card_(card), on_(settings().poison && !timing_only()) {}
  ~KeptMemory() { poison(seen_); }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  void before(const Packet& p) {
    if (!on_) return;
    poison(p.fresh);
    seen_.insert(seen_.end(), p.fresh.begin(), p.fresh.end());
  }

 private:
  void poison(const std::vector<LxRange>& ranges) {
    for (const LxRange& r : ranges) card_.poison_lx(r.address, r.bytes);
  }
  Card& card_;
  bool on_;
  std::vector<LxRange> seen_;
};

/// Stages 2 and 3, on the stream.
void execute(Packet& p) {
  Card& card = p.plan->card();
  const std::uint64_t bytes = p.table.size() * sizeof(std::int64_t);
  try {
    if (p.slot_bytes < bytes) {
      if (p.slot_bytes != 0) card.memory().free(p.slot);
      p.slot_bytes = 0;
      p.slot = card.memory().allocate(bytes, Arena::Programs);
      p.slot_bytes = bytes;
    }
    auto* slot = card.memory().host(p.slot);
    {
      const StageTimer timer(p, 1);
      if (bytes != 0) std::memcpy(slot, p.table.data(), bytes);
    }
    const StageTimer timer(p, 2);
    if (p.run)
      card.run(p.plan->program(), {reinterpret_cast<const std::int64_t*>(slot), p.table.size()}, p.args);
    if (const auto params = clock_params()) card.add_modelled(p.plan->modelled_ns(p.args, p.table, *params));
  } catch (const std::exception& e) {
    throw LaunchError(describe(*p.plan, e.what(), p.origin));
  }
}

}  // namespace

/// Rings of a card's streams; owned by the card through this opaque member.
struct Rings {
  std::array<Ring, kStreams> rings;
};

void RingsDeleter::operator()(Rings* r) const { delete r; }

Rings& Card::rings() {
  const std::lock_guard lock(streams_mutex_);
  if (!rings_) rings_.reset(new Rings);
  return *rings_;
}

Plan::Plan(Card& card, std::string name) : card_(card), name_(std::move(name)) {}

Plan::~Plan() {
  if (bytes_ != 0 && !in_bad_fork()) card_.memory().free(address_);
}

std::shared_ptr<Plan> Plan::prepare(Card& card, std::span<const std::uint8_t> image, std::string name) {
  if (image.empty()) throw LaunchError("kernel '" + name + "': the program image is empty");
  std::shared_ptr<Plan> plan(new Plan(card, std::move(name)));
  plan->address_ = card.memory().allocate(image.size(), Arena::Programs);
  plan->bytes_ = image.size();
  auto* at = card.memory().host(plan->address_);
  std::memcpy(at, image.data(), image.size());
  try {
    plan->program_ = chip::decode({at, image.size()});
  } catch (const chip::Error& e) {
    throw LaunchError(describe(*plan, e.what(), nullptr));
  }
  plan->corrector_.emplace(plan->program_);
  plan->args_ = &chip::args_of(*plan->program_);
  if (plan->name_.empty()) plan->name_ = chip::name_of(*plan->program_);
  return plan;
}

std::string Plan::image() const {
  return {reinterpret_cast<const char*>(card_.memory().host(address_)), bytes_};
}

std::vector<std::int64_t> Plan::table(std::span<const chip::ArgValue> args) const {
  std::vector<std::int64_t> out(chip::table_words(*program_));
  try {
    corrector_->correct(args, out);
  } catch (const chip::Error& e) {
    throw LaunchError(describe(*this, e.what(), nullptr));
  }
  return out;
}

Dims Plan::numbers(std::span<const chip::ArgValue> args) const {
  Dims out;
  for (std::size_t i = 0; i < args.size(); ++i) timing_key((*args_)[i], args[i], i, out);
  return out;
}

chip::Timing Plan::time(std::span<const chip::ArgValue> args, const chip::ClockParams& params) const {
  return chip::time(*program_, table(args), params, args);
}

double Plan::modelled_ns(std::span<const chip::ArgValue> args, std::span<const std::int64_t> table,
                         const chip::ClockParams& params) const {
  Dims key = numbers(args);
  key.push_back(clock_state().generation.load());
  {
    const std::lock_guard lock(timing_mutex_);
    const auto found = timing_.find(key);
    if (found != timing_.end()) return found->second;
  }
  const double ns = chip::time(*program_, table, params, args).ns;
  const std::lock_guard lock(timing_mutex_);
  timing_[std::move(key)] = ns;
  return ns;
}

/// The part of a launch that sees inside a plan.
class Launcher {
 public:
  static Ring& ring(const Plan& plan, const Stream& stream) { return plan.card_.rings().rings[stream.id()]; }

  /// A corrected packet of the ring; counted and logged.
  static Packet* prepare(const std::shared_ptr<const Plan>& plan, std::span<const chip::ArgValue> args,
                         Stream& stream, const Origin& origin) {
    Ring& packets = ring(*plan, stream);
    Packet* p = packets.take();
    p->plan = plan;
    p->origin = origin;
    p->args.assign(args.begin(), args.end());
    p->table.resize(chip::table_words(*plan->program_));
    const bool logged = log().on.load(std::memory_order_relaxed);
    if (logged) p->stages = std::make_shared<StageTimes>();
    try {
      const StageTimer timer(*p, 0);
      plan->corrector_->correct(p->args, p->table);
    } catch (const chip::Error& e) {
      const std::string text = describe(*plan, e.what(), origin);
      packets.give(p);
      throw LaunchError(text);
    }
    p->run = !timing_only();
    plan->launches_.fetch_add(1, std::memory_order_relaxed);
    plan->tally_.count(plan->name_, *plan->args_, args, origin, [&] { return plan->image(); });
    if (logged) {
      const std::lock_guard lock(log().mutex);
      log().records.push_back({plan, p->args, stream.id(), origin, p->stages});
    }
    return p;
  }

  /// Gives packets back when their launches are over.
  struct Return {
    std::span<Packet* const> packets;
    Ring& ring;
    ~Return() {
      for (Packet* p : packets) ring.give(p);
    }
  };

  template <typename Task>
  static void queue(Stream& stream, Task task) {
    if (blocking()) {
      stream.run(task);
    } else {
      stream.submit(std::move(task));
      stream.throttle(kMaxInFlight);
    }
  }
};

void launch(const std::shared_ptr<const Plan>& plan, std::span<const chip::ArgValue> args, Stream& stream,
            const Origin& origin) {
  Packet* p = Launcher::prepare(plan, args, stream, origin);
  Launcher::queue(stream, [p, &packets = Launcher::ring(*plan, stream)] {
    const Launcher::Return give_back{{&p, 1}, packets};
    execute(*p);
  });
}

Batch::~Batch() {
  for (Packet* p : packets_) Launcher::ring(*p->plan, stream_).give(p);
}

void Batch::add(const std::shared_ptr<const Plan>& plan, std::span<const chip::ArgValue> args,
                const Origin& origin, const std::vector<LxRange>& fresh) {
  packets_.push_back(Launcher::prepare(plan, args, stream_, origin));
  packets_.back()->fresh = fresh;
}

void Batch::submit() {
  if (packets_.empty()) return;
  Ring& ring = Launcher::ring(*packets_.front()->plan, stream_);
  Card& card = packets_.front()->plan->card();
  Launcher::queue(stream_, [packets = std::exchange(packets_, {}), &ring, &card, alone = alone_] {
    const Launcher::Return give_back{packets, ring};
    const auto held = alone ? card.hold() : std::unique_lock<std::recursive_mutex>();
    KeptMemory kept(card);
    for (Packet* p : packets) {  // a kernel that fails ends the batch
      kept.before(*p);
      execute(*p);
    }
  });
}

void set_launch_log(bool on) { log().on.store(on); }

std::vector<LaunchRecord> launch_log() {
  const std::lock_guard lock(log().mutex);
  return log().records;
}

void clear_launch_log() {
  const std::lock_guard lock(log().mutex);
  log().records.clear();
}

void set_clock(chip::ClockParams params) {
  Clock& c = clock_state();
  const std::lock_guard lock(c.mutex);
  c.on.store(!params.empty());
  c.generation.fetch_add(1);
  c.params = params.empty() ? nullptr : std::make_shared<const chip::ClockParams>(std::move(params));
}

void set_timing_only(bool on) { only_time.store(on); }

bool timing_only() { return only_time.load(std::memory_order_relaxed); }

void set_blocking(bool on) { blocking_mode.store(on ? 1 : 0); }

bool blocking() {
  const int mode = blocking_mode.load(std::memory_order_relaxed);
  return mode < 0 ? settings().blocking : mode == 1;
}

}  // namespace loom::rt
