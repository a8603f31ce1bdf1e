#include "chip/expr.h"

namespace loom::chip {

namespace {

[[noreturn]] void overflow() { malformed("an expression overflows 64 bits"); }

std::int64_t apply(ExprOp op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  switch (op) {
    case ExprOp::ADD:
      if (__builtin_add_overflow(a, b, &r)) overflow();
      return r;
    case ExprOp::SUB:
      if (__builtin_sub_overflow(a, b, &r)) overflow();
      return r;
    case ExprOp::MUL:
      if (__builtin_mul_overflow(a, b, &r)) overflow();
      return r;
    case ExprOp::MIN:
      return std::min(a, b);
    case ExprOp::MAX:
      return std::max(a, b);
    default:
      break;
  }
  if (b <= 0) malformed("division by " + std::to_string(b) + ": divisors must be positive");
  const std::int64_t quotient = a / b, rest = a % b;
  switch (op) {
    case ExprOp::FLOORDIV:
      return quotient - (rest < 0);
    case ExprOp::CEILDIV:
      return quotient + (rest > 0);
    default:
      return rest < 0 ? rest + b : rest;
  }
}

}  // namespace

std::int64_t evaluate(const Program& p, ExprRef expr, const Leaves& leaves) {
  std::int64_t stack[limits::kDepth + 1];
  int top = -1;
  const Token* token = p.tokens.data() + expr.first;
  for (const Token* end = token + expr.count; token != end; ++token) {
    switch (token->op) {
      case ExprOp::CONST:
        stack[++top] = token->value;
        break;
      case ExprOp::SYM:
        stack[++top] = leaves.symbols[token->value];
        break;
      case ExprOp::CORE:
        stack[++top] = leaves.core;
        break;
      case ExprOp::SLOT:
        stack[++top] = leaves.slots[token->value];
        break;
      case ExprOp::REG:
        stack[++top] = leaves.regs[token->value];
        break;
      default:
        stack[top - 1] = apply(token->op, stack[top - 1], stack[top]);
        --top;
    }
  }
  return stack[0];
}

}  // namespace loom::chip
