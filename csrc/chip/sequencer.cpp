#include "chip/sequencer.h"

#include "chip/expr.h"

namespace loom::chip {

void CoreRun::start(Core& core, const Program& program, std::int64_t max_steps) {
  core_ = &core;
  program_ = &program;
  core.steps_left = max_steps;
  for (State& s : state_) {
    s.pc = 0;
    s.frames.clear();
  }
}

bool CoreRun::advance(Workspace& work) {
  moved_ = false;
  for (bool moved = true; moved; moved_ |= moved) {
    moved = false;
    for (int s = 0; s < kSequences; ++s) moved |= step_sequence(s, work);
  }
  for (int s = 0; s < kSequences; ++s)
    if (state_[s].pc < program_->code[s].size()) return false;
  return true;
}

std::string CoreRun::waits() const {
  std::string text;
  for (int s = 0; s < kSequences; ++s) {
    if (state_[s].pc >= program_->code[s].size()) continue;
    const Instr& in = program_->code[s][state_[s].pc];
    const Channel& c = program_->channels[in.a];
    if (in.op == Opcode::RING_ACQUIRE) {
      text += std::string(text.empty() ? "" : "; ") + kUnitNames[static_cast<int>(in.unit)] + " waits for " +
              c.name + (in.b ? ".full of core " : ".empty of core ") +
              std::to_string(core_->value(in.count, in.unit));
      continue;
    }
    text += std::string(text.empty() ? "" : "; ") + kUnitNames[static_cast<int>(in.unit)] + " waits for " +
            c.name + (in.b ? ".full" : ".empty") + " (empty " + std::to_string(core_->credits[2 * in.a]) +
            ", full " + std::to_string(core_->credits[2 * in.a + 1]) + ", phases " +
            std::to_string(c.phases) + ")";
  }
  return text;
}

/// Register operands are per stream, so the streams of the compute group must agree.
std::int64_t CoreRun::loop_count(const Instr& in) const {
  const std::int64_t count = core_->value(in.count, in.unit);
  if (in.count.kind == OperandKind::REG && is_compute(in.unit))
    for (Unit u : kComputeUnits)
      if (!program_->streams[static_cast<std::size_t>(u)].empty() && core_->value(in.count, u) != count)
        fail(*core_, u, "DEV-06", "the compute streams disagree on a loop count");
  return count;
}

void CoreRun::set_loop_register(const Instr& in, std::int64_t index) {
  if (!is_compute(in.unit)) {
    core_->regs[static_cast<int>(in.unit)][in.a] = index;
    return;
  }
  for (Unit u : kComputeUnits) core_->regs[static_cast<int>(u)][in.a] = index;
}

bool CoreRun::step_sequence(int sequence, Workspace& work) {
  State& state = state_[sequence];
  const std::vector<Instr>& code = program_->code[sequence];
  const std::size_t begin = state.pc;
  bool moved = false;
  while (state.pc < code.size()) {
    const Instr& in = code[state.pc];
    switch (in.op) {
      case Opcode::LOOP: {
        const std::int64_t count = loop_count(in);
        if (count <= 0) {
          state.pc = in.b + 1;
          break;
        }
        state.frames.push_back({0, count});
        set_loop_register(in, 0);
        ++state.pc;
        break;
      }
      case Opcode::END_LOOP: {
        Frame& f = state.frames.back();
        if (++f.index < f.count) {
          set_loop_register(code[in.b], f.index);
          state.pc = in.b + 1;
        } else {
          state.frames.pop_back();
          ++state.pc;
        }
        break;
      }
      case Opcode::LET: {
        Leaves leaves;
        leaves.slots = core_->slots.data();
        leaves.regs = core_->regs[static_cast<int>(in.unit)].data();
        core_->regs[static_cast<int>(in.unit)][in.a] = evaluate(*program_, program_->lets[in.b], leaves);
        ++state.pc;
        break;
      }
      case Opcode::ACQUIRE: {
        std::int64_t& credit = core_->credits[2 * in.a + in.b];
        if (credit == 0) return moved || state.pc != begin;
        --credit;
        ++state.pc;
        break;
      }
      case Opcode::RELEASE: {
        std::int64_t& credit = core_->credits[2 * in.a + in.b];
        const Channel& c = program_->channels[in.a];
        if (++credit > c.phases)
          fail(*core_, in.unit, "DEV-05",
               "channel " + c.name + (in.b ? ".full" : ".empty") + " gets more credits than it has phases (" +
                   std::to_string(c.phases) + ")");
        ++core_->releases[static_cast<int>(in.unit)][in.a];
        ++state.pc;
        break;
      }
      case Opcode::RING_ACQUIRE: {
        const std::int64_t peer = peer_of(*core_, in.count, in.unit);
        if (peer >= 0) {
          std::int64_t& credit = core_->ring_credit(program_->channels[in.a], peer, in.b);
          if (credit == 0) return moved || state.pc != begin;
          --credit;
        }
        ++state.pc;
        break;
      }
      case Opcode::RING_RELEASE: {
        const std::int64_t peer = peer_of(*core_, in.count, in.unit);
        const Channel& c = program_->channels[in.a];
        if (peer >= 0 && ++core_->peers[peer].ring_credit(c, core_->number, in.b) > 1)
          fail(*core_, in.unit, "DEV-05",
               "ring channel " + c.name + (in.b ? ".full" : ".empty") + " gets a second credit for core " +
                   std::to_string(peer));
        ++state.pc;
        break;
      }
      case Opcode::RING_COPY:
        run_ring_copy(*core_, program_->ring_copies[in.a]);
        ++state.pc;
        break;
      case Opcode::DMA:
        run_dma(*core_, program_->dmas[in.a], in.unit);
        ++state.pc;
        break;
      case Opcode::SEG_VEC:
        run_segment(*core_, program_->segments[in.a], work);
        ++state.pc;
        break;
      default:
        ++state.pc;
        break;
    }
    moved = true;
    spend(*core_, 0);
  }
  return moved;
}

}  // namespace loom::chip
