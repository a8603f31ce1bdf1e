// Instruction words of one stream: tagged operands, every read bounded by the current instruction.
// Mirrors torch_loom/spyrecode/words.py and instructions.py.
#include <bit>
#include <cstring>

#include "chip/ops.h"
#include "chip/program.h"

namespace loom::chip {

namespace {

enum class Kind : std::uint32_t { IMM, SLOT, REG, WIDE, LX, QUEUE, CHANNEL, RAW, EXPR, ARG, VOP, SEGMENT };
constexpr std::int64_t kSmall = 1 << 27;
constexpr int kLeaves[] = {128, 1, 2, 4};

class Reader {
 public:
  Reader(Unit unit, std::span<const std::uint8_t> words)
      : unit_(unit), words_(words), count_(words.size() / 4) {}

  std::uint32_t begin() {
    start_ = at_;
    if (at_ >= count_) fail("the stream has no END");
    const std::uint32_t head = raw_word(at_);
    const std::size_t length = head >> 16;
    if (length < 1 || length > count_ - at_) fail("instruction length leaves the stream");
    end_ = at_ + length;
    ++at_;
    return head & 0xFFFF;
  }
  void end() const {
    if (at_ != end_) fail("words too many");
  }
  bool at_end_of_stream() const { return at_ == count_; }

  std::uint32_t word() {
    if (at_ >= end_) fail("an operand word is missing");
    return raw_word(at_++);
  }
  std::uint32_t tagged(Kind kind) {
    const std::uint32_t w = word();
    if ((w & 15) != static_cast<std::uint32_t>(kind)) fail("an operand of another kind");
    return w >> 4;
  }
  std::uint32_t raw(std::int64_t limit, const char* what) {
    const std::uint32_t value = tagged(Kind::RAW);
    if (value > limit)
      fail(std::string(what) + " " + std::to_string(value) + " exceeds " + std::to_string(limit));
    return value;
  }
  std::int64_t wide() {
    const std::uint64_t low = word(), high = word();
    return static_cast<std::int64_t>(low | high << 32);
  }
  Operand operand() {
    const std::uint32_t w = word();
    const std::int64_t payload = w >> 4;
    switch (static_cast<Kind>(w & 15)) {
      case Kind::IMM:
        return {OperandKind::IMM, payload >= kSmall ? payload - 2 * kSmall : payload};
      case Kind::SLOT:
        return {OperandKind::SLOT, payload};
      case Kind::REG:
        return {OperandKind::REG, payload};
      case Kind::WIDE: {
        const std::int64_t value = wide();
        if (payload || (-kSmall <= value && value < kSmall)) fail("a wide immediate that is not needed");
        return {OperandKind::IMM, value};
      }
      default:
        fail("a number is expected");
    }
  }
  std::vector<Operand> operands(std::uint32_t n) {
    std::vector<Operand> found;
    for (std::uint32_t i = 0; i < n; ++i) found.push_back(operand());
    return found;
  }
  LxRef lx() {
    const std::uint32_t payload = tagged(Kind::LX);
    LxRef ref;
    ref.block = payload & 0x3FFF;
    ref.channel = static_cast<std::int32_t>(payload >> 14) - 1;
    ref.offset = operand();
    return ref;
  }
  [[noreturn]] void fail(const std::string& message) const {
    malformed(std::string("unit ") + kUnitNames[static_cast<int>(unit_)] + ", word " +
              std::to_string(start_) + ": " + message);
  }

 private:
  std::uint32_t raw_word(std::size_t i) const {
    std::uint32_t w;
    std::memcpy(&w, words_.data() + 4 * i, 4);
    return w;
  }
  Unit unit_;
  std::span<const std::uint8_t> words_;
  std::size_t count_, at_ = 0, start_ = 0, end_ = 0;
};

Dma read_dma(Reader& r, Unit unit) {
  Dma d;
  const std::uint32_t flags = r.raw(31, "transfer flags");
  d.shared = (flags & 16) != 0;
  d.leaf = kLeaves[flags & 3];
  d.zero_fill = (flags & 4) != 0;
  d.has_lanes = (flags & 8) != 0;
  d.store = unit == Unit::MNISU;
  d.arg = r.tagged(Kind::ARG);
  d.ddr = r.operand();
  d.lx = r.lx();
  const std::uint32_t rank = r.raw(limits::kRank, "transfer rank");
  for (std::uint32_t i = 0; i < rank; ++i) {
    DmaDim dim;
    for (Operand* field : {&dim.extent, &dim.lo, &dim.hi, &dim.ddr_stride, &dim.lx_stride})
      *field = r.operand();
    d.dims.push_back(dim);
  }
  d.byte_lo = r.operand();
  d.byte_hi = r.operand();
  const Operand no_lo{OperandKind::IMM, 0}, no_hi{OperandKind::IMM, std::int64_t{1} << 40};
  d.masked = !(d.byte_lo == no_lo && d.byte_hi == no_hi);
  for (std::uint32_t i = 0, n = r.raw(limits::kGathers, "gather count"); i < n; ++i) {
    Gather g;
    g.lane = r.raw(1, "lane flag") != 0;
    g.index = r.lx();
    g.strides = r.operands(rank);
    g.scale = r.operand();
    g.bound = r.operand();
    d.gathers.push_back(std::move(g));
  }
  if (d.has_lanes) {
    d.lanes.elems = r.raw(1 << 16, "elements per stick");
    d.lanes.start = r.operand();
    d.lanes.tile_stride = r.operand();
    d.lanes.strides = r.operands(rank);
  }
  if (d.shared) {
    d.group = r.operand();
    d.sharers = r.operand();
    if (d.group == Operand{} && d.sharers == Operand{OperandKind::IMM, 1})
      r.fail("a transfer shared by one core");
  }
  return d;
}

RingCopy read_ring_copy(Reader& r) {
  RingCopy c;
  c.leaf = kLeaves[r.raw(3, "leaf")];
  c.core = r.operand();
  c.source = r.lx();
  c.target = r.lx();
  for (std::uint32_t i = 0, n = r.raw(limits::kRank, "ring copy rank"); i < n; ++i) {
    RingDim dim;
    for (Operand* field : {&dim.extent, &dim.source_stride, &dim.target_stride}) *field = r.operand();
    c.dims.push_back(dim);
  }
  return c;
}

Port read_port(Reader& r) {
  Port port;
  port.seg = r.tagged(Kind::SEGMENT);
  port.queue = r.tagged(Kind::QUEUE);
  port.lx = r.lx();
  port.elem = static_cast<Elem>(r.raw(kElems - 1, "element"));
  port.strides = r.operands(r.raw(limits::kRank, "rank"));
  return port;
}

PtPart read_pt(Reader& r) {
  PtPart part;
  part.seg = r.tagged(Kind::SEGMENT);
  part.a = r.tagged(Kind::QUEUE);
  part.b = r.tagged(Kind::QUEUE);
  part.out = r.tagged(Kind::QUEUE);
  part.k = r.operand();
  return part;
}

VOp read_op(Reader& r) {
  const std::uint32_t payload = r.tagged(Kind::VOP);
  if ((payload & 0xFFF) >= kVecOps) r.fail("unknown lane operation " + std::to_string(payload & 0xFFF));
  VOp op{};
  op.op = static_cast<VecOp>(payload & 0xFFF);
  op.dst = payload >> 12;
  const std::uint32_t ab = r.word();
  op.a = ab & 0xFFFF;
  op.b = ab >> 16;
  op.c = r.word();
  switch (info(op.op).imm) {
    case ImmKind::NONE:
      break;
    case ImmKind::INT:
      op.imm_int = r.wide();
      break;
    case ImmKind::FLOAT:
      op.imm_float = std::bit_cast<double>(r.wide());
      break;
  }
  return op;
}

VecPart read_vec(Reader& r) {
  VecPart part;
  part.seg = r.tagged(Kind::SEGMENT);
  const std::uint32_t rank = r.raw(limits::kRank, "rank");
  part.extents = r.operands(rank);
  part.corelet_dim = static_cast<int>(r.raw(rank, "corelet dim")) - 1;
  for (std::uint32_t i = 0, n = r.raw(limits::kVecPorts, "inputs"); i < n; ++i)
    part.inputs.push_back(r.tagged(Kind::QUEUE));
  for (std::uint32_t i = 0, n = r.raw(limits::kVecOps, "operations"); i < n; ++i)
    part.ops.push_back(read_op(r));
  for (std::uint32_t i = 0, n = r.raw(limits::kVecPorts, "outputs"); i < n; ++i) {
    VecOut out{};
    out.reg = r.raw(limits::kVecRegisters - 1, "register");
    out.queue = r.tagged(Kind::QUEUE);
    out.reduce = static_cast<Reduce>(r.raw(kReduces - 1, "reduction"));
    out.dims = r.raw((1 << rank) - 1, "reduced dims");
    part.outputs.push_back(out);
  }
  return part;
}

template <class T>
std::uint32_t add(std::vector<T>& table, T part) {
  table.push_back(std::move(part));
  return static_cast<std::uint32_t>(table.size() - 1);
}

}  // namespace

void read_stream(Program& p, Unit unit, std::span<const std::uint8_t> words) {
  Reader r(unit, words);
  auto& stream = p.streams[static_cast<std::size_t>(unit)];
  std::vector<std::uint32_t> open;
  for (std::int64_t count = 1;; ++count) {
    const std::uint32_t code = r.begin();
    if (count > limits::kInstructions) r.fail("too many instructions");
    if (code < 1 || code > static_cast<std::uint32_t>(Opcode::RING_RELEASE))
      r.fail("unknown opcode " + std::to_string(code));
    Instr in{static_cast<Opcode>(code), unit, 0, 0, {}};
    const auto here = static_cast<std::uint32_t>(stream.size());
    switch (in.op) {
      case Opcode::LOOP:
        in.a = r.tagged(Kind::REG);
        in.count = r.operand();
        open.push_back(here);
        if (open.size() > limits::kNesting) r.fail("loops nested too deep");
        break;
      case Opcode::END_LOOP:
        if (open.empty()) r.fail("END_LOOP without LOOP");
        in.b = open.back();
        stream[open.back()].b = here;
        open.pop_back();
        break;
      case Opcode::LET:
        in.a = r.tagged(Kind::REG);
        in.b = r.tagged(Kind::EXPR);
        break;
      case Opcode::ACQUIRE:
      case Opcode::RELEASE: {
        const std::uint32_t payload = r.tagged(Kind::CHANNEL);
        in.a = payload >> 1;
        in.b = payload & 1;
        break;
      }
      case Opcode::RING_ACQUIRE:
      case Opcode::RING_RELEASE: {
        const std::uint32_t payload = r.tagged(Kind::CHANNEL);
        in.a = payload >> 1;
        in.b = payload & 1;
        in.count = r.operand();
        break;
      }
      case Opcode::RING_COPY:
        in.a = add(p.ring_copies, read_ring_copy(r));
        break;
      case Opcode::DMA:
        in.a = add(p.dmas, read_dma(r, unit));
        break;
      case Opcode::SEG_LOAD:
        in.a = add(p.loads, read_port(r));
        break;
      case Opcode::SEG_STORE:
        in.a = add(p.stores, read_port(r));
        break;
      case Opcode::SEG_PT:
        in.a = add(p.pts, read_pt(r));
        break;
      case Opcode::SEG_VEC:
        in.a = add(p.vecs, read_vec(r));
        break;
      case Opcode::END:
        break;
    }
    r.end();
    if (in.op == Opcode::END) break;
    stream.push_back(in);
  }
  if (!open.empty()) r.fail("END inside a loop");
  if (!r.at_end_of_stream()) r.fail("words after END");
}

}  // namespace loom::chip
