// Joins the four compute streams into one sequence of segments. Rules as in
// torch_loom/spyrecode/compute_group.py: equal loops, and between two loops the parts of the same
// segments in the same order; the SFU stream is the backbone.
//
// Order inside a straight stretch, for each segment in turn: what L1LU, PT, SFU and L1SU have before
// their part of it, the segment, then the releases that directly follow the parts. A credit is thus given
// back as early as the streams allow.
#include <algorithm>
#include <map>
#include <set>

#include "chip/ops.h"
#include "chip/program.h"

namespace loom::chip {

namespace {

void require(bool ok, const std::string& message) {
  if (!ok) malformed(message);
}

bool is_part(Opcode op) {
  return op == Opcode::SEG_LOAD || op == Opcode::SEG_PT || op == Opcode::SEG_VEC || op == Opcode::SEG_STORE;
}

/// Types and definite setting of vector registers; returns 'f' or 'i' per register, 0 = unset.
std::map<std::uint32_t, char> check_ops(const VecPart& vec, const std::vector<char>& inputs,
                                        const std::string& where) {
  std::map<std::uint32_t, char> types;
  for (std::uint32_t i = 0; i < inputs.size(); ++i) types[i] = inputs[i];
  for (const VOp& op : vec.ops) {
    const OpInfo& facts = info(op.op);
    const std::string what = where + ": " + facts.name;
    const std::uint32_t regs[3] = {op.a, op.b, op.c};
    char free = 0;
    int used = 0;
    for (; facts.operands[used]; ++used) {
      const auto found = types.find(regs[used]);
      require(found != types.end(), what + " reads a register before it is set");
      const char want = facts.operands[used];
      if (want != '?') require(found->second == want, what + ": a register holds the other type");
      if (want == '?') {
        if (!free) free = found->second;
        require(free == found->second, what + " mixes float and integer");
      }
    }
    for (; used < 3; ++used) require(regs[used] == 0, what + " has too many operands");
    require(op.dst < limits::kVecRegisters, what + ": register out of range");
    if (op.op == VecOp::IOTA)
      require(op.imm_int >= 0 && op.imm_int < static_cast<std::int64_t>(vec.extents.size()),
              what + ": no such dim");
    if (op.op == VecOp::CONST_I)
      require(op.imm_int >= INT32_MIN && op.imm_int <= INT32_MAX, what + ": constant exceeds 32 bits");
    types[op.dst] = facts.result == '?' ? free : facts.result;
  }
  return types;
}

struct Parts {
  std::vector<Port> loads, stores;
  const PtPart* pt = nullptr;
  const VecPart* vec = nullptr;
};

Segment join(const Parts& parts, std::uint32_t number) {
  const std::string where = "segment " + std::to_string(number);
  Segment s;
  s.number = number;
  s.vec = *parts.vec;
  const std::size_t rank = s.vec.extents.size();
  std::map<std::uint32_t, const Port*> loads;
  for (const Port& load : parts.loads) {
    require(load.queue < limits::kQueues, where + ": queue out of range");
    require(loads.emplace(load.queue, &load).second, where + ": two loads into one queue");
  }
  std::map<std::uint32_t, char> sources;
  for (auto [queue, load] : loads) sources[queue] = is_integer(load->elem) ? 'i' : 'f';
  std::map<std::uint32_t, std::size_t> ranks;
  for (auto [queue, load] : loads) ranks[queue] = rank;
  if (parts.pt) {
    const PtPart& pt = *parts.pt;
    require(rank == 3, where + ": PT needs a nest of rank 3 (b, m, n)");
    require(pt.a != pt.b && loads.count(pt.a) && loads.count(pt.b),
            where + ": PT operands must be two loaded queues");
    require(sources[pt.a] == 'f' && sources[pt.b] == 'f', where + ": PT multiplies floats only");
    require(!sources.count(pt.out) && pt.out < limits::kQueues, where + ": the PT queue is written twice");
    sources.erase(pt.a);
    sources.erase(pt.b);
    ranks[pt.a] = ranks[pt.b] = 3;
    sources[pt.out] = 'f';
    s.has_pt = true;
    s.pt = pt;
    s.pt_a = *loads[pt.a];
    s.pt_b = *loads[pt.b];
  }
  for (auto [queue, load] : loads) require(load->strides.size() == ranks[queue], where + ": rank of a load");
  std::set<std::uint32_t> read(s.vec.inputs.begin(), s.vec.inputs.end());
  require(read.size() == s.vec.inputs.size(), where + ": a queue is read twice");
  require(read.size() == sources.size(), where + ": the SFU does not read every filled queue");
  std::vector<char> types;
  for (std::uint32_t queue : s.vec.inputs) {
    require(sources.count(queue),
            where + ": the SFU reads queue " + std::to_string(queue) + ", which is not filled");
    types.push_back(sources[queue]);
    if (s.has_pt && queue == s.pt.out) {
      s.input_load.push_back(-1);
    } else {
      s.input_load.push_back(static_cast<int>(s.loads.size()));
      s.loads.push_back(*loads[queue]);
    }
  }
  require(s.vec.corelet_dim < static_cast<int>(rank), where + ": corelet dim out of range");
  const auto regs = check_ops(s.vec, types, where);

  std::map<std::uint32_t, const Port*> stores;
  for (const Port& store : parts.stores)
    require(stores.emplace(store.queue, &store).second, where + ": a queue is stored twice");
  require(!s.vec.outputs.empty() && stores.size() == s.vec.outputs.size(),
          where + ": outputs and stores do not match");
  std::set<std::uint32_t> written;
  for (const VecOut& out : s.vec.outputs) {
    require(out.queue < limits::kQueues && written.insert(out.queue).second && !loads.count(out.queue) &&
                !sources.count(out.queue),
            where + ": a queue is written twice");
    require(stores.count(out.queue), where + ": queue " + std::to_string(out.queue) + " is not stored");
    const Port& store = *stores[out.queue];
    require(store.strides.size() == rank, where + ": rank of a store");
    const auto reg = regs.find(out.reg);
    require(reg != regs.end(), where + ": an output register is never set");
    require((out.dims != 0) == (out.reduce != Reduce::NONE),
            where + ": a reduction needs dims, and dims a reduction");
    for (std::size_t d = 0; d < rank; ++d)
      if (out.dims >> d & 1)
        require(store.strides[d] == Operand{},
                where + ": the store of a reduced output must have stride 0 there");
    const bool int_reduce = out.reduce >= Reduce::ADD_I && out.reduce <= Reduce::MIN_I;
    if (out.reduce != Reduce::NONE)
      require(reg->second == (int_reduce ? 'i' : 'f'), where + ": reduction of a register of the other type");
    require(reg->second == (is_integer(store.elem) ? 'i' : 'f'),
            where + ": store of a register of the other type");
    s.stores.push_back(store);
  }
  return s;
}

class Linker {
 public:
  explicit Linker(Program& p) : p_(p) {}

  void run() {
    p_.code[kLoadSequence] = p_.streams[static_cast<std::size_t>(Unit::MNILU)];
    p_.code[kStoreSequence] = p_.streams[static_cast<std::size_t>(Unit::MNISU)];
    for (Unit u : kComputeUnits) {
      stream_[index(u)] = &p_.streams[index(u)];
      active_[index(u)] = !stream_[index(u)]->empty();
    }
    body();
    for (Unit u : kComputeUnits) require(!active_[index(u)] || at_end(u), "compute streams differ in length");
  }

 private:
  static std::size_t index(Unit u) { return static_cast<std::size_t>(u); }
  bool at_end(Unit u) const { return at_[index(u)] >= stream_[index(u)]->size(); }
  const Instr& here(Unit u) const { return (*stream_[index(u)])[at_[index(u)]]; }
  bool stretch_ends(Unit u) const {
    return at_end(u) || here(u).op == Opcode::LOOP || here(u).op == Opcode::END_LOOP;
  }
  void emit(const Instr& in) { p_.code[kComputeSequence].push_back(in); }

  /// Everything up to the end of the enclosing loop (or of the streams).
  void body() {
    for (;;) {
      stretch();
      const Instr* head = nullptr;
      int loops = 0, streams = 0;
      for (Unit u : kComputeUnits) {
        if (!active_[index(u)]) continue;
        ++streams;
        if (at_end(u) || here(u).op != Opcode::LOOP) continue;
        ++loops;
        if (!head) head = &here(u);
        require(head->a == here(u).a && head->count == here(u).count, "compute streams differ in a loop");
      }
      require(loops == 0 || loops == streams, "compute streams differ in loops");
      if (loops == 0) return;
      auto& code = p_.code[kComputeSequence];
      const auto begin = static_cast<std::uint32_t>(code.size());
      emit(*head);
      for (Unit u : kComputeUnits)
        if (active_[index(u)]) ++at_[index(u)];
      body();
      for (Unit u : kComputeUnits) {
        if (!active_[index(u)]) continue;
        require(!at_end(u) && here(u).op == Opcode::END_LOOP, "compute streams differ in loops");
        ++at_[index(u)];
      }
      code[begin].b = static_cast<std::uint32_t>(code.size());
      Instr end{Opcode::END_LOOP, Unit::SFU, 0, begin, {}};
      emit(end);
    }
  }

  /// Straight-line instructions of all streams up to their next loop head or loop end.
  void stretch() {
    std::vector<std::uint32_t> order;  // segment numbers, as the SFU has them
    for (std::size_t i = at_[index(Unit::SFU)]; i < stream_[index(Unit::SFU)]->size(); ++i) {
      const Instr& in = (*stream_[index(Unit::SFU)])[i];
      if (in.op == Opcode::LOOP || in.op == Opcode::END_LOOP) break;
      if (in.op != Opcode::SEG_VEC) continue;
      const std::uint32_t seg = p_.vecs[in.a].seg;
      require(seg < limits::kSegments && std::find(order.begin(), order.end(), seg) == order.end(),
              "segment " + std::to_string(seg) + ": number used twice or out of range");
      order.push_back(seg);
    }
    for (std::uint32_t seg : order) {
      Parts parts;
      for (Unit u : kComputeUnits) collect(u, seg, parts);
      require(p_.segments.size() < static_cast<std::size_t>(limits::kInstructions), "too many segments");
      p_.segments.push_back(join(parts, seg));
      compile_lanes(p_.segments.back());
      emit({Opcode::SEG_VEC, Unit::SFU, static_cast<std::uint32_t>(p_.segments.size() - 1), 0, {}});
      for (Unit u : kComputeUnits)
        while (!stretch_ends(u) && (here(u).op == Opcode::RELEASE || here(u).op == Opcode::RING_RELEASE))
          emit(take(u));
    }
    for (Unit u : kComputeUnits)
      while (!stretch_ends(u)) {
        require(!is_part(here(u).op),
                std::string(kUnitNames[index(u)]) + " has a segment part the SFU has not here");
        emit(take(u));
      }
  }

  const Instr& take(Unit u) { return (*stream_[index(u)])[at_[index(u)]++]; }

  /// What unit u has before and up to its last part of segment seg.
  void collect(Unit u, std::uint32_t seg, Parts& parts) {
    std::size_t last = 0;  // one past the last part of this segment
    for (std::size_t i = at_[index(u)]; i < stream_[index(u)]->size(); ++i) {
      const Instr& in = (*stream_[index(u)])[i];
      if (in.op == Opcode::LOOP || in.op == Opcode::END_LOOP) break;
      if (!is_part(in.op)) continue;
      if (number_of(in) != seg) break;
      last = i + 1;
    }
    while (at_[index(u)] < last) {
      const Instr& in = take(u);
      switch (in.op) {
        case Opcode::SEG_LOAD:
          parts.loads.push_back(p_.loads[in.a]);
          break;
        case Opcode::SEG_STORE:
          parts.stores.push_back(p_.stores[in.a]);
          break;
        case Opcode::SEG_PT:
          require(!parts.pt, "segment " + std::to_string(seg) + ": two PT parts");
          parts.pt = &p_.pts[in.a];
          break;
        case Opcode::SEG_VEC:
          parts.vec = &p_.vecs[in.a];
          break;
        default:
          emit(in);
      }
    }
  }

  std::uint32_t number_of(const Instr& in) const {
    switch (in.op) {
      case Opcode::SEG_LOAD:
        return p_.loads[in.a].seg;
      case Opcode::SEG_STORE:
        return p_.stores[in.a].seg;
      case Opcode::SEG_PT:
        return p_.pts[in.a].seg;
      default:
        return p_.vecs[in.a].seg;
    }
  }

  Program& p_;
  const std::vector<Instr>* stream_[kUnits] = {};
  std::size_t at_[kUnits] = {};
  bool active_[kUnits] = {};
};

}  // namespace

void link(Program& p) { Linker(p).run(); }

/// Renames registers to values, drops unused operations, hoists what is equal for all lanes, and lets
/// values share buffers once their last reader is done, so that a block's working set stays in cache.
void compile_lanes(Segment& s) {
  struct Value {
    int op = -1;  // producing operation, or -1 for an input
    bool uniform = false;
    int last_use = -1;
    std::uint32_t buffer = 0;
  };
  std::vector<Value> values(s.vec.inputs.size());
  std::map<std::uint32_t, std::uint32_t> current;  // register -> value
  for (std::uint32_t i = 0; i < values.size(); ++i) current[i] = i;
  const int count = static_cast<int>(s.vec.ops.size());
  std::vector<std::array<std::uint32_t, 3>> reads(s.vec.ops.size());
  std::vector<std::uint32_t> result(s.vec.ops.size());
  const auto arity = [&](int i) {
    return std::char_traits<char>::length(info(s.vec.ops[static_cast<std::size_t>(i)].op).operands);
  };
  for (int i = 0; i < count; ++i) {
    const VOp& op = s.vec.ops[static_cast<std::size_t>(i)];
    const std::uint32_t regs[3] = {op.a, op.b, op.c};
    Value v;
    v.op = i;
    v.uniform = op.op != VecOp::IOTA;
    for (std::size_t k = 0; k < arity(i); ++k) {
      const std::uint32_t value = current.at(regs[k]);
      reads[static_cast<std::size_t>(i)][k] = value;
      v.uniform = v.uniform && values[value].uniform;
    }
    result[static_cast<std::size_t>(i)] = current[op.dst] = static_cast<std::uint32_t>(values.size());
    values.push_back(v);
  }
  std::vector<std::uint32_t> outputs;
  for (const VecOut& out : s.vec.outputs) outputs.push_back(current.at(out.reg));
  for (std::uint32_t v : outputs) values[v].last_use = count;
  for (int i = count - 1; i >= 0; --i) {  // readers of live operations, last first
    if (values[result[static_cast<std::size_t>(i)]].last_use < 0) continue;
    for (std::size_t k = 0; k < arity(i); ++k) {
      Value& v = values[reads[static_cast<std::size_t>(i)][k]];
      v.last_use = std::max(v.last_use, i);
    }
  }
  std::vector<std::uint32_t> free;
  const auto fresh = [&] {
    if (free.empty()) return s.buffers++;
    const std::uint32_t buffer = free.back();
    free.pop_back();
    return buffer;
  };
  for (std::uint32_t i = 0; i < s.vec.inputs.size(); ++i)
    s.input_buffer.push_back(values[i].buffer = fresh());
  for (int i = 0; i < count; ++i) {
    Value& v = values[result[static_cast<std::size_t>(i)]];
    if (v.last_use < 0) continue;
    const VOp& op = s.vec.ops[static_cast<std::size_t>(i)];
    MicroOp micro{op.op, 0, 0, 0, 0, op.imm_int, static_cast<float>(op.imm_float)};
    std::uint32_t* fields[3] = {&micro.a, &micro.b, &micro.c};
    for (std::size_t k = 0; k < arity(i); ++k) {
      Value& source = values[reads[static_cast<std::size_t>(i)][k]];
      *fields[k] = source.buffer;
      // Lane functions read a lane before they write it, so a dying operand's buffer may take the result.
      if (!v.uniform && !source.uniform && source.last_use == i) {
        free.push_back(source.buffer);
        source.last_use = -2;  // given back once, even if it is read twice here
      }
    }
    v.buffer = v.uniform ? s.buffers++ : fresh();
    micro.dst = v.buffer;
    (v.uniform ? s.uniform : s.lane).push_back(micro);
  }
  for (std::uint32_t v : outputs) s.output_buffer.push_back(values[v].buffer);
}

}  // namespace loom::chip
