// Plans and launches. A plan is prepared once: its image lies in segment 7 of the card's memory and is
// decoded from there. A launch has the three stages of the chip: the host computes the correction (the
// value table) from the arguments, the stream transfers it to a device slot, the machine runs the
// program. Images never change; tables come from a ring per stream, so one plan may be in flight on
// several streams.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chip/chip.h"
#include "runtime/runtime.h"
#include "runtime/tally.h"

namespace loom::rt {

/// A failed launch: names plan, argument or unit, and the line that launched it.
struct LaunchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  /// Copies the image to the card and decodes it there. Throws chip::Error (damaged image) or OutOfMemory.
  static std::shared_ptr<Plan> prepare(Card&, std::span<const std::uint8_t> image, std::string name);
  ~Plan();

  const std::string& name() const { return name_; }
  const chip::Program& program() const { return *program_; }
  const std::vector<chip::ArgInfo>& args() const { return *args_; }
  /// Cores that it runs on, and where its own blocks end in their LX.
  int cores() const { return chip::cores_of(*program_); }
  std::int64_t lx_used() const { return chip::lx_used(*program_); }
  std::uint64_t address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  Card& card() const { return card_; }

  /// Value table of these arguments; throws LaunchError.
  std::vector<std::int64_t> table(std::span<const chip::ArgValue> args) const;
  /// Modelled time for these arguments; computed once per set of numbers.
  chip::Timing time(std::span<const chip::ArgValue> args, const chip::ClockParams&) const;
  /// Modelled ns, cached by the numbers alone (addresses do not change the time).
  double modelled_ns(std::span<const chip::ArgValue> args, std::span<const std::int64_t> table,
                     const chip::ClockParams&) const;
  std::int64_t launches() const { return launches_.load(std::memory_order_relaxed); }
  /// The bytes it was prepared from.
  std::string image() const;

 private:
  friend class Launcher;
  Plan(Card&, std::string name);
  Dims numbers(std::span<const chip::ArgValue> args) const;

  Card& card_;
  std::string name_;
  std::uint64_t address_ = 0, bytes_ = 0;
  std::shared_ptr<const chip::Program> program_;
  std::optional<chip::Corrector> corrector_;  // of the program
  const std::vector<chip::ArgInfo>* args_ = nullptr;
  mutable std::mutex timing_mutex_;
  mutable std::map<Dims, double> timing_;
  mutable std::atomic<std::int64_t> launches_{0};
  mutable Tally tally_;
};

/// The same bytes of every core's LX.
struct LxRange {
  std::uint64_t address, bytes;
};

/// Where a launch was written: filled by the layer above, kept for messages.
using Origin = std::shared_ptr<const std::string>;

/// Host time of one stage of a launch, in ns of the steady clock; zero until it has happened.
struct StageTime {
  std::atomic<std::int64_t> begin_ns{0}, end_ns{0};
};

/// The three stages of a launch: correction in the call, transfer and execution on the stream.
inline constexpr std::array<const char*, 3> kStageNames = {"correction", "transfer", "execution"};
using StageTimes = std::array<StageTime, kStageNames.size()>;

/// What the launch log keeps.
struct LaunchRecord {
  std::shared_ptr<const Plan> plan;
  std::vector<chip::ArgValue> args;
  std::uint64_t stream;
  Origin origin;
  std::shared_ptr<const StageTimes> stages;
};

/// Checks the arguments and computes the table now, then queues transfer and execution on the stream
/// (or runs them at once in blocking mode). Throws LaunchError.
void launch(const std::shared_ptr<const Plan>&, std::span<const chip::ArgValue> args, Stream&, const Origin&);

struct Packet;

/// Launches that are queued as one piece of work: a program of several kernels goes to its stream at once.
/// Each is checked and corrected by `add`; all of them run, in order, after `submit`. Memory that they use
/// must not be freed before that.
class Batch {
 public:
  /// ``alone``: no other program runs on the card between those of the batch.
  explicit Batch(Stream& stream, bool alone = false) : stream_(stream), alone_(alone) {}
  /// Drops what was not submitted.
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// ``fresh``: kept buffers that nothing has been written to before this program. Throws LaunchError.
  void add(const std::shared_ptr<const Plan>&, std::span<const chip::ArgValue> args, const Origin&,
           const std::vector<LxRange>& fresh = {});
  void submit();

 private:
  Stream& stream_;
  bool alone_;
  std::vector<Packet*> packets_;
};

void set_launch_log(bool on);
std::vector<LaunchRecord> launch_log();
void clear_launch_log();

/// Rates for the modelled device time that events read; an empty map turns the clock off.
void set_clock(chip::ClockParams);

/// While on, launches are checked, corrected, counted and logged, but the machine does not run them, and
/// copies inside the device do nothing: memory that nobody touches costs nothing, so programs for models of
/// any size can be timed. Contents of device memory mean nothing afterwards.
void set_timing_only(bool on);
bool timing_only();

/// Launches return after execution when on; starts from TORCH_LOOM_BLOCKING.
void set_blocking(bool on);
bool blocking();

}  // namespace loom::rt
