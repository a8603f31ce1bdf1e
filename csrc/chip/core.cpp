#include <algorithm>

#include "chip/execute.h"

namespace loom::chip {

void Core::start(const Program& p, std::int64_t core, std::span<const std::int64_t> table) {
  program = &p;
  number = core;
  slots.resize(p.slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i)
    slots[i] = table[p.slots[i].word + (p.slots[i].per_core ? static_cast<std::size_t>(core) : 0)];
  for (int u = 0; u < kUnits; ++u) {
    regs[u].assign(p.registers, 0);
    releases[u].assign(p.channels.size(), 0);
  }
  credits.assign(2 * p.channels.size(), 0);
  for (std::size_t c = 0; c < p.channels.size(); ++c) credits[2 * c] = p.channels[c].phases;
  ring.assign(2 * p.rings * static_cast<std::size_t>(p.cores), 0);
  for (std::size_t i = 0; i < ring.size(); i += 2) ring[i] = 1;  // empty
}

Core::Window Core::window(const LxRef& ref, Unit unit) const {
  const Block& block = program->blocks[ref.block];
  std::int64_t begin = block.address, bytes = block.bytes * block.phases;
  if (ref.channel >= 0) {
    const auto channel = static_cast<std::size_t>(ref.channel);
    const std::int64_t done = releases[static_cast<int>(ref.phase_unit)][channel];
    begin += done % program->channels[channel].phases * block.bytes;
    bytes = block.bytes;
  }
  return {begin, begin + bytes, begin + value(ref.offset, unit)};
}

void fail(const Core& core, Unit unit, const char* code, const std::string& message) {
  throw Error(code, core.program->name + ": core " + std::to_string(core.number) + ", " +
                        kUnitNames[static_cast<int>(unit)] + ": " + message);
}

void spend(Core& core, Wide work) {
  const Wide steps = 1 + work / 1024;
  if (steps > core.steps_left)
    throw Error("DEV-07",
                core.program->name + ": core " + std::to_string(core.number) + " exceeds its step limit");
  core.steps_left -= static_cast<std::int64_t>(steps);
}

std::int64_t narrow(const Core& core, Unit unit, Wide value) {
  const auto small = static_cast<std::int64_t>(value);
  if (value != small) fail(core, unit, "DEV-06", "an address or a size overflows 64 bits");
  return small;
}

void check_lx(const Core& core, Unit unit, const LxRef& ref, const Core::Window& w, Wide low, Wide high) {
  if (low >= w.begin && high <= w.end) return;
  const auto show = [](Wide v) {
    return v < INT64_MIN || v > INT64_MAX ? std::string("beyond 64 bits")
                                          : std::to_string(static_cast<std::int64_t>(v));
  };
  fail(core, unit, "DEV-02",
       "LX access to bytes " + show(low - w.begin) + ".." + show(high - w.begin) + " of block " +
           core.program->blocks[ref.block].name + ", which has " + std::to_string(w.end - w.begin));
}

}  // namespace loom::chip
