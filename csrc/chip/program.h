// A program in memory: the tables and streams of the binary, and what the linker makes of them.
// Everything here is immutable after decode(); cores read it concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "chip/chip.h"
#include "chip/limits.h"

namespace loom::chip {

enum class Unit : std::uint8_t { MNILU, MNISU, L1LU, PT, SFU, L1SU };
inline constexpr int kUnits = 6;
inline constexpr const char* kUnitNames[kUnits] = {"MNILU", "MNISU", "L1LU", "PT", "SFU", "L1SU"};
inline constexpr Unit kComputeUnits[] = {Unit::L1LU, Unit::PT, Unit::SFU, Unit::L1SU};
inline bool is_compute(Unit u) { return u >= Unit::L1LU; }

enum class Elem : std::uint8_t { DF16, F32, I32, F16, BF16, I16, I8, U8, I64 };
inline constexpr int kElems = 9;
inline constexpr int kElemBytes[kElems] = {2, 4, 4, 2, 2, 2, 1, 1, 8};
inline int bytes_of(Elem e) { return kElemBytes[static_cast<int>(e)]; }
inline bool is_integer(Elem e) {
  return e == Elem::I32 || e == Elem::I16 || e == Elem::I8 || e == Elem::U8 || e == Elem::I64;
}

enum class ExprOp : std::uint8_t {
  CONST,
  SYM,
  CORE,
  SLOT,
  REG,
  ADD,
  SUB,
  MUL,
  FLOORDIV,
  CEILDIV,
  MOD,
  MIN,
  MAX
};
inline constexpr int kExprOps = 13;
struct Token {
  ExprOp op;
  std::int64_t value;
};
/// Tokens first .. first + count of Program::tokens.
struct ExprRef {
  std::uint32_t first = 0, count = 0;
};

enum class OperandKind : std::uint8_t { IMM, SLOT, REG };
struct Operand {
  OperandKind kind = OperandKind::IMM;
  std::int64_t value = 0;
  bool operator==(const Operand&) const = default;
};

enum class Opcode : std::uint16_t {
  LOOP = 1,
  END_LOOP,
  LET,
  ACQUIRE,
  RELEASE,
  DMA,
  SEG_LOAD,
  SEG_PT,
  SEG_VEC,
  SEG_STORE,
  END,
  RING_COPY,
  RING_ACQUIRE,
  RING_RELEASE
};

/// One instruction of a stream or of linked code.
/// LOOP: a = register, b = index of its END_LOOP, count. END_LOOP: b = index of its LOOP.
/// LET: a = register, b = let expression. ACQUIRE, RELEASE: a = channel, b = side.
/// RING_ACQUIRE, RING_RELEASE: a = channel, b = side, count = the other core.
/// Others: a = index into the table of that kind. SEGMENT (linked code only) uses SEG_VEC with a = segment.
struct Instr {
  Opcode op;
  Unit unit;
  std::uint32_t a = 0, b = 0;
  Operand count;
};

struct LxRef {
  std::uint32_t block = 0;
  std::int32_t channel = -1;
  Unit phase_unit = Unit::MNILU;  // whose releases select the phase (set by validation)
  Operand offset;
};

struct DmaDim {
  Operand extent, lo, hi, ddr_stride, lx_stride;
};
struct Gather {
  LxRef index;
  std::vector<Operand> strides;
  Operand scale, bound;
  bool lane = false;
};
struct LaneSplit {
  Operand start, tile_stride;
  std::vector<Operand> strides;
  std::int64_t elems = 1;
};
struct Dma {
  std::uint32_t arg = 0;
  Operand ddr;
  LxRef lx;
  std::vector<DmaDim> dims;
  int leaf = 128;
  bool zero_fill = false, has_lanes = false, store = false;
  std::vector<Gather> gathers;
  LaneSplit lanes;
  Operand byte_lo, byte_hi;
  bool masked = false;
  Operand group, sharers{OperandKind::IMM, 1};  // cores of one group fetch the same bytes
  bool shared = false;
};

struct RingDim {
  Operand extent, source_stride, target_stride;
};
struct RingCopy {
  Operand core;
  LxRef source, target;
  std::vector<RingDim> dims;
  int leaf = 128;
};

struct Port {  // a SegLoad or a SegStore
  std::uint32_t seg = 0, queue = 0;
  LxRef lx;
  Elem elem = Elem::DF16;
  std::vector<Operand> strides;
};
struct PtPart {
  std::uint32_t seg = 0, a = 0, b = 0, out = 0;
  Operand k;
};

enum class VecOp : std::uint16_t;  // numbers of torch_loom/spyrecode/model.py, see ops.h
struct VOp {
  VecOp op;
  std::uint32_t dst, a, b, c;
  std::int64_t imm_int = 0;
  double imm_float = 0;
};
enum class Reduce : std::uint8_t { NONE, ADD, MUL, MAX, MIN, ADD_I, MUL_I, MAX_I, MIN_I, OR_M, AND_M };
inline constexpr int kReduces = 11;
struct VecOut {
  std::uint32_t reg, queue;
  Reduce reduce = Reduce::NONE;
  std::uint32_t dims = 0;  // bit mask
};
struct VecPart {
  std::uint32_t seg = 0;
  std::vector<Operand> extents;
  int corelet_dim = -1;
  std::vector<std::uint32_t> inputs;
  std::vector<VOp> ops;
  std::vector<VecOut> outputs;
};

/// A lane operation on numbered lane buffers (after renaming, hoisting and buffer reuse).
struct MicroOp {
  VecOp op;
  std::uint32_t dst, a, b, c;
  std::int64_t imm_int = 0;
  float imm_float = 0;
};

/// The joined parts of one segment. Input i of the SFU comes from loads[input_load[i]], or from PT when -1.
struct Segment {
  std::uint32_t number = 0;
  std::vector<Port> loads;  // those that feed the SFU
  bool has_pt = false;
  PtPart pt;
  Port pt_a, pt_b;
  VecPart vec;
  std::vector<Port> stores;  // in the order of vec.outputs
  std::vector<int> input_load;
  // Compiled lane program.
  std::vector<std::uint32_t> input_buffer;
  std::vector<std::uint32_t> output_buffer;
  std::vector<MicroOp> uniform;  // once per segment: constants and what depends on them only
  std::vector<MicroOp> lane;     // for every block of lanes
  std::uint32_t buffers = 0;
};

struct Symbol {
  std::string name;
  int kind;  // 0 address, 1 dimension, 2 scalar
  std::uint32_t arg;
  std::int64_t minimum, maximum, granularity;
};
struct Slot {
  ExprRef expr;
  bool per_core;
  std::uint32_t word;  // position of its first number in the value table
};
struct Guard {
  ExprRef expr;
  bool equal;
  std::string message;
};
struct Block {
  std::string name;
  std::int64_t phases, address, bytes;
};
struct Channel {
  std::string name;
  Unit producer, consumer;
  std::int64_t phases;
  std::vector<std::uint32_t> blocks;
  bool ring = false;
  std::uint32_t ring_number = 0;  // among the ring channels
};

/// The three sequences a core runs: MNILU, the compute group, MNISU.
enum Sequence : int { kLoadSequence, kComputeSequence, kStoreSequence };
inline constexpr int kSequences = 3;
inline constexpr const char* kSequenceNames[kSequences] = {"MNILU", "compute group", "MNISU"};

class Program {
 public:
  std::string name, chip;
  std::int64_t profile_cores = 0, corelets = 0, lx_bytes = 0, cores = 0;
  std::vector<ArgInfo> args;
  std::vector<Symbol> symbols;
  std::vector<Token> tokens;
  std::vector<Slot> slots;
  std::vector<ExprRef> lets;
  std::vector<Guard> guards;
  std::vector<Block> blocks;
  std::vector<Channel> channels;
  std::size_t table_words = 0;
  std::size_t rings = 0;      // ring channels
  std::size_t registers = 0;  // scalar registers any stream uses

  std::array<std::vector<Instr>, kUnits> streams;  // END not included
  std::vector<Dma> dmas;
  std::vector<RingCopy> ring_copies;
  std::vector<Port> loads, stores;
  std::vector<PtPart> pts;
  std::vector<VecPart> vecs;

  // Linked form.
  std::array<std::vector<Instr>, kSequences> code;
  std::vector<Segment> segments;
};

/// The parts of decode(), in order. Each throws Error.
void read_container(Program&, std::span<const std::uint8_t> image);  // SC-E15..E17
void read_stream(Program&, Unit, std::span<const std::uint8_t> words);
void validate(Program&);  // rules of torch_loom/spyrecode/validate.py; fills LxRef::phase_unit
void link(Program&);      // joins the compute group; fills code and segments
void compile_lanes(Segment&);

[[noreturn]] void malformed(const std::string& message);  // throws SC-E17

}  // namespace loom::chip
