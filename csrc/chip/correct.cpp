// Host part of a launch: from arguments to the value table. A corrector does the part that only depends on
// sizes and scalars once for each of the last sets of them; addresses then shift what they are summands of.
#include <cstdlib>
#include <map>
#include <utility>

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

/// Symbols of a launch, checked one by one.
void read_symbols(const Program& p, std::span<const ArgValue> args, std::vector<std::int64_t>& symbols) {
  if (args.size() != p.args.size())
    refuse("SC-E11", p, std::to_string(args.size()) + " arguments, takes " + std::to_string(p.args.size()));
  symbols.resize(p.symbols.size());
  for (std::size_t i = 0; i < p.symbols.size(); ++i) {
    const Symbol& s = p.symbols[i];
    if (s.kind == 0 && args[s.arg].base() > static_cast<std::uint64_t>(INT64_MAX))
      refuse("SC-E12", p, "argument " + p.args[s.arg].name + ": address beyond 63 bits");
    symbols[i] = s.kind == 0 ? static_cast<std::int64_t>(args[s.arg].base()) : args[s.arg].number;
    check_symbol(p, s, symbols[i]);
  }
}

void check_table(const Program& p, std::size_t words) {
  if (words != p.table_words)
    refuse("SC-E11", p, "the value table has " + std::to_string(p.table_words) + " words");
}

void check_guard(const Program& p, const Guard& guard, const Leaves& leaves) {
  const std::int64_t value = evaluate(p, guard.expr, leaves);
  if (guard.equal ? value != 0 : value < 0) refuse("SC-E12", p, guard.message);
}

void fill_slot(const Program& p, const Slot& slot, Leaves leaves, std::span<std::int64_t> table) {
  const std::int64_t cores = slot.per_core ? p.cores : 1;
  for (leaves.core = 0; leaves.core < cores; ++leaves.core)
    table[slot.word + static_cast<std::size_t>(leaves.core)] = evaluate(p, slot.expr, leaves);
}

void fill(const Program& p, const std::vector<std::int64_t>& symbols, std::span<std::int64_t> table) {
  Leaves leaves;
  leaves.symbols = symbols.data();
  for (const Guard& guard : p.guards) check_guard(p, guard, leaves);
  for (const Slot& slot : p.slots) fill_slot(p, slot, leaves, table);
}

/// How a value depends on addresses: the sum of ``terms`` and of something without any, or otherwise.
struct Dependence {
  bool linear = true;
  std::map<std::size_t, std::int64_t> terms;  // symbol -> factor, none zero
  bool none() const { return linear && terms.empty(); }
};

constexpr std::int64_t kLargestFactor = 1 << 20;

Dependence combine(const Token& token, const Dependence& a, const Dependence& b, const std::int64_t* left,
                   const std::int64_t* right) {
  if (a.none() && b.none()) return {};
  Dependence out;
  out.linear = a.linear && b.linear;
  const auto add = [&](const Dependence& from, std::int64_t factor) {
    for (const auto& [symbol, by] : from.terms) {
      std::int64_t& term = out.terms[symbol];
      term += by * factor;
      if (std::abs(term) > kLargestFactor) out.linear = false;
      if (term == 0) out.terms.erase(symbol);
    }
  };
  const auto small = [](const std::int64_t* n) { return n && std::abs(*n) <= kLargestFactor; };
  if (token.op == ExprOp::ADD || token.op == ExprOp::SUB) {
    add(a, 1);
    add(b, token.op == ExprOp::ADD ? 1 : -1);
  } else if (token.op == ExprOp::MUL && b.none() && small(right)) {
    add(a, *right);
  } else if (token.op == ExprOp::MUL && a.none() && small(left)) {
    add(b, *left);
  } else {
    out.linear = false;
  }
  return out;
}

Dependence dependence(const Program& p, ExprRef expr) {
  struct Part {
    Dependence of;
    const std::int64_t* constant = nullptr;
  };
  std::vector<Part> stack;
  for (std::uint32_t i = expr.first; i < expr.first + expr.count; ++i) {
    const Token& token = p.tokens[i];
    if (token.op < ExprOp::ADD) {
      Part part;
      if (token.op == ExprOp::CONST) part.constant = &token.value;
      const auto symbol = static_cast<std::size_t>(token.value);
      if (token.op == ExprOp::SYM && p.symbols[symbol].kind == 0) part.of.terms[symbol] = 1;
      stack.push_back(std::move(part));
      continue;
    }
    const Part right = std::move(stack.back());
    stack.pop_back();
    Part& left = stack.back();
    left = {combine(token, left.of, right.of, left.constant, right.constant), nullptr};
  }
  return std::move(stack.front().of);
}

}  // namespace

void correct(const Program& p, std::span<const ArgValue> args, std::span<std::int64_t> table) {
  thread_local std::vector<std::int64_t> symbols;
  check_table(p, table.size());
  read_symbols(p, args, symbols);
  fill(p, symbols, table);
}

/// A table, and the symbols that it was made from.
struct Corrector::Table {
  std::vector<std::int64_t> symbols, words;
};

/// Slots and guards with addresses in them, by what a new address asks of them.
struct Corrector::Rules {
  struct Moved {
    std::size_t first, words;
    std::vector<std::pair<std::size_t, std::int64_t>> terms;
  };
  std::vector<Moved> moved;          // sums of addresses and the rest: shifted
  std::vector<const Slot*> slots;    // other slots: evaluated
  std::vector<const Guard*> guards;  // evaluated
  std::vector<std::size_t> numbers;  // symbols that are no addresses
};

Corrector::Corrector(std::shared_ptr<const Program> program) : program_(std::move(program)) {
  const Program& p = *program_;
  auto rules = std::make_unique<Rules>();
  for (const Slot& slot : p.slots) {
    const Dependence on = dependence(p, slot.expr);
    if (on.none()) continue;
    if (on.linear) {
      const auto words = static_cast<std::size_t>(slot.per_core ? p.cores : 1);
      rules->moved.push_back({slot.word, words, {on.terms.begin(), on.terms.end()}});
    } else {
      rules->slots.push_back(&slot);
    }
  }
  for (const Guard& guard : p.guards)
    if (!dependence(p, guard.expr).none()) rules->guards.push_back(&guard);
  for (std::size_t i = 0; i < p.symbols.size(); ++i)
    if (p.symbols[i].kind != 0) rules->numbers.push_back(i);
  rules_ = std::move(rules);
}

Corrector::~Corrector() = default;

std::shared_ptr<const Corrector::Table> Corrector::known(const std::vector<std::int64_t>& symbols) const {
  const std::lock_guard lock(mutex_);
  for (const auto& table : tables_)
    if (table && std::all_of(rules_->numbers.begin(), rules_->numbers.end(),
                             [&](std::size_t i) { return table->symbols[i] == symbols[i]; }))
      return table;
  return nullptr;
}

bool Corrector::move(const Table& from, const std::vector<std::int64_t>& symbols,
                     std::span<std::int64_t> table) const {
  const Program& p = *program_;
  std::copy(from.words.begin(), from.words.end(), table.begin());
  for (const auto& [first, words, terms] : rules_->moved) {
    __int128 by = 0;
    for (const auto& [symbol, factor] : terms)
      by += (static_cast<__int128>(symbols[symbol]) - from.symbols[symbol]) * factor;
    if (by == 0) continue;
    const auto step = static_cast<std::int64_t>(by);
    if (step != by) return false;
    for (std::size_t i = first; i < first + words; ++i)
      if (__builtin_add_overflow(table[i], step, &table[i])) return false;
  }
  Leaves leaves;
  leaves.symbols = symbols.data();
  for (const Guard* guard : rules_->guards) check_guard(p, *guard, leaves);
  for (const Slot* slot : rules_->slots) fill_slot(p, *slot, leaves, table);
  return true;
}

void Corrector::correct(std::span<const ArgValue> args, std::span<std::int64_t> table) const {
  thread_local std::vector<std::int64_t> symbols;
  check_table(*program_, table.size());
  read_symbols(*program_, args, symbols);
  const auto from = known(symbols);
  if (from && move(*from, symbols, table)) return;
  fill(*program_, symbols, table);
  if (from) return;
  auto made = std::make_shared<const Table>(Table{symbols, {table.begin(), table.end()}});
  const std::lock_guard lock(mutex_);
  tables_[oldest_++ % tables_.size()] = std::move(made);
}

}  // namespace loom::chip
