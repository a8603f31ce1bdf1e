#pragma GCC optimize("fp-contract=off")  // the same cycles on every machine
#include <algorithm>
#include <cmath>

#include "chip/clock_cost.h"

namespace loom::chip {

namespace {

double ceil_div(double a, double b) { return std::ceil(a / b); }

/// Where a transfer touches DDR: `runs` contiguous stretches of `run` bytes, neighbours `stride` bytes apart
/// at most.
struct Shape {
  double bytes = 0, run = 0, runs = 0, stride = 0;
  double leaves = 0;
};

Shape shape_of(const Core& core, const Dma& dma, Unit unit) {
  const auto value = [&](const Operand& o) { return core.value(o, unit); };
  Shape shape;
  double points = 1;
  std::int64_t run = dma.leaf;
  bool open = true;  // the run may still grow
  for (std::size_t d = dma.dims.size(); d-- > 0;) {
    const DmaDim& dim = dma.dims[d];
    const std::int64_t extent = value(dim.extent);
    std::int64_t low = std::max<std::int64_t>(value(dim.lo), 0), high = std::min(value(dim.hi), extent);
    if (dma.masked && d + 1 == dma.dims.size()) {
      low = std::max(low, value(dma.byte_lo) / 128);
      high = std::min(high, value(dma.byte_hi) / 128 + (value(dma.byte_hi) % 128 != 0));
    }
    const std::int64_t count = high - low;
    if (count <= 0) return {};
    points *= static_cast<double>(count);
    if (count == 1) continue;
    bool steady = true;
    for (const Gather& g : dma.gathers) steady = steady && value(g.strides[d]) == 0;
    const std::int64_t step = value(dim.ddr_stride);
    if (open && dma.has_lanes && run == dma.leaf && steady && step == 0 && value(dma.lanes.strides[d]) == 1) {
      run = std::min(count, dma.lanes.elems) * dma.leaf;
      open = false;
    } else if (open && steady && !dma.has_lanes && step == run) {
      run *= count;
    } else {
      open = false;
      shape.stride = std::max(shape.stride, std::abs(static_cast<double>(step)));
    }
  }
  shape.leaves = points;
  shape.bytes = points * dma.leaf;
  shape.run = static_cast<double>(run);
  shape.runs = shape.bytes / shape.run;
  return shape;
}

/// Cycles of the whole memory. Words of 128 bytes; a request is at most a burst and never crosses a run; a
/// page is opened once per stream that walks through it, or once per stretch when the runs that the engine
/// serves in turn lie further apart than all open pages reach.
double memory_cycles(const Shape& s, const Rates& r) {
  const double words = ceil_div(s.run, r.request_min) * r.request_min;
  const double requests = std::max(words / r.request_max, 1.0);
  double opened = words / r.page;
  const double span = r.streams * s.stride;
  if (s.runs > 1 && span > r.reach) {
    const double stretches = std::min(words / r.interleave, r.channels);
    opened += (1 - r.reach / span) * std::max(stretches - opened, 0.0);
  }
  return s.runs * (words / r.ddr_word_cycle + requests * r.request + opened * r.page_open);
}

double gathered(const Core& core, const Dma& dma, Unit unit) {
  double indices = 0;
  for (const Gather& g : dma.gathers) {
    double count = 1;
    for (std::size_t d = 0; d < dma.dims.size(); ++d)
      if (core.value(g.strides[d], unit) != 0)
        count *= static_cast<double>(core.value(dma.dims[d].extent, unit));
    indices += count;
  }
  return indices;
}

}  // namespace

TransferCost cost_of(const Core& core, const RingCopy& copy, const Rates& r) {
  double leaves = 1, run = copy.leaf;  // contiguous bytes on both sides
  bool open = true;
  for (std::size_t d = copy.dims.size(); d-- > 0;) {
    const RingDim& dim = copy.dims[d];
    const std::int64_t extent = core.value(dim.extent, Unit::MNISU);
    if (extent <= 0) return {};
    leaves *= static_cast<double>(extent);
    const bool joined = static_cast<double>(core.value(dim.source_stride, Unit::MNISU)) == run &&
                        static_cast<double>(core.value(dim.target_stride, Unit::MNISU)) == run;
    open = open && (joined || extent == 1);
    if (open) run *= static_cast<double>(extent);
  }
  TransferCost cost;
  const double bytes = leaves * copy.leaf;
  cost.bytes = static_cast<std::int64_t>(std::min(bytes, 9e18));
  // A run that ends inside a word of the ring wastes the rest of it.
  cost.engine = bytes / run * ceil_div(run, r.ring_bytes);
  return cost;
}

TransferCost cost_of(const Core& core, const Dma& dma, Unit unit, const Rates& r) {
  const Shape shape = shape_of(core, dma, unit);
  TransferCost cost;
  if (!(shape.bytes > 0)) return cost;
  cost.bytes = static_cast<std::int64_t>(std::min(shape.bytes, 9e18));
  cost.ddr = memory_cycles(shape, r);
  const double rate = unit == Unit::MNISU ? r.dma_write : r.dma_read;
  const double words = ceil_div(shape.run, r.request_min) * r.request_min;
  const double leaves = dma.leaf < 128 ? shape.leaves : 0;  // at most one leaf a cycle
  cost.engine =
      r.dma_issue + std::max(shape.runs * words / rate, leaves) + gathered(core, dma, unit) * r.index;
  return cost;
}

void cost_operands(const Dma& dma, Unit unit, std::vector<std::pair<Operand, Unit>>& out) {
  const auto add = [&](const Operand& o) {
    if (o.kind == OperandKind::REG) out.emplace_back(o, unit);
  };
  for (const DmaDim& dim : dma.dims)
    for (const Operand* o : {&dim.extent, &dim.lo, &dim.hi, &dim.ddr_stride}) add(*o);
  for (const Gather& g : dma.gathers)
    for (const Operand& o : g.strides) add(o);
  for (const Operand& o : dma.lanes.strides) add(o);
  add(dma.byte_lo);
  add(dma.byte_hi);
}

void cost_operands(const RingCopy& copy, std::vector<std::pair<Operand, Unit>>& out) {
  for (const RingDim& dim : copy.dims)
    for (const Operand* o : {&dim.extent, &dim.source_stride, &dim.target_stride})
      if (o->kind == OperandKind::REG) out.emplace_back(*o, Unit::MNISU);
}

}  // namespace loom::chip
