#pragma GCC optimize("fp-contract=off")  // the same cycles on every machine
#include "chip/clock_cost.h"

#include <algorithm>
#include <cmath>

#include "chip/ops.h"

namespace loom::chip {

namespace {

double get(const ClockParams& params, const char* name) {
  const auto found = params.find(name);
  if (found == params.end()) throw Error("DEV-08", std::string("clock parameter ") + name + " is missing");
  if (!(found->second >= 0)) throw Error("DEV-08", std::string("clock parameter ") + name + " is not a rate");
  return found->second;
}

double ceil_div(double a, double b) { return std::ceil(a / b); }

}  // namespace

Rates::Rates(const ClockParams& p) {
  hz = get(p, "clock.frequency_hz");
  const double cycles_per_ns = hz / 1e9;
  cores = static_cast<int>(get(p, "core.count"));
  corelets = static_cast<int>(get(p, "core.corelets"));
  lx_read = get(p, "lx.read_bytes_per_cycle");
  lx_write = get(p, "lx.write_bytes_per_cycle");
  lx_strided = get(p, "lx.strided_elements_per_cycle");
  lx_latency = get(p, "lx.latency_cycles");
  const double ddr_per_s = get(p, "ddr.peak_bytes_per_s") * get(p, "ddr.one_way_efficiency");
  ddr_bytes = ddr_per_s / hz;
  ddr_turnaround = get(p, "ddr.turnaround_ns_per_byte") * ddr_per_s / 1e9;
  request_min = get(p, "ddr.request_min_bytes");
  request_max = get(p, "ddr.request_max_bytes");
  request_overhead = get(p, "ddr.request_overhead_ns") * cycles_per_ns;
  ddr_latency = get(p, "ddr.latency_ns") * cycles_per_ns;
  dma_read = get(p, "dma.read_bytes_per_cycle");
  dma_write = get(p, "dma.write_bytes_per_cycle");
  dma_issue = get(p, "dma.issue_cycles");
  index = get(p, "dma.index_cycles");
  macs = get(p, "pt.rows") * get(p, "pt.columns") * get(p, "pt.macs_per_element");
  sustained = get(p, "pt.sustained_fraction");
  full_rows = get(p, "pt.full_rows");
  row_exponent = get(p, "pt.row_exponent");
  pt_fill = get(p, "pt.fill_cycles");
  lanes = get(p, "sfu.lanes_16bit");
  simple = get(p, "sfu.simple_cycles");
  transcendental = get(p, "sfu.transcendental_cycles");
  divide = get(p, "sfu.divide_cycles");
  tree = get(p, "sfu.tree_cycles");
  start = get(p, "sfu.start_cycles");
  credit = get(p, "sync.credit_cycles");
  issue = get(p, "sync.issue_cycles");
  ring_bytes = get(p, "ring.bytes_per_cycle");
  ring_hop = get(p, "ring.hop_cycles");
  launch = get(p, "launch.fixed_ns") * cycles_per_ns;
  table_bytes = get(p, "launch.table_bytes_per_s") / hz;
  for (double rate : {hz, ring_bytes, lx_read, lx_write, lx_strided, ddr_bytes, request_min, request_max,
                      dma_read, dma_write, macs, sustained, full_rows, lanes, table_bytes})
    if (!(rate > 0)) throw Error("DEV-08", "a clock rate is zero");
}

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
  const auto value = [&](const Operand& o) { return core.value(o, unit); };
  double points = 1;
  std::int64_t run = dma.leaf;  // contiguous bytes in DDR
  bool open = true;             // the run may still grow
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
    }
  }
  TransferCost cost;
  const double bytes = points * dma.leaf;
  cost.bytes = static_cast<std::int64_t>(std::min(bytes, 9e18));
  const double length = static_cast<double>(run), runs = bytes / length;
  // The memory moves whole words; requests shorter than a burst waste a share of its set-up.
  const double words = ceil_div(length, r.request_min) * r.request_min;
  const double requests = ceil_div(words, r.request_max);
  cost.ddr = runs * (words / r.ddr_bytes + (requests - words / r.request_max) * r.request_overhead);
  const double rate = unit == Unit::MNISU ? r.dma_write : r.dma_read;
  const double moves = dma.leaf < 128 ? points : bytes / 128;  // at most one leaf or stick per cycle
  double indices = 0;
  for (const Gather& g : dma.gathers) {
    double count = 1;
    for (std::size_t d = 0; d < dma.dims.size(); ++d)
      if (value(g.strides[d]) != 0) count *= static_cast<double>(value(dma.dims[d].extent));
    indices += count;
  }
  const double stick_cycles = std::max(runs * words / rate, dma.leaf < 128 ? moves : 0.0);
  cost.engine = r.dma_issue + stick_cycles + indices * r.index;
  return cost;
}

SegmentCost cost_of(const Core& core, const Segment& s, const Rates& r) {
  SegmentCost cost;
  const std::size_t rank = s.vec.extents.size();
  double extent[limits::kRank] = {}, points = 1;
  for (std::size_t d = 0; d < rank; ++d) {
    extent[d] = static_cast<double>(std::max<std::int64_t>(core.value(s.vec.extents[d], Unit::SFU), 0));
    points *= extent[d];
  }
  // The share of the corelet that has more to do.
  double share = 1;
  if (s.vec.corelet_dim >= 0 && points > 0) {
    const double n = extent[s.vec.corelet_dim];
    cost.corelets = static_cast<int>(std::min<double>(r.corelets, n));
    share = ceil_div(n, r.corelets) / n;
  }
  // Vectors: trailing dims that every port walks as one fill vectors together.
  std::vector<const Port*> ports;
  for (const Port& p : s.loads) ports.push_back(&p);
  for (const Port& p : s.stores) ports.push_back(&p);
  double inner = rank ? extent[rank - 1] : 1;
  std::size_t first = rank ? rank - 1 : 0;
  std::uint32_t folded = 0;
  for (const VecOut& out : s.vec.outputs) folded |= out.dims;
  while (first > 0) {
    bool join = !(folded >> (first - 1) & 1) && !(folded >> first & 1);
    for (const Port* p : ports) {
      const Unit unit = p >= s.loads.data() && p < s.loads.data() + s.loads.size() ? Unit::L1LU : Unit::L1SU;
      const double outer = static_cast<double>(core.value(p->strides[first - 1], unit));
      join = join && outer == static_cast<double>(core.value(p->strides[first], unit)) * extent[first];
    }
    if (!join) break;
    inner *= extent[--first];
  }
  const double outer = points > 0 ? points / inner : 0;
  const double vectors = outer * ceil_div(inner, r.lanes) * share;

  double per_vector = 0;
  for (const MicroOp& op : s.lane) {
    switch (info(op.op).cost) {
      case Cost::FREE:
        break;
      case Cost::SIMPLE:
        per_vector += r.simple;
        break;
      case Cost::DIVIDE:
        per_vector += r.divide;
        break;
      case Cost::TRANSCENDENTAL:
        per_vector += r.transcendental;
        break;
    }
  }
  double folds = 0;
  for (const VecOut& out : s.vec.outputs) {
    if (out.reduce == Reduce::NONE) continue;
    per_vector += r.simple;
    if (rank && (out.dims >> (rank - 1) & 1)) {
      double results = share;
      for (std::size_t d = 0; d < rank; ++d) results *= (out.dims >> d & 1) ? 1 : extent[d];
      folds += results * r.tree;
    }
  }
  cost.sfu = vectors * std::max(per_vector, r.simple) + folds;

  const auto lx_cycles = [&](const Port& p, Unit unit, double count, std::int64_t inner_stride, double rate) {
    const double size = bytes_of(p.elem);
    if (inner_stride == 0) return count / r.lanes * size / rate;  // one element serves a vector
    return inner_stride == 1 ? count * size / rate : count / r.lx_strided;
  };
  const auto last = [&](const Port& p, Unit unit) {
    return p.strides.empty() ? 1 : core.value(p.strides.back(), unit);
  };
  for (const Port& p : s.loads)
    cost.load += lx_cycles(p, Unit::L1LU, points * share, last(p, Unit::L1LU), r.lx_read);
  for (std::size_t i = 0; i < s.stores.size(); ++i) {
    double results = share;
    for (std::size_t d = 0; d < rank; ++d) results *= (s.vec.outputs[i].dims >> d & 1) ? 1 : extent[d];
    const std::int64_t stride = s.vec.outputs[i].dims ? 1 : last(s.stores[i], Unit::L1SU);
    cost.store += lx_cycles(s.stores[i], Unit::L1SU, results, stride, r.lx_write);
  }
  if (s.has_pt && points > 0) {
    const double k = static_cast<double>(std::max<std::int64_t>(core.value(s.pt.k, Unit::PT), 0));
    // Few rows of the left operand leave the array half empty (measured fit, rounded so that every C
    // library gives the same number).
    const double fit = std::pow(std::min(1.0, extent[1] / r.full_rows), r.row_exponent);
    const double fill = std::max(1.0, std::floor(fit * 1024 + 0.5)) / 1024;
    const double width = s.pt_a.elem == Elem::F32 || s.pt_b.elem == Elem::F32 ? 4 : 1;  // passes per product
    cost.pt = points * k * share * width / (r.macs * r.sustained * fill) + r.pt_fill;
    // The moving operand passes once per column block that the array holds; both may come in either order.
    cost.load += extent[0] * k * (extent[1] * bytes_of(s.pt_a.elem) + extent[2] * bytes_of(s.pt_b.elem)) *
                 share / r.lx_read;
  }
  cost.macs =
      s.has_pt ? static_cast<std::int64_t>(points * static_cast<double>(core.value(s.pt.k, Unit::PT))) : 0;
  cost.sfu_ops = cost.sfu * r.lanes / share;
  cost.lx_read = static_cast<std::int64_t>(cost.load / share * r.lx_read);
  cost.lx_written = static_cast<std::int64_t>(cost.store / share * r.lx_write);
  cost.cycles = r.start + r.lx_latency + std::max({cost.load, cost.pt, cost.sfu, cost.store});
  return cost;
}

}  // namespace loom::chip
