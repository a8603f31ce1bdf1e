// Host part of a launch: from arguments to the value table. Work is proportional to the table; the only
// allocation is the thread's symbol buffer, made once.
#include "chip/expr.h"

namespace loom::chip {

namespace {

[[noreturn]] void refuse(const char* code, const Program& p, const std::string& message) {
  throw Error(code, p.name + ": " + message);
}

void check_symbol(const Program& p, const Symbol& s, std::int64_t value) {
  const std::string& name = p.args[s.arg].name;
  if (value < s.minimum || value > s.maximum)
    refuse("SC-E12", p,
           "argument " + name + " = " + std::to_string(value) + ", must be in " + std::to_string(s.minimum) +
               ".." + std::to_string(s.maximum));
  if (value % s.granularity)
    refuse(s.kind == 0 ? "SC-E13" : "SC-E12", p,
           "argument " + name + " = " + std::to_string(value) + ", must be a multiple of " +
               std::to_string(s.granularity));
}

}  // namespace

void correct(const Program& p, std::span<const ArgValue> args, std::span<std::int64_t> table) {
  if (args.size() != p.args.size())
    refuse("SC-E11", p, std::to_string(args.size()) + " arguments, takes " + std::to_string(p.args.size()));
  if (table.size() != p.table_words)
    refuse("SC-E11", p, "the value table has " + std::to_string(p.table_words) + " words");
  thread_local std::vector<std::int64_t> symbols;
  symbols.resize(p.symbols.size());
  for (std::size_t i = 0; i < p.symbols.size(); ++i) {
    const Symbol& s = p.symbols[i];
    if (s.kind == 0 && args[s.arg].base() > static_cast<std::uint64_t>(INT64_MAX))
      refuse("SC-E12", p, "argument " + p.args[s.arg].name + ": address beyond 63 bits");
    symbols[i] = s.kind == 0 ? static_cast<std::int64_t>(args[s.arg].base()) : args[s.arg].number;
    check_symbol(p, s, symbols[i]);
  }
  Leaves leaves;
  leaves.symbols = symbols.data();
  for (const Guard& guard : p.guards) {
    const std::int64_t value = evaluate(p, guard.expr, leaves);
    if (guard.equal ? value != 0 : value < 0) refuse("SC-E12", p, guard.message);
  }
  for (const Slot& slot : p.slots) {
    const std::int64_t cores = slot.per_core ? p.cores : 1;
    for (leaves.core = 0; leaves.core < cores; ++leaves.core)
      table[slot.word + static_cast<std::size_t>(leaves.core)] = evaluate(p, slot.expr, leaves);
  }
}

}  // namespace loom::chip
