// First-order cost of one transfer and one segment in cycles, from the clock's parameters.
#pragma once

#include <cstdint>

#include "chip/execute.h"

namespace loom::chip {

/// The parameters of torch_loom/arch under their own names, with rates turned into cycles and bytes.
struct Rates {
  explicit Rates(const ClockParams& params);

  double hz;
  int cores, corelets;
  double lx_read, lx_write, lx_strided, lx_latency;  // bytes, bytes, elements per cycle and corelet; cycles
  double ddr_bytes;                                  // per cycle, one direction
  double ddr_turnaround;                             // extra share at equal reads and writes, times min share
  double request_min, request_max;                   // bytes
  double request_overhead, ddr_latency;              // cycles
  double dma_read, dma_write, dma_issue, index;      // bytes per cycle, cycles
  double macs;                                       // per cycle and corelet, 16 bit
  double sustained, full_rows, row_exponent, pt_fill;
  double lanes, simple, transcendental, divide, tree, start;
  double credit, issue;
  double ring_bytes, ring_hop;  // per cycle and link, cycles
  double launch, table_bytes;   // cycles; bytes per cycle
};

struct TransferCost {
  std::int64_t bytes = 0;  // payload
  double ddr = 0;          // cycles of the whole memory
  double engine = 0;       // cycles the core's engine needs at least
};

struct SegmentCost {
  double cycles = 0;                                   // from start to end
  double load = 0, pt = 0, sfu = 0, store = 0;         // busy cycles of one corelet
  int corelets = 1;                                    // that work on it
  std::int64_t macs = 0, lx_read = 0, lx_written = 0;  // of all corelets
  double sfu_ops = 0;                                  // lane operations of all corelets
};

/// Payload of a copy between cores and the cycles that it occupies each link of its way.
TransferCost cost_of(const Core&, const RingCopy&, const Rates&);
TransferCost cost_of(const Core&, const Dma&, Unit, const Rates&);
SegmentCost cost_of(const Core&, const Segment&, const Rates&);

}  // namespace loom::chip
