// What the units of one core do: transfers and segments. The state they work on and the checks that
// stand before every access.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "chip/chip.h"
#include "chip/program.h"

namespace loom::chip {

/// Buffer that grows, never shrinks, and is aligned for vector code. One per host thread and use.
class Scratch {
 public:
  float* floats(std::size_t count) {
    if (count > size_) {
      data_.reset(new (std::align_val_t{64}) float[count + 64]());
      size_ = count;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Free> data_;
  std::size_t size_ = 0;
};

/// Everything a host thread needs besides the core's state.
struct Workspace {
  Scratch lanes, sums, a, b, c;
  Sgemm sgemm = nullptr;
};

/// State of one core while it runs a program.
struct Core {
  const Program* program = nullptr;
  std::int64_t number = 0;
  std::uint8_t* lx = nullptr;
  std::uint8_t* ddr = nullptr;
  std::span<const ArgValue> args;
  std::vector<std::int64_t> slots;              // numbers of this core
  std::vector<std::int64_t> regs[kUnits];       // scalar registers per stream
  std::vector<std::int64_t> credits;            // channel * 2 + side
  std::vector<std::int64_t> ring;               // credits of ring channels: see ring_credit()
  Core* peers = nullptr;                        // all cores of the machine
  std::int64_t steps_left = 0;                  // of this launch, see spend()
  std::vector<std::uint32_t> releases[kUnits];  // per channel

  void start(const Program&, std::int64_t number, std::span<const std::int64_t> table);

  /// This core's credits of a ring channel towards (side empty) or from (side full) another core.
  std::int64_t& ring_credit(const Channel& c, std::int64_t peer, std::uint32_t side) {
    return ring[static_cast<std::size_t>((c.ring_number * program->cores + peer) * 2 + side)];
  }

  std::int64_t value(const Operand& o, Unit unit) const {
    switch (o.kind) {
      case OperandKind::IMM:
        return o.value;
      case OperandKind::SLOT:
        return slots[static_cast<std::size_t>(o.value)];
      default:
        return regs[static_cast<int>(unit)][static_cast<std::size_t>(o.value)];
    }
  }

  /// The bytes a reference may touch: [begin, end) of LX, and where offset 0 of the reference lies.
  struct Window {
    std::int64_t begin, end, origin;
  };
  Window window(const LxRef& ref, Unit unit) const;
};

using Wide = __int128;

/// Throws Error with the unit, the core and the place.
[[noreturn]] void fail(const Core&, Unit, const char* code, const std::string& message);

/// A product or sum of launch numbers that must fit in 64 bits.
std::int64_t narrow(const Core&, Unit, Wide value);

/// Throws DEV-02 unless [low, high) lies inside the window.
void check_lx(const Core&, Unit, const LxRef&, const Core::Window&, Wide low, Wide high);

/// Pays for one instruction and its work (bytes of transfers, lanes of segments; 1024 of them count as one
/// more instruction) before the work is done, so that no instruction runs beyond the limit. Throws DEV-07.
void spend(Core&, Wide work);

/// Run a transfer.
void run_dma(Core&, const Dma&, Unit);

/// The core an operand names, -1 for nobody. Throws DEV-06 for one that does not exist.
std::int64_t peer_of(const Core&, const Operand&, Unit);

/// Run a copy to another core (which must not run meanwhile).
void run_ring_copy(Core&, const RingCopy&);

/// Run a segment.
void run_segment(Core&, const Segment&, Workspace&);

/// c[m, n] = sum_k a(m, k) b(k, n), c row-major dense. a is row-major [m, k], or [k, m] when a_transposed;
/// b is row-major [k, n], or [n, k] when b_transposed; leading dims are dense.
void gemm(Sgemm, const float* a, bool a_transposed, const float* b, bool b_transposed, float* c, int m, int n,
          int k);

}  // namespace loom::chip
