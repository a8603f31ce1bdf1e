// What one transfer and one segment ask of the units, in cycles. Functions of sizes and parameters only.
#pragma once

#include <cstdint>
#include <vector>

#include "chip/clock_rates.h"
#include "chip/execute.h"

namespace loom::chip {

struct TransferCost {
  std::int64_t bytes = 0;  // payload
  double ddr = 0;          // cycles of the whole memory
  double engine = 0;  // cycles the core's engine needs at least (of each ring link for a copy between cores)
};

/// A transfer to or from a kept buffer: who holds how much of it. `dma.ddr` counts from its first byte.
struct KeptCost {
  std::int64_t bytes = 0;
  double engine = 0;
  struct Part {
    std::int64_t core, bytes;
  };
  std::vector<Part> parts;
};

struct SegmentCost {
  double load = 0, pt = 0, sfu = 0, store = 0;  // busy cycles of the corelet that works most
  double slot = 0;                              // cycles the SFU works on one queue slot
  double first = 0;                             // cycles from the first vector in to the first vector out
  double share = 1;                             // part of the work on that corelet
  std::int64_t macs = 0, lx_read = 0, lx_written = 0;  // of all corelets; bytes
  double sfu_ops = 0;                                  // lane operations of all corelets
};

TransferCost cost_of(const Core&, const RingCopy&, const Rates&);
TransferCost cost_of(const Core&, const Dma&, Unit, const Rates&);
KeptCost kept_cost(const Core&, const Dma&, Unit, const Rates&, const ArgValue&);
SegmentCost cost_of(const Core&, const Segment&, const Rates&);

/// The numbers a cost depends on, for keeping costs until one of them changes.
void cost_operands(const Dma&, Unit, std::vector<std::pair<Operand, Unit>>&);
void cost_operands(const RingCopy&, std::vector<std::pair<Operand, Unit>>&);
void cost_operands(const Segment&, std::vector<std::pair<Operand, Unit>>&);

}  // namespace loom::chip
