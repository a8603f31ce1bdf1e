// The clock's parameters under names of their own, in cycles, bytes and events.
#pragma once

#include <string>

#include "chip/chip.h"

namespace loom::chip {

inline constexpr int kMaxPorts = 64;

/// Parameters of torch_loom/arch. docs/clock.md derives each from a mechanism and a source.
struct Rates {
  explicit Rates(const ClockParams& params);

  double hz;
  int cores, corelets;
  double lx_read, lx_write, lx_strided;  // bytes, bytes, elements per cycle and corelet
  double lx_banks, lx_latency;     // bytes per cycle of one core's LX, reads and writes together; cycles
  double ddr_word_cycle;           // bytes per cycle that the memory moves between row openings
  double ddr_base;                 // cycles of the whole memory per byte of a contiguous stream
  double page_open;                // cycles of the whole memory per page opened
  double page, interleave, reach;  // bytes: page, stretch on one channel, what all open pages cover
  double channels;
  double request_min, request_max, request;  // bytes, bytes, cycles of the whole memory per request
  double turnaround;                         // cycles of the whole memory per byte of the smaller direction
  double ddr_latency;                        // cycles
  int ports;                                 // of the ring to the memory
  double port_bytes;                         // per cycle and port
  double window, streams;                    // bytes a DMA engine keeps in flight; runs it walks in turn
  double dma_read, dma_write, dma_issue, index;  // bytes per cycle; cycles
  double macs;                                   // per cycle and corelet, 16 bit
  double pt_rows, pt_depth, pt_columns;          // rows of elements; stationary block: k, n
  double pt_step, pt_fill, pt_reload;            // cycles per row of the moving operand, per pass, per block
  double pt_kept_rows;                           // rows of partial sums that stay in the array
  double rate_8bit;
  double lanes, simple, transcendental, divide, tree, start;
  double queue;  // slots
  double ring_bytes, ring_hop;
  double credit, issue;
  double launch, correction, prologue, table_bytes;  // cycles; cycles per word (twice); bytes per cycle

  /// Bytes per cycle that one engine draws at most: what it keeps in flight over the latency.
  double draw() const { return ddr_latency > 0 ? window / ddr_latency : 1e12; }
};

/// One parameter by name. Throws Error DEV-08.
double parameter(const ClockParams&, const char* name);

}  // namespace loom::chip
