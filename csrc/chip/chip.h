// The simulated chip as seen from above: decode a program once, run it (values) and time it (cycles).
// No torch, no Python. All addresses are device byte addresses (segment * 16 GiB + offset).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace loom::chip {

/// Malformed binary, refused argument or failed execution. `code()` is SC-Exx or DEV-xx.
class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& message)
      : std::runtime_error(code + ": " + message), code_(std::move(code)) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

/// A decoded, validated and linked program. Immutable, shared by all launches.
class Program;

/// Decode and validate every field. Throws Error (SC-E15..E17).
std::shared_ptr<const Program> decode(std::span<const std::uint8_t> image);

struct ArgInfo {
  std::string name;
  int kind;    // 0 buffer, 1 int, 2 float
  int elem;    // Elem of torch_loom/spyrecode/model.py
  int access;  // bit 0 read, bit 1 write
};

const std::string& name_of(const Program&);
const std::vector<ArgInfo>& args_of(const Program&);
int cores_of(const Program&);
/// Where the program's own blocks end in every core's LX, in bytes.
std::int64_t lx_used(const Program&);

/// One argument of a launch: a device buffer, or a number (floats as their 32 bits).
///
/// A buffer that the programs of a job pass on may be *kept* in LX: core c holds its bytes [c * share, (c +
/// 1) * share), from `address` on in its own LX. Programs address it like a buffer at device address 0.
struct ArgValue {
  std::uint64_t address = 0;  // buffers; of a kept one in LX
  std::uint64_t bytes = 0;    // buffers: allocation size
  std::int64_t number = 0;    // scalars
  std::uint64_t share = 0;    // kept buffers: bytes that a core holds
  bool between = false;       // buffers: made and used within one job, in LX or in DDR

  bool kept() const { return share != 0; }
  std::uint64_t base() const { return kept() ? 0 : address; }  // device address of its first byte
};

/// Refuses kept buffers that a machine of so many cores cannot hold, or that lie where the program's own
/// blocks or another kept buffer of the launch do. Throws Error DEV-11 naming the argument.
void check_kept(const Program&, std::span<const ArgValue> args, int cores, std::int64_t lx_bytes);

/// Size of a value table in 64-bit words; the table may live anywhere (ring of tables per stream).
std::size_t table_words(const Program&);

/// Host part of a launch: check arguments and guards, evaluate every slot into `table`.
/// No allocation on the success path. Throws Error (SC-E11..E14, E17) naming the argument.
void correct(const Program&, std::span<const ArgValue> args, std::span<std::int64_t> table);

/// The same for a program that is launched again and again. It keeps the tables of the last kTables sets of
/// numbers (sizes and scalars): a launch with one of them only shifts what addresses are summands of and
/// evaluates what depends on addresses otherwise. Refuses what `correct` refuses, but for an overflow within
/// a sum that later terms take back. Thread-safe.
class Corrector {
 public:
  static constexpr std::size_t kTables = 4;
  explicit Corrector(std::shared_ptr<const Program>);
  ~Corrector();
  Corrector(const Corrector&) = delete;
  Corrector& operator=(const Corrector&) = delete;
  void correct(std::span<const ArgValue> args, std::span<std::int64_t> table) const;

 private:
  struct Table;
  struct Rules;
  std::shared_ptr<const Table> known(const std::vector<std::int64_t>& symbols) const;
  bool move(const Table& from, const std::vector<std::int64_t>& symbols, std::span<std::int64_t> table) const;

  std::shared_ptr<const Program> program_;
  std::unique_ptr<const Rules> rules_;
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Table>, kTables> tables_;
  mutable std::size_t oldest_ = 0;
};

/// Single-precision GEMM, BLAS calling convention (column major, Fortran).
using Sgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*,
                       const float*, const int*, const float*, const int*, const float*, float*, const int*);

struct MachineOptions {
  int cores = 32;
  std::int64_t lx_bytes = 2 << 20;
  int threads = 0;                  // host threads; 0 = hardware concurrency
  std::uint8_t* ddr = nullptr;      // host address of device address 0 (virtual reservation)
  std::uint64_t ddr_bytes = 0;      // size of that reservation
  Sgemm sgemm = nullptr;            // used for PT segments when given, own kernel otherwise
  void (*thread_init)() = nullptr;  // called once on each host thread (e.g. to make BLAS single-threaded)
  std::int64_t max_steps = std::int64_t{1} << 30;  // instructions (and 1024-lane blocks) per core and launch
};

/// Functional engine: owns LX of every core (contents survive between programs).
class Machine {
 public:
  explicit Machine(const MachineOptions&);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  /// Run to completion. Blocks the caller. Throws Error (DEV-..) on out-of-bounds access, bad index,
  /// deadlock; DDR outside the arguments is never touched.
  void run(const Program&, std::span<const std::int64_t> table, std::span<const ArgValue> args);
  /// LX of one core, for tools and tests. Not while a program runs.
  std::span<std::uint8_t> lx(int core);
  int cores() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Rates of the clock, filled from the chip's TOML file by name (see torch_loom/arch).
using ClockParams = std::map<std::string, double>;

struct UnitTime {
  double busy_cycles = 0, wait_cycles = 0;
};

/// What the clock says about one launch. Shares are parts of the launch's time, 0..1.
struct Timing {
  double cycles = 0;
  double ns = 0;
  double launch_cycles = 0;          // before the first instruction: doorbell, value table, prologue
  double pt_util = 0, sfu_util = 0;  // busy share of cycles, averaged over the chip's corelets
  std::int64_t ddr_read_bytes = 0, ddr_write_bytes = 0;  // payload
  std::int64_t macs = 0;                                 // multiply-accumulates of PT
  std::int64_t events = 0;                               // steps of the simulation
  std::string bottleneck;                                // the largest entry of shares
  std::map<std::string, double>
      shares;  // "PT", "SFU", "LX", "DDR read", "DDR write", "ring", "launch", "wait"
  std::map<std::string, std::int64_t> link_bytes;  // "DDR read", "DDR write", "LX read", "LX write", "ring"
                                                   // (summed over the links of the ring that were passed)
  std::map<std::string, double> energy_pj;         // "PT", "SFU", "LX", "DDR", "ring", "idle"
  std::map<std::string, std::int64_t> between_bytes;  // of buffers between the programs of a job: "LX read",
                                                      // "LX write", "DDR read", "DDR write"
  std::map<std::string, UnitTime> units;
};

/// Modelled time of one launch. Needs no data: only the value table, and of `args` where kept buffers lie
/// (without `args` all buffers are in DDR).
Timing time(const Program&, std::span<const std::int64_t> table, const ClockParams&,
            std::span<const ArgValue> args = {});

enum class SpanKind : std::uint8_t { BUSY, WAIT, TRANSFER };

/// What every unit did when, in columns: spans (times in cycles), and for each credit where it was sent and
/// seen.
struct Trace {
  Timing timing;
  std::vector<std::string> names, tracks;
  std::vector<std::int16_t> core;   // -1: the whole chip
  std::vector<std::uint8_t> track;  // index into tracks
  std::vector<double> begin, end;
  std::vector<std::int32_t> what;  // index into names
  std::vector<std::uint8_t> kind;  // SpanKind
  std::vector<std::int16_t> flow_from_core, flow_to_core;
  std::vector<std::uint8_t> flow_from_track, flow_to_track;
  std::vector<double> flow_sent, flow_seen;
  std::vector<std::int32_t> flow_channel;  // index into names
  bool truncated = false;                  // more than max_spans spans or flows: the later ones are missing
};

/// The same model, recording at most `max_spans` spans and as many credits.
Trace trace(const Program&, std::span<const std::int64_t> table, const ClockParams&, std::size_t max_spans,
            std::span<const ArgValue> args = {});

/// Time of one copy of `bytes` over a link of the card, in ns: "pcie" to the host, "card" to another card.
/// Start-up latency, then packets with their overhead. Throws Error DEV-06 for another link or a negative
/// size.
double transfer_ns(std::int64_t bytes, const std::string& link, const ClockParams&);

}  // namespace loom::chip
