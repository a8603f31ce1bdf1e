// The rules a program keeps so that cores may run it without looking again; the same as
// torch_loom/spyrecode/validate.py. What depends on launch numbers is checked when it runs.
#include <algorithm>

#include "chip/ops.h"
#include "chip/program.h"

namespace loom::chip {

namespace {

void require(bool ok, const std::string& message) {
  if (!ok) malformed(message);
}
std::string str(std::int64_t value) { return std::to_string(value); }

void check_expr(const Program& p, ExprRef expr, std::uint32_t leaves, const std::string& where) {
  require(expr.count >= 1 && expr.count <= limits::kTokens, where + ": " + str(expr.count) + " tokens");
  std::int64_t depth = 0;
  for (std::uint32_t i = 0; i < expr.count; ++i) {
    const Token& t = p.tokens[expr.first + i];
    if (t.op <= ExprOp::REG) {
      require(leaves >> static_cast<int>(t.op) & 1, where + ": a leaf that is not allowed here");
      require(++depth <= limits::kDepth, where + ": too deep");
    } else {
      require(depth >= 2, where + ": an operator lacks an operand");
      --depth;
    }
    std::int64_t bound = -1;
    if (t.op == ExprOp::SYM) bound = static_cast<std::int64_t>(p.symbols.size());
    if (t.op == ExprOp::SLOT) bound = static_cast<std::int64_t>(p.slots.size());
    if (t.op == ExprOp::REG) bound = limits::kRegisters;
    if (bound >= 0)
      require(t.value >= 0 && t.value < bound, where + ": " + str(t.value) + " of " + str(bound));
    else
      require(t.op == ExprOp::CONST || t.value == 0, where + ": an operator carries a value");
  }
  require(depth == 1, where + ": " + str(depth) + " values left instead of one");
}

void check_profile(const Program& p) {
  const bool ok = p.profile_cores >= 1 && p.profile_cores <= limits::kCores && p.corelets >= 1 &&
                  p.corelets <= limits::kCorelets && p.lx_bytes > 0 && p.lx_bytes <= limits::kLxBytes &&
                  p.lx_bytes % 128 == 0;
  if (!ok) throw Error("SC-E15", "device profile out of range");
  require(p.cores >= 1 && p.cores <= p.profile_cores,
          str(p.cores) + " cores used of " + str(p.profile_cores));
}

void check_tables(const Program& p) {
  require(static_cast<std::int64_t>(p.lets.size()) <= limits::kLetExprs, "too many let expressions");
  for (const Symbol& s : p.symbols) {
    require(s.arg < p.args.size(), "symbol " + s.name + ": argument " + str(s.arg));
    const int kind = p.args[s.arg].kind;
    const bool match = s.kind == 0 ? kind == 0 : s.kind == 1 ? kind == 1 : kind != 0;
    require(match, "symbol " + s.name + " does not fit its argument");
    require(s.minimum > INT64_MIN && s.minimum <= s.maximum, "symbol " + s.name + ": empty range");
    require(s.granularity >= 1, "symbol " + s.name + ": granularity " + str(s.granularity));
  }
  const auto bit = [](ExprOp op) { return 1u << static_cast<int>(op); };
  const std::uint32_t base = bit(ExprOp::CONST) | bit(ExprOp::SYM);
  for (std::size_t i = 0; i < p.slots.size(); ++i)
    check_expr(p, p.slots[i].expr, base | (p.slots[i].per_core ? bit(ExprOp::CORE) : 0),
               "slot " + std::to_string(i));
  for (std::size_t i = 0; i < p.guards.size(); ++i)
    check_expr(p, p.guards[i].expr, base, "guard " + std::to_string(i));
  for (std::size_t i = 0; i < p.lets.size(); ++i)
    check_expr(p, p.lets[i], bit(ExprOp::CONST) | bit(ExprOp::SLOT) | bit(ExprOp::REG),
               "let expression " + std::to_string(i));
  for (const Block& b : p.blocks) {
    require(b.phases >= 1 && b.phases <= limits::kPhases,
            "LX block " + b.name + ": " + str(b.phases) + " phases");
    require(b.address >= 0 && b.address % 128 == 0 && b.address < p.lx_bytes,
            "LX block " + b.name + ": address " + str(b.address));
    require(b.bytes > 0 && b.bytes % 128 == 0 && b.bytes <= limits::kLxBytes,
            "LX block " + b.name + ": " + str(b.bytes) + " bytes");
    require(b.address + b.bytes * b.phases <= p.lx_bytes, "LX block " + b.name + " ends outside LX");
  }
  for (const Channel& c : p.channels) {
    require(c.phases >= 1 && c.phases <= limits::kPhases,
            "channel " + c.name + ": " + str(c.phases) + " phases");
    require(c.producer != c.consumer, "channel " + c.name + ": both ends are one unit");
    require(!c.ring || (c.producer == Unit::MNISU && is_compute(c.consumer) && c.phases == 1),
            "channel " + c.name + ": a ring channel leads from MNISU to a compute unit with one phase");
    for (std::uint32_t b : c.blocks) {
      require(b < p.blocks.size(), "channel " + c.name + ": block " + str(b));
      require(p.blocks[b].phases == c.phases, "channel " + c.name + ": block with other phases");
    }
  }
}

void check_rings(const Program& p) {
  require(static_cast<std::int64_t>(p.rings) * p.cores <= limits::kRingCounters, "too many ring channels");
}

/// See phase_unit() in validate.py. Returns false when the unit has no business with the channel.
bool phase_unit(const Channel& c, Unit unit, Unit* found) {
  *found = unit;
  if (unit == c.producer || unit == c.consumer) return true;
  if (!is_compute(unit)) return false;
  for (Unit end : {c.consumer, c.producer})
    if (is_compute(end)) {
      *found = end;
      return true;
    }
  return false;
}

class StreamCheck {
 public:
  StreamCheck(Program& p, Unit unit) : p_(p), unit_(unit), set_(limits::kRegisters, 0) {}

  void run() {
    std::vector<std::pair<std::size_t, std::size_t>> undo;  // start of log per open loop
    std::vector<std::uint32_t> log;                         // registers set, in order
    const auto set = [&](std::uint32_t reg) {
      if (!set_[reg]) log.push_back(reg);
      p_.registers = std::max(p_.registers, std::size_t{reg} + 1);
      set_[reg] = 1;
    };
    for (const Instr& in : p_.streams[static_cast<std::size_t>(unit_)]) {
      ++count_;
      switch (in.op) {
        case Opcode::LOOP:
          need(in.a < limits::kRegisters, "register out of range");
          number(in.count);
          undo.emplace_back(log.size(), 0);
          set(in.a);
          break;
        case Opcode::END_LOOP:
          while (log.size() > undo.back().first) {
            set_[log.back()] = 0;
            log.pop_back();
          }
          undo.pop_back();
          break;
        case Opcode::LET: {
          need(in.a < limits::kRegisters, "register out of range");
          need(in.b < p_.lets.size(), "let expression out of range");
          const ExprRef e = p_.lets[in.b];
          for (std::uint32_t i = 0; i < e.count; ++i) {
            const Token& t = p_.tokens[e.first + i];
            need(t.op != ExprOp::REG || set_[static_cast<std::size_t>(t.value)],
                 "a register is read before it is set");
          }
          set(in.a);
          break;
        }
        case Opcode::ACQUIRE:
        case Opcode::RELEASE:
          credit(in);
          break;
        case Opcode::RING_ACQUIRE:
        case Opcode::RING_RELEASE:
          number(in.count);
          credit(in);
          break;
        case Opcode::RING_COPY:
          need(unit_ == Unit::MNISU, "RING_COPY does not belong to this unit");
          ring_copy(p_.ring_copies[in.a]);
          break;
        case Opcode::DMA:
          need(unit_ == Unit::MNILU || unit_ == Unit::MNISU, "DMA does not belong to this unit");
          dma(p_.dmas[in.a]);
          break;
        case Opcode::SEG_LOAD:
          need(unit_ == Unit::L1LU, "SEG_LOAD does not belong to this unit");
          port(p_.loads[in.a]);
          break;
        case Opcode::SEG_STORE:
          need(unit_ == Unit::L1SU, "SEG_STORE does not belong to this unit");
          port(p_.stores[in.a]);
          break;
        case Opcode::SEG_PT:
          need(unit_ == Unit::PT, "SEG_PT does not belong to this unit");
          number(p_.pts[in.a].k);
          break;
        case Opcode::SEG_VEC: {
          need(unit_ == Unit::SFU, "SEG_VEC does not belong to this unit");
          const VecPart& vec = p_.vecs[in.a];
          for (const Operand& e : vec.extents) number(e);
          for (const VOp& op : vec.ops) scalar(op);
          break;
        }
        case Opcode::END:
          break;
      }
    }
  }

 private:
  void need(bool ok, const char* message) const {
    if (!ok)
      malformed(std::string(kUnitNames[static_cast<int>(unit_)]) + " instruction " + str(count_) + ": " +
                message);
  }
  void number(const Operand& o) const {
    if (o.kind == OperandKind::SLOT)
      need(o.value < static_cast<std::int64_t>(p_.slots.size()), "slot out of range");
    if (o.kind == OperandKind::REG)
      need(o.value < limits::kRegisters && set_[static_cast<std::size_t>(o.value)],
           "a register is read before it is set");
  }
  void scalar(const VOp& op) const {
    if (op.op != VecOp::SCALAR_F && op.op != VecOp::SCALAR_I) return;
    if (op.imm_int >= 0) {
      need(op.imm_int < static_cast<std::int64_t>(p_.slots.size()), "slot out of range");
      return;
    }
    need(op.op == VecOp::SCALAR_I && op.imm_int >= -limits::kRegisters &&
             set_[static_cast<std::size_t>(-1 - op.imm_int)],
         "a scalar register is read before it is set");
  }
  void credit(const Instr& in) const {
    need(in.a < p_.channels.size(), "channel out of range");
    const Channel& c = p_.channels[in.a];
    const bool acquires = in.op == Opcode::ACQUIRE || in.op == Opcode::RING_ACQUIRE;
    const bool between = in.op == Opcode::RING_ACQUIRE || in.op == Opcode::RING_RELEASE;
    need(between == c.ring, "credits between cores belong to ring channels, others do not");
    const bool producing = acquires == (in.b == 0);
    need(unit_ == (producing ? c.producer : c.consumer), "the unit is not this end of the channel");
  }
  void lx(LxRef& ref) const {
    need(ref.block < p_.blocks.size(), "LX block out of range");
    number(ref.offset);
    if (ref.channel < 0) return;
    need(static_cast<std::size_t>(ref.channel) < p_.channels.size(), "channel out of range");
    const Channel& c = p_.channels[static_cast<std::size_t>(ref.channel)];
    need(std::find(c.blocks.begin(), c.blocks.end(), ref.block) != c.blocks.end(),
         "the LX block is not of this channel");
    need(phase_unit(c, unit_, &ref.phase_unit), "the channel has no end at this unit");
  }
  void port(Port& port) const {
    lx(port.lx);
    for (const Operand& s : port.strides) number(s);
  }
  void ring_copy(RingCopy& c) const {
    number(c.core);
    lx(c.source);
    lx(c.target);
    const auto ring = [&](const LxRef& r) {
      return r.channel >= 0 && p_.channels[static_cast<std::size_t>(r.channel)].ring;
    };
    need(ring(c.target), "the target must lie in a block of a ring channel");
    need(!ring(c.source), "the source must not lie in a block of a ring channel");
    for (const RingDim& d : c.dims)
      for (const Operand* o : {&d.extent, &d.source_stride, &d.target_stride}) number(*o);
  }
  void dma(Dma& d) const {
    need(d.arg < p_.args.size() && p_.args[d.arg].kind == 0, "the argument of the transfer is no buffer");
    need(p_.args[d.arg].access & (d.store ? 2 : 1), "the argument does not allow this access");
    number(d.ddr);
    lx(d.lx);
    for (const DmaDim& dim : d.dims)
      for (const Operand* o : {&dim.extent, &dim.lo, &dim.hi, &dim.ddr_stride, &dim.lx_stride}) number(*o);
    number(d.byte_lo);
    number(d.byte_hi);
    number(d.group);
    number(d.sharers);
    need(!(d.shared && d.store), "only loads can be shared");
    need(!d.masked || (d.store && d.leaf == 128 && !d.dims.empty() && !d.has_lanes),
         "byte_lo/byte_hi belong to stores of sticks with at least one dim");
    need(!(d.zero_fill && d.store), "zero_fill belongs to loads");
    for (Gather& g : d.gathers) {
      lx(g.index);
      for (const Operand& s : g.strides) number(s);
      number(g.scale);
      number(g.bound);
      need(!g.lane || d.has_lanes, "a gather of lanes needs a lane split");
    }
    if (d.has_lanes) {
      need(d.lanes.elems >= 1, "0 elements per stick");
      for (const Operand& s : d.lanes.strides) number(s);
      number(d.lanes.start);
      number(d.lanes.tile_stride);
    }
  }

  Program& p_;
  Unit unit_;
  std::vector<char> set_;
  std::int64_t count_ = 0;
};

}  // namespace

void validate(Program& p) {
  check_profile(p);
  check_tables(p);
  check_rings(p);
  for (int u = 0; u < kUnits; ++u) StreamCheck(p, static_cast<Unit>(u)).run();
}

}  // namespace loom::chip
