#pragma GCC optimize("fp-contract=off")  // the same cycles on every machine
#include <algorithm>
#include <cmath>

#include "chip/clock_cost.h"
#include "chip/ops.h"

namespace loom::chip {

namespace {

double ceil_div(double a, double b) { return std::ceil(a / b); }

/// The nest of a segment with its numbers, and the share of the corelet that has most to do.
struct Nest {
  const Core& core;
  const Segment& s;
  std::size_t rank;
  double extent[limits::kRank] = {};
  double points = 1, share = 1;
  double own[limits::kRank] = {};  // extents on that corelet

  Nest(const Core& c, const Segment& segment, const Rates& r)
      : core(c), s(segment), rank(s.vec.extents.size()) {
    for (std::size_t d = 0; d < rank; ++d) {
      extent[d] = static_cast<double>(std::max<std::int64_t>(core.value(s.vec.extents[d], Unit::SFU), 0));
      own[d] = extent[d];
      points *= extent[d];
    }
    if (s.vec.corelet_dim >= 0 && points > 0) {
      double& n = own[s.vec.corelet_dim];
      n = ceil_div(n, r.corelets);
      share = n / extent[s.vec.corelet_dim];
    }
  }

  /// Results that an output keeps: the points of the dims it does not fold.
  double results(std::uint32_t folded) const {
    double count = 1;
    for (std::size_t d = 0; d < rank; ++d)
      if (!(folded >> d & 1)) count *= extent[d];
    return count;
  }
};

/// Vectors the SFU works through on one corelet: trailing dims that every port walks as one fill vectors
/// together.
double vectors_of(const Nest& nest, const Rates& r) {
  const Segment& s = nest.s;
  if (!(nest.points > 0)) return 0;
  double inner = nest.rank ? nest.extent[nest.rank - 1] : 1;
  std::size_t first = nest.rank ? nest.rank - 1 : 0;
  std::uint32_t folded = 0;
  for (const VecOut& out : s.vec.outputs) folded |= out.dims;
  const auto joined = [&](const Port& p, Unit unit) {
    const double outer = static_cast<double>(nest.core.value(p.strides[first - 1], unit));
    return outer == static_cast<double>(nest.core.value(p.strides[first], unit)) * nest.extent[first];
  };
  while (first > 0) {
    bool join = !(folded >> (first - 1) & 1) && !(folded >> first & 1);
    for (const Port& p : s.loads) join = join && joined(p, Unit::L1LU);
    for (const Port& p : s.stores) join = join && joined(p, Unit::L1SU);
    if (!join) break;
    inner *= nest.extent[--first];
  }
  return nest.points / inner * ceil_div(inner, r.lanes) * nest.share;
}

double cycles_per_vector(const Segment& s, const Rates& r) {
  double sum = 0;
  for (const MicroOp& op : s.lane) {
    switch (info(op.op).cost) {
      case Cost::FREE:
        break;
      case Cost::SIMPLE:
        sum += r.simple;
        break;
      case Cost::DIVIDE:
        sum += r.divide;
        break;
      case Cost::TRANSCENDENTAL:
        sum += r.transcendental;
        break;
    }
  }
  for (const VecOut& out : s.vec.outputs)
    if (out.reduce != Reduce::NONE) sum += r.simple;
  return std::max(sum, r.simple);
}

/// SFU: vectors through the lane program, and a tree for each result folded across lanes.
void add_sfu(SegmentCost& cost, const Nest& nest, const Rates& r) {
  const double vectors = vectors_of(nest, r);
  double folds = 0;
  for (const VecOut& out : nest.s.vec.outputs)
    if (out.reduce != Reduce::NONE && nest.rank && (out.dims >> (nest.rank - 1) & 1))
      folds += nest.results(out.dims) * nest.share * r.tree;
  cost.sfu = vectors * cycles_per_vector(nest.s, r) + folds;
  cost.slot = vectors > 0 ? cost.sfu / vectors : 0;
  cost.sfu_ops = cost.sfu * r.lanes / nest.share;
}

/// L1LU and L1SU: bytes at the port's width, elements that do not lie side by side at the banks' rate.
void add_ports(SegmentCost& cost, const Nest& nest, const Rates& r) {
  double read = 0, written = 0, fewest = nest.points;
  const auto cycles = [&](const Port& p, double count, std::int64_t stride, double rate, double& bytes) {
    const double size = bytes_of(p.elem);
    const double moved = stride == 0 ? count / r.lanes : count;  // one element serves a vector
    bytes += moved * size;
    return stride == 0 || stride == 1 ? moved * size / rate : count / r.lx_strided;
  };
  const auto last = [&](const Port& p, Unit unit) {
    return p.strides.empty() ? 1 : nest.core.value(p.strides.back(), unit);
  };
  for (const Port& p : nest.s.loads)
    cost.load += cycles(p, nest.points, last(p, Unit::L1LU), r.lx_read, read) * nest.share;
  for (std::size_t i = 0; i < nest.s.stores.size(); ++i) {
    const std::uint32_t folded = nest.s.vec.outputs[i].dims;
    const double count = nest.results(folded);
    fewest = std::min(fewest, count);
    const std::int64_t stride = folded ? 1 : last(nest.s.stores[i], Unit::L1SU);
    cost.store += cycles(nest.s.stores[i], count, stride, r.lx_write, written) * nest.share;
  }
  cost.lx_read += static_cast<std::int64_t>(read);
  cost.lx_written += static_cast<std::int64_t>(written);
  // A folded result leaves when its last operand has come.
  if (nest.points > fewest && fewest > 0) cost.first = cost.sfu / (fewest * nest.share);
}

/// PT, for a nest (b, m, n) and k. A block of the right operand stands in the array (k x n = pt_depth x
/// pt_columns) while rows of the left one pass, one every pt_step cycles; at most pt_kept_rows of partial
/// sums stay inside, so longer columns of rows bring the block in again. Each pass fills and drains the
/// array. When there are fewer rows than the array has, further blocks along k take the rows that would stand
/// idle and share the pass.
void add_pt(SegmentCost& cost, const Nest& nest, const Rates& r) {
  const Segment& s = nest.s;
  const double k = static_cast<double>(std::max<std::int64_t>(nest.core.value(s.pt.k, Unit::PT), 0));
  if (!(nest.points > 0) || !(k > 0)) return;
  const double batch = nest.own[0], rows = nest.own[1], columns = nest.own[2];
  const double a = bytes_of(s.pt_a.elem), b = bytes_of(s.pt_b.elem);
  double passes = 1;  // of the array per product
  if (s.pt_a.elem == Elem::F32 || s.pt_b.elem == Elem::F32) passes = 4;
  if (a == 1 && b == 1) passes = 1 / r.rate_8bit;
  const double blocks = batch * ceil_div(k, r.pt_depth) * ceil_div(columns, r.pt_columns) * passes;
  const double whole = std::floor(rows / r.pt_kept_rows), rest = rows - whole * r.pt_kept_rows;
  const auto cycles = [&](double m) {
    const double together = std::max(1.0, r.pt_rows / m);
    return r.pt_reload + (r.pt_fill + r.pt_step * std::max(m, r.pt_rows)) / together;
  };
  cost.pt = blocks * (whole * cycles(r.pt_kept_rows) + (rest > 0 ? cycles(rest) : 0));
  const double sweeps = whole + (rest > 0);
  const double stationary = batch * k * columns * b * sweeps;
  const double moving = batch * k * rows * a * ceil_div(columns, r.pt_columns);
  cost.load += (stationary + moving) / r.lx_read;
  cost.lx_read += static_cast<std::int64_t>((stationary + moving) / nest.share);
  cost.macs = static_cast<std::int64_t>(nest.points * k);
  // The first result leaves when all of k has passed for the first columns.
  cost.first += cost.pt / (batch * ceil_div(columns, r.pt_columns) * sweeps);
}

}  // namespace

SegmentCost cost_of(const Core& core, const Segment& s, const Rates& r) {
  const Nest nest(core, s, r);
  SegmentCost cost;
  cost.share = nest.share;
  add_sfu(cost, nest, r);
  add_ports(cost, nest, r);
  if (s.has_pt) add_pt(cost, nest, r);
  return cost;
}

void cost_operands(const Segment& s, std::vector<std::pair<Operand, Unit>>& out) {
  const auto add = [&](const Operand& o, Unit unit) {
    if (o.kind == OperandKind::REG) out.emplace_back(o, unit);
  };
  for (const Operand& o : s.vec.extents) add(o, Unit::SFU);
  for (const Port& p : s.loads)
    for (const Operand& o : p.strides) add(o, Unit::L1LU);
  for (const Port& p : s.stores)
    for (const Operand& o : p.strides) add(o, Unit::L1SU);
  if (s.has_pt) add(s.pt.k, Unit::PT);
}

}  // namespace loom::chip
