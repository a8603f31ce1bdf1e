// The container and the tables of a binary. Mirrors torch_loom/spyrecode/container.py and sections.py:
// canonical layout only, checksums before content, every number bounded before it is used.
#include <algorithm>
#include <cstring>

#include "chip/hash.h"
#include "chip/program.h"

namespace loom::chip {

namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint8_t kMagic[8] = {0x89, 'L', 'S', 'P', '\r', '\n', 0x1a, '\n'};
constexpr std::size_t kHeader = 64, kHash = 32, kEntry = 32, kAlign = 128;
constexpr std::uint64_t kIndirect = 1, kPt = 2, kRing = 4;
constexpr const char* kTags[] = {"STRS", "META", "DEVP", "ARGS", "SYMS",
                                 "EXPR", "VALT", "GRDS", "LXMP", "CHAN"};
constexpr std::size_t kTables = std::size(kTags);
constexpr const char* kDebugTag = "DBGL";  // optional, skipped

[[noreturn]] void unsupported(const std::string& message) { throw Error("SC-E15", message); }
[[noreturn]] void damaged(const std::string& message) { throw Error("SC-E16", message); }

template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);  // little-endian host
  return value;
}

struct Section {
  std::string tag;
  std::uint32_t flags;
  Bytes body;
};

struct Image {
  std::vector<Section> sections;
  std::uint32_t flags = 0;
  std::uint64_t features = 0;
};

std::size_t up(std::size_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

bool any(Bytes bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](std::uint8_t b) { return b != 0; });
}

Image unpack(Bytes data) {
  const std::uint8_t* at = data.data();
  if (data.size() < kHeader + kHash || std::memcmp(at, kMagic, 8) != 0)
    unsupported("not a torch-loom SpyreCode image (magic bytes missing)");
  if (data.size() > limits::kFileBytes)
    malformed("file of " + std::to_string(data.size()) + " bytes is too large");
  if (crc32(data.first(44)) != load<std::uint32_t>(at + 44)) damaged("header checksum mismatch");
  const auto major = load<std::uint16_t>(at + 8), minor = load<std::uint16_t>(at + 10);
  if (major != 1)
    unsupported("format " + std::to_string(major) + "." + std::to_string(minor) +
                " is not supported, only 1.x is");
  if (load<std::uint64_t>(at + 16) != data.size())
    damaged("file of " + std::to_string(data.size()) + " bytes, the header says otherwise");
  const std::size_t end = data.size() - kHash;
  const auto digest = sha256(data.first(end));
  if (std::memcmp(digest.data(), at + end, kHash) != 0) damaged("file hash mismatch");
  Image image;
  image.flags = load<std::uint32_t>(at + 28);
  image.features = load<std::uint64_t>(at + 32);
  if (image.features & ~(kIndirect | kPt | kRing)) unsupported("required features are not supported");
  if (load<std::uint32_t>(at + 12) != kHeader || any(data.subspan(48, 16)) || (image.flags & ~3u))
    malformed("header fields out of range");
  const std::size_t count = load<std::uint32_t>(at + 24);
  const std::size_t table_end = kHeader + kEntry * count;
  if (count > 64 || table_end > end) malformed(std::to_string(count) + " sections do not fit the file");
  if (crc32(data.subspan(kHeader, kEntry * count)) != load<std::uint32_t>(at + 40))
    damaged("section table checksum mismatch");
  std::size_t cursor = table_end;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* entry = at + kHeader + kEntry * i;
    Section section{std::string(reinterpret_cast<const char*>(entry), 4), load<std::uint32_t>(entry + 4), {}};
    for (char& c : section.tag)
      if (c < ' ' || c > '~') c = '?';  // shown in messages; no known tag has such bytes
    const auto offset = load<std::uint64_t>(entry + 8), size = load<std::uint64_t>(entry + 16);
    if (offset != up(cursor) || load<std::uint32_t>(entry + 28) != kAlign || offset > end ||
        size > end - offset || (section.flags & ~1u))
      malformed("section " + section.tag + ": entry out of range");
    if (any(data.subspan(cursor, offset - cursor)))
      malformed("section " + section.tag + ": padding is not zero");
    section.body = data.subspan(offset, size);
    if (crc32(section.body) != load<std::uint32_t>(entry + 24))
      damaged("section " + section.tag + ": checksum mismatch");
    cursor = offset + size;
    image.sections.push_back(std::move(section));
  }
  if (cursor != end) malformed("bytes after the last section");
  return image;
}

/// The strings of a file while its sections are read; they must be met in the order of their numbers.
struct Pool {
  std::vector<std::string> texts;
  std::size_t met = 0;
};

/// Reads the records of one section in order.
class Cursor {
 public:
  Cursor(const Section& section, Pool& strings)
      : tag_(section.tag), body_(section.body), strings_(&strings) {}

  template <class T>
  T take() {
    if (body_.size() - at_ < sizeof(T)) fail("section ends early");
    const T value = load<T>(body_.data() + at_);
    at_ += sizeof(T);
    return value;
  }
  std::uint32_t u32() { return take<std::uint32_t>(); }
  std::int64_t i64() { return take<std::int64_t>(); }
  void zero(std::uint64_t value) {
    if (value) fail("reserved field is not zero");
  }
  std::uint32_t count(std::int64_t limit) {
    const std::uint32_t n = u32();
    if (n > limit) fail("count " + std::to_string(n) + " exceeds " + std::to_string(limit));
    zero(u32());
    return n;
  }
  const std::string& string() {
    const std::uint32_t number = u32();
    if (number >= strings_->texts.size() || number > strings_->met)
      fail("string " + std::to_string(number) + " is out of order or does not exist");
    strings_->met = std::max(strings_->met, std::size_t{number} + 1);
    return strings_->texts[number];
  }
  /// A value that must be below `limit`.
  template <class T>
  T below(std::uint64_t limit, const char* what) {
    const T value = take<T>();
    if (value >= limit) fail(std::to_string(value) + " is no " + what);
    return value;
  }
  Bytes rest() const { return body_.subspan(at_); }
  void end() {
    if (at_ != body_.size()) fail(std::to_string(body_.size() - at_) + " bytes too many");
  }
  [[noreturn]] void fail(const std::string& message) const {
    malformed("section " + tag_ + ", byte " + std::to_string(at_) + ": " + message);
  }

 private:
  std::string tag_;
  Bytes body_;
  Pool* strings_;
  std::size_t at_ = 0;
};

bool is_utf8(Bytes s) {
  for (std::size_t i = 0; i < s.size();) {
    const std::uint8_t b = s[i++];
    if (b < 0x80) continue;
    const int extra = b >= 0xF0 ? 3 : b >= 0xE0 ? 2 : 1;
    if (b < 0xC2 || b > 0xF4 || i + static_cast<std::size_t>(extra) > s.size()) return false;
    std::uint32_t code = b & (0x3F >> extra);
    for (int k = 0; k < extra; ++k) {
      if ((s[i] & 0xC0) != 0x80) return false;
      code = code << 6 | (s[i++] & 0x3F);
    }
    const bool shortest = code >= (extra == 1 ? 0x80u : extra == 2 ? 0x800u : 0x10000u);
    if (!shortest || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
  }
  return true;
}

std::vector<std::string> read_strings(const Section& section) {
  Pool none;
  Cursor c(section, none);
  const std::uint32_t count = c.u32(), total = c.u32();
  if (count > limits::kStrings) c.fail("too many strings");
  std::vector<std::pair<std::uint32_t, std::uint32_t>> spans;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t offset = c.u32();
    spans.emplace_back(offset, c.u32());
  }
  const Bytes text = c.rest();
  if (text.size() != total) c.fail("text size mismatch");
  std::vector<std::string> found;
  std::size_t at = 0;
  for (auto [offset, length] : spans) {
    if (offset != at || length > limits::kStringBytes || length > total - at) c.fail("string out of range");
    const Bytes raw = text.subspan(at, length);
    if (!is_utf8(raw)) c.fail("string " + std::to_string(found.size()) + " is not UTF-8");
    found.emplace_back(raw.begin(), raw.end());
    at += length;
  }
  auto sorted = found;
  std::sort(sorted.begin(), sorted.end());
  if (at != total || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    c.fail("text not used by a string, or a string stored twice");
  return found;
}

void read_meta(Program& p, Cursor c) {
  p.name = c.string();
  const std::uint32_t count = c.u32();
  if (count > limits::kGuards) c.fail("too many entries");
  std::string last;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string key = c.string();
    c.string();
    if (i && key <= last) c.fail("keys must be unique and sorted");
    last = key;
  }
  c.end();
}

void read_profile(Program& p, Cursor c) {
  p.chip = c.string();
  p.profile_cores = c.u32();
  p.corelets = c.u32();
  const std::uint32_t stick = c.u32();
  p.lx_bytes = c.i64();
  p.cores = c.u32();
  c.zero(c.u32());
  c.end();
  if (stick != 128) unsupported("sticks of " + std::to_string(stick) + " bytes; 128 is the only size");
}

void read_tables(Program& p, std::vector<Cursor>& table, const Pool& strings) {
  Cursor& args = table[3];
  for (std::uint32_t i = 0, n = args.count(limits::kArgs); i < n; ++i) {
    ArgInfo arg;
    arg.name = args.string();
    arg.kind = args.below<std::uint8_t>(3, "argument kind");
    arg.elem = args.below<std::uint8_t>(kElems, "element");
    arg.access = args.below<std::uint8_t>(4, "access");
    if (arg.access == 0) args.fail("0 is no access");
    args.zero(args.take<std::uint8_t>());
    p.args.push_back(std::move(arg));
  }
  Cursor& symbols = table[4];
  for (std::uint32_t i = 0, n = symbols.count(limits::kSymbols); i < n; ++i) {
    Symbol s;
    s.name = symbols.string();
    s.kind = static_cast<int>(symbols.below<std::uint32_t>(3, "symbol kind"));
    s.arg = symbols.u32();
    symbols.zero(symbols.u32());
    s.minimum = symbols.i64();
    s.maximum = symbols.i64();
    s.granularity = symbols.i64();
    p.symbols.push_back(std::move(s));
  }
  Cursor& exprs = table[5];
  std::vector<ExprRef> pool;
  const std::uint32_t expr_count = exprs.count(limits::kExprs);
  for (std::uint32_t i = 0; i < expr_count; ++i) {
    const ExprRef ref{exprs.u32(), 0};
    pool.push_back({ref.first, exprs.u32()});
  }
  for (const ExprRef& ref : pool) {
    if (ref.first != p.tokens.size() || ref.count > limits::kTokens) exprs.fail("expression out of range");
    for (std::uint32_t i = 0; i < ref.count; ++i) {
      const std::int64_t value = exprs.i64();
      p.tokens.push_back(
          {static_cast<ExprOp>(exprs.below<std::uint32_t>(kExprOps, "expression token")), value});
      exprs.zero(exprs.u32());
    }
  }
  Cursor& slots = table[6];
  const std::uint32_t slot_count = slots.count(limits::kSlots);
  for (std::uint32_t i = 0; i < slot_count; ++i) {
    if (slots.u32() != i || i >= pool.size()) slots.fail("slot names another expression");
    const bool per_core = slots.below<std::uint32_t>(2, "scope") == 1;
    p.slots.push_back({pool[i], per_core, static_cast<std::uint32_t>(p.table_words)});
    p.table_words += per_core ? static_cast<std::size_t>(p.cores) : 1;
  }
  Cursor& guards = table[7];
  const std::uint32_t guard_count = guards.count(limits::kGuards);
  if (guard_count + slot_count > expr_count) guards.fail("more slots and guards than expressions");
  for (std::uint32_t i = 0; i < guard_count; ++i) {
    const std::uint32_t expr = expr_count - guard_count + i;
    if (guards.u32() != expr) guards.fail("guard names another expression");
    const bool equal = guards.below<std::uint32_t>(2, "relation") == 1;
    p.guards.push_back({pool[expr], equal, guards.string()});
    guards.zero(guards.u32());
  }
  p.lets.assign(pool.begin() + slot_count, pool.end() - guard_count);
  Cursor& lx = table[8];
  const std::uint32_t block_count = lx.count(limits::kBlocks);
  const std::int64_t peak = lx.i64();
  for (std::uint32_t i = 0; i < block_count; ++i) {
    Block b;
    b.name = lx.string();
    b.phases = lx.u32();
    b.address = lx.i64();
    b.bytes = lx.i64();
    p.blocks.push_back(std::move(b));
  }
  Cursor& channels = table[9];
  const std::uint32_t channel_count = channels.count(limits::kChannels);
  std::vector<std::uint32_t> held;
  for (std::uint32_t i = 0; i < channel_count; ++i) {
    Channel c;
    c.name = channels.string();
    c.producer = static_cast<Unit>(channels.below<std::uint16_t>(kUnits, "unit"));
    c.consumer = static_cast<Unit>(channels.below<std::uint16_t>(kUnits, "unit"));
    c.phases = channels.take<std::uint16_t>();
    c.ring = channels.below<std::uint16_t>(2, "channel kind") == 1;
    if (c.ring) c.ring_number = static_cast<std::uint32_t>(p.rings++);
    held.push_back(channels.u32());
    if (held.back() > limits::kBlocks) channels.fail("too many blocks in a channel");
    p.channels.push_back(std::move(c));
  }
  for (std::uint32_t i = 0; i < channel_count; ++i)
    for (std::uint32_t k = 0; k < held[i]; ++k) p.channels[i].blocks.push_back(channels.u32());
  for (std::size_t i = 3; i < kTables; ++i) table[i].end();
  if (strings.met != strings.texts.size()) malformed("section STRS holds strings that nothing uses");
  // The peak is checked once the blocks themselves are known to be sane.
  validate(p);
  std::int64_t top = 0;
  for (const Block& b : p.blocks) top = std::max(top, b.address + b.bytes * b.phases);
  if (top != peak) lx.fail("peak does not match the blocks");
}

}  // namespace

void malformed(const std::string& message) { throw Error("SC-E17", message); }

void read_container(Program& p, Bytes data) {
  const Image image = unpack(data);
  std::vector<const Section*> known;
  bool debug = false;
  for (const Section& s : image.sections) {
    const bool is_known =
        s.tag == "UNIT" || std::find(std::begin(kTags), std::end(kTags), s.tag) != std::end(kTags);
    if (is_known) known.push_back(&s);
    if (!is_known && (s.flags & 1)) malformed("unknown required section " + s.tag);
    if (is_known && !(s.flags & 1)) malformed("section " + s.tag + " is not marked required");
    debug |= s.tag == kDebugTag;
  }
  if (((image.flags & 2) != 0) != debug) malformed("header flag for debug data does not match the sections");
  for (std::size_t i = 0; i < kTables; ++i)
    if (i >= known.size() || known[i]->tag != kTags[i])
      malformed(std::string("section ") + kTags[i] + " is missing or out of order");
  Pool strings{read_strings(*known[0])};
  std::vector<Cursor> table;
  for (std::size_t i = 0; i < kTables; ++i) table.emplace_back(*known[i], strings);
  read_meta(p, table[1]);
  read_profile(p, table[2]);
  if (p.cores < 1 || p.cores > limits::kCores) malformed(std::to_string(p.cores) + " cores used");
  // Streams come first so that one validation sees the whole program.
  int last = -1;
  for (std::size_t i = kTables; i < known.size(); ++i) {
    if (known[i]->tag != "UNIT") malformed("section " + known[i]->tag + " after UNIT");
    Cursor c(*known[i], strings);
    const auto unit = static_cast<int>(c.below<std::uint32_t>(kUnits, "unit"));
    const std::uint32_t words = c.u32();
    if (unit <= last) malformed("UNIT sections must be in ascending order");
    last = unit;
    if (c.rest().size() != std::size_t{4} * words) c.fail("word count mismatch");
    read_stream(p, static_cast<Unit>(unit), c.rest());
  }
  read_tables(p, table, strings);
  bool symbolic = false, indirect = false;
  for (const Symbol& s : p.symbols) symbolic |= s.kind == 1;
  for (const Dma& d : p.dmas) indirect |= !d.gathers.empty() || d.has_lanes;
  if (((image.flags & 1) != 0) != symbolic)
    malformed("header flag for symbolic shapes does not match the symbols");
  if (image.features !=
      ((indirect ? kIndirect : 0) | (p.pts.empty() ? 0 : kPt) | (p.ring_copies.empty() ? 0 : kRing)))
    malformed("feature mask does not match the instructions");
}

std::shared_ptr<const Program> decode(Bytes image) {
  auto program = std::make_shared<Program>();
  read_container(*program, image);
  link(*program);
  return program;
}

const std::string& name_of(const Program& p) { return p.name; }
const std::vector<ArgInfo>& args_of(const Program& p) { return p.args; }
int cores_of(const Program& p) { return static_cast<int>(p.cores); }
std::size_t table_words(const Program& p) { return p.table_words; }

}  // namespace loom::chip
