// The lane operations: their numbers (VecOp of torch_loom/spyrecode/model.py), operand types and cost class.
#pragma once

#include <cstdint>

#include "chip/program.h"

namespace loom::chip {

enum class VecOp : std::uint16_t {
  CONST_F,
  CONST_I,
  SCALAR_F,
  SCALAR_I,
  IOTA,
  ADD_F,
  SUB_F,
  MUL_F,
  DIV_F,
  MAX_F,
  MIN_F,
  MAXNUM_F,
  MINNUM_F,
  NEG_F,
  ABS_F,
  FMA_F,
  EXP,
  EXP2,
  EXPM1,
  LOG,
  LOG2,
  LOG1P,
  SQRT,
  RSQRT,
  RECIP,
  TANH,
  ERF,
  SIGMOID,
  SILU,
  GELU,
  SIN,
  COS,
  POW,
  FLOOR,
  CEIL,
  ROUND,
  TRUNC,
  EQ_F,
  NE_F,
  LT_F,
  LE_F,
  GT_F,
  GE_F,
  SELECT,
  AND_M,
  OR_M,
  XOR_M,
  NOT_M,
  ADD_I,
  SUB_I,
  MUL_I,
  MIN_I,
  MAX_I,
  FLOORDIV_I,
  DIV_I,
  REM_I,
  AND_I,
  OR_I,
  XOR_I,
  SHL_I,
  SHR_I,
  EQ_I,
  NE_I,
  LT_I,
  LE_I,
  GT_I,
  GE_I,
  F_TO_I,
  I_TO_F,
  ROUND_DF16,
  ROUND_F16,
  ROUND_BF16,
  COPY,
  REM_F,
  TAN,
  ASIN,
  ACOS,
  ATAN,
  ATAN2,
  SINH,
  COSH,
  ASINH,
  ACOSH,
  ATANH,
  ISNAN,
  ISINF,
  ERFC,
  LGAMMA,
  SOFTPLUS,
  U_TO_F,
  SHRU_I,
  UDIV_I,
  UREM_I,
  ULT_I,
  ULE_I,
  MULHI_I,
  CHECK
};
inline constexpr std::uint32_t kVecOps = 97;

enum class ImmKind : std::uint8_t { NONE, INT, FLOAT };
/// How long the SFU works on one vector: FREE happens in the queues or once per segment.
enum class Cost : std::uint8_t { FREE, SIMPLE, DIVIDE, TRANSCENDENTAL };

struct OpInfo {
  const char* name;
  const char*
      operands;  // one letter per operand: f float, i int32, ? either (all ? of an op are of one type)
  char result;   // f, i or ?
  ImmKind imm;
  Cost cost;
};

/// Facts about an operation; the number must be below kVecOps.
const OpInfo& info(VecOp op);

/// d[0..n) = op(a, b, c) over lanes; n is a multiple of kLaneGroup and the buffers are 64-byte aligned.
using LaneFn = void (*)(float* d, const float* a, const float* b, const float* c, int n);
inline constexpr int kLaneGroup = 16;
/// The lane function, or nullptr for operations that take an immediate.
LaneFn lane_function(VecOp op);

}  // namespace loom::chip
