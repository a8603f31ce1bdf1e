// The functional engine: LX of every core, and a pool of host threads over which cores are dealt. Cores
// share nothing but DDR, so results do not depend on which thread ran which core. Programs whose cores
// exchange data run on one thread instead: each core in turn goes on until it must wait for another.
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "chip/sequencer.h"

namespace loom::chip {

namespace {

/// Zeroed address space that costs memory only where it is touched.
class Reservation {
 public:
  explicit Reservation(std::size_t bytes) : bytes_(bytes) {
    at_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at_ == MAP_FAILED)
      throw Error("DEV-09", "the host cannot reserve " + std::to_string(bytes) + " bytes");
  }
  ~Reservation() { ::munmap(at_, bytes_); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(at_); }

 private:
  void* at_;
  std::size_t bytes_;
};

/// Threads that wait for work. `run` hands out the numbers 0..count-1 and returns when all are done.
class Pool {
 public:
  Pool(int threads, void (*init)()) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this, init, i] {
        if (init) init();
        serve(i);
      });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  void run(std::int64_t count, const std::function<void(int worker, std::int64_t item)>& job) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    next_ = 0;
    count_ = count;
    running_ = static_cast<int>(threads_.size());
    ++round_;
    wake_.notify_all();
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void serve(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      const auto* job = job_;
      const std::int64_t count = count_;
      lock.unlock();
      for (std::int64_t item; (item = next_.fetch_add(1)) < count;) (*job)(worker, item);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int, std::int64_t)>* job_ = nullptr;
  std::atomic<std::int64_t> next_{0};
  std::int64_t count_ = 0;
  std::uint64_t round_ = 0;
  int running_ = 0;
  bool stop_ = false;
};

int thread_count(const MachineOptions& o) {
  const unsigned hardware = std::thread::hardware_concurrency();
  return o.threads > 0 ? o.threads : static_cast<int>(hardware ? hardware : 1);
}

}  // namespace

struct Machine::Impl {
  explicit Impl(const MachineOptions& o)
      : options(o),
        lx(static_cast<std::size_t>(o.cores) * static_cast<std::size_t>(o.lx_bytes)),
        cores(static_cast<std::size_t>(o.cores)),
        runs(static_cast<std::size_t>(o.cores)),
        errors(static_cast<std::size_t>(o.cores)),
        work(static_cast<std::size_t>(thread_count(o))),
        pool(thread_count(o), o.thread_init) {
    for (std::size_t c = 0; c < cores.size(); ++c) {
      cores[c].lx = lx.data() + c * static_cast<std::size_t>(o.lx_bytes);
      cores[c].ddr = o.ddr;
      cores[c].peers = cores.data();
    }
    for (Workspace& w : work) w.sgemm = o.sgemm;
  }

  void check(const Program& p, std::span<const std::int64_t> table, std::span<const ArgValue> args) const {
    if (p.cores > options.cores || p.lx_bytes > options.lx_bytes)
      throw Error("SC-E15", p.name + ": made for " + std::to_string(p.cores) + " cores with " +
                                std::to_string(p.lx_bytes) + " bytes of LX, this chip has " +
                                std::to_string(options.cores) + " with " + std::to_string(options.lx_bytes));
    if (args.size() != p.args.size() || table.size() != p.table_words)
      throw Error("SC-E11", p.name + ": arguments or value table do not belong to this program");
    check_kept(p, args, options.cores, options.lx_bytes);
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (args[i].kept()) continue;
      const bool inside =
          args[i].bytes <= options.ddr_bytes && args[i].address <= options.ddr_bytes - args[i].bytes;
      if (p.args[i].kind == 0 && !inside)
        throw Error("DEV-01", p.name + ": argument " + p.args[i].name + " lies outside DDR");
    }
  }

  /// Run one core to its end; what goes wrong is kept for the caller.
  void run_core(std::size_t c, Workspace& w, const Program& p, std::span<const std::int64_t> table,
                std::span<const ArgValue> args) {
    errors[c].reset();
    try {
      cores[c].args = args;
      cores[c].start(p, static_cast<std::int64_t>(c), table);
      runs[c].start(cores[c], p, options.max_steps);
      if (!runs[c].advance(w))
        throw Error("DEV-04", p.name + ": deadlock on core " + std::to_string(c) + ": " + runs[c].waits());
    } catch (const Error& e) {
      errors[c] = e;
    } catch (const std::bad_alloc&) {
      errors[c] = Error("DEV-09", p.name + ": the host is out of memory");
    }
  }

  /// Run all cores in turns; the first error or a deadlock ends the launch.
  void run_together(Workspace& w, const Program& p, std::span<const std::int64_t> table,
                    std::span<const ArgValue> args) {
    const auto count = static_cast<std::size_t>(p.cores);
    std::size_t now = 0;
    for (std::size_t c = 0; c < count; ++c) errors[c].reset();
    try {
      for (std::size_t c = 0; c < count; ++c) {
        cores[c].args = args;
        cores[c].start(p, static_cast<std::int64_t>(c), table);
        runs[c].start(cores[c], p, options.max_steps);
      }
      std::vector<bool> finished(count);
      for (std::size_t left = count; left;) {
        bool moved = false;
        for (now = 0; now < count; ++now) {
          if (finished[now]) continue;
          finished[now] = runs[now].advance(w);
          moved |= runs[now].moved() || finished[now];
          left -= finished[now];
        }
        if (moved) continue;
        std::string waits;
        for (now = 0; now < count; ++now)
          if (!finished[now])
            waits += (waits.empty() ? "core " : "; core ") + std::to_string(now) + ": " + runs[now].waits();
        now = 0;
        throw Error("DEV-04", p.name + ": deadlock: " + waits);
      }
    } catch (const Error& e) {
      errors[now] = e;
    } catch (const std::bad_alloc&) {
      errors[now] = Error("DEV-09", p.name + ": the host is out of memory");
    }
  }

  MachineOptions options;
  Reservation lx;
  std::vector<Core> cores;
  std::vector<CoreRun> runs;
  std::vector<std::optional<Error>> errors;
  std::vector<Workspace> work;
  std::mutex busy;
  Pool pool;
};

Machine::Machine(const MachineOptions& o) {
  if (o.cores < 1 || o.cores > limits::kCores || o.lx_bytes < 128 || o.lx_bytes > limits::kLxBytes ||
      o.lx_bytes % 128)
    throw Error("DEV-09", "a machine needs 1..1024 cores and whole sticks of LX");
  impl_ = std::make_unique<Impl>(o);
}
Machine::~Machine() = default;

int Machine::cores() const { return impl_->options.cores; }

std::span<std::uint8_t> Machine::lx(int core) {
  if (core < 0 || core >= impl_->options.cores) throw Error("DEV-09", "no core " + std::to_string(core));
  return {impl_->cores[static_cast<std::size_t>(core)].lx, static_cast<std::size_t>(impl_->options.lx_bytes)};
}

void Machine::run(const Program& p, std::span<const std::int64_t> table, std::span<const ArgValue> args) {
  Impl& m = *impl_;
  std::lock_guard lock(m.busy);
  m.check(p, table, args);
  if (p.rings)
    m.pool.run(1, [&](int worker, std::int64_t) {
      m.run_together(m.work[static_cast<std::size_t>(worker)], p, table, args);
    });
  else
    m.pool.run(p.cores, [&](int worker, std::int64_t core) {
      m.run_core(static_cast<std::size_t>(core), m.work[static_cast<std::size_t>(worker)], p, table, args);
    });
  for (std::int64_t c = 0; c < p.cores; ++c)
    if (const auto& error = m.errors[static_cast<std::size_t>(c)]) throw Error(*error);
}

}  // namespace loom::chip
