#include "tests/mutate.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace loom::tests {

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& r, std::size_t n) { return n ? r() % n : 0; }

/// Numbers at which ranges and conversions end.
std::uint64_t edge(Random& r) {
  static constexpr std::uint64_t kEdges[] = {
      0,          1,          2,          3,          7,          8,          31,         32,
      63,         64,         127,        128,        255,        256,        0x7fff,     0xffff,
      0x10000,    0x7ffffff,  0x8000000,  0xfffffff,  0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
      1ull << 40, 1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull};
  return kEdges[below(r, std::size(kEdges))];
}

/// Changes one byte, word or double word of [from, to) in place.
void edit(Bytes& data, std::size_t from, std::size_t to, Random& r) {
  if (from >= to) return;
  const std::size_t width = std::size_t{1} << (2 * below(r, 2) + below(r, 2));  // 1, 2, 4, 8
  const std::size_t at = from + below(r, to - from) / width * width;
  if (at + width > to) {
    data[from + below(r, to - from)] = static_cast<std::uint8_t>(r());
    return;
  }
  std::uint64_t value = 0;
  std::memcpy(&value, data.data() + at, width);
  switch (below(r, 6)) {
    case 0:
      value ^= std::uint64_t{1} << below(r, 8 * width);
      break;
    case 1:
      value = edge(r);
      break;
    case 2:
      value += 1 + below(r, 4);
      break;
    case 3:
      value -= 1 + below(r, 4);
      break;
    case 4:
      value += std::uint64_t{16} << below(r, 8);  // a step of an operand's payload
      break;
    default:
      value = r();
  }
  std::memcpy(data.data() + at, &value, width);
}

using Kind = void (*)(Container&, const Container& other, Random&);

Section* pick(Container& c, Random& r) {
  return c.sections.empty() ? nullptr : &c.sections[below(r, c.sections.size())];
}

void edit_sections(Container& c, const Container&, Random& r) {
  for (std::size_t n = 1 + below(r, 3); n--;)
    if (Section* s = pick(c, r)) edit(s->body, 0, s->body.size(), r);
}

/// Only streams: the part of a file with most structure.
void edit_streams(Container& c, const Container&, Random& r) {
  std::vector<Section*> units;
  for (Section& s : c.sections)
    if (s.tag == "UNIT") units.push_back(&s);
  if (units.empty()) return;
  for (std::size_t n = 1 + below(r, 3); n--;) {
    Section* s = units[below(r, units.size())];
    edit(s->body, std::min<std::size_t>(8, s->body.size()), s->body.size(), r);
  }
}

/// Operands get other numbers, slots or registers, while the structure of the stream stays: most of these
/// mutants pass the decoder and have to be caught, or be harmless, when they run.
void edit_operands(Container& c, const Container&, Random& r) {
  std::vector<Section*> units;
  for (Section& s : c.sections)
    if (s.tag == "UNIT" && s.body.size() > 12) units.push_back(&s);
  if (units.empty()) return;
  for (std::size_t n = 1 + below(r, 2), tries = 200; n && tries; --tries) {
    Section* s = units[below(r, units.size())];
    std::uint8_t* at = s->body.data() + 8 + 4 * below(r, (s->body.size() - 8) / 4);
    std::uint32_t word = 0;
    std::memcpy(&word, at, 4);
    const std::uint32_t kind = word & 15;
    if (kind > 4) continue;  // IMM, SLOT, REG, LX
    std::uint32_t payload = word >> 4;
    constexpr std::uint32_t kSteps[] = {1, 2, 3, 64, 128, 4096};
    const std::uint32_t step = kind == 0 ? kSteps[below(r, std::size(kSteps))] : 1;
    payload =
        below(r, 8) ? (below(r, 2) ? payload + step : payload - step) : static_cast<std::uint32_t>(edge(r));
    word = payload << 4 | kind;
    std::memcpy(at, &word, 4);
    --n;
  }
}

/// Tables whose numbers the launch works with: expressions, symbols, blocks.
void edit_tables(Container& c, const Container&, Random& r) {
  for (std::size_t tries = 50; tries--;) {
    Section* s = pick(c, r);
    if (!s || (s->tag != "EXPR" && s->tag != "SYMS" && s->tag != "LXMP" && s->tag != "VALT")) continue;
    edit(s->body, std::min<std::size_t>(8, s->body.size()), s->body.size(), r);
    return;
  }
}

/// Words go missing, come twice or change places.
void move_words(Container& c, const Container&, Random& r) {
  Section* s = pick(c, r);
  if (!s || s->body.size() < 8) return;
  const std::size_t words = s->body.size() / 4, from = below(r, words), to = below(r, words);
  const std::size_t count = 1 + below(r, std::min<std::size_t>(words - from, 16));
  const auto at = [&](std::size_t w) { return s->body.begin() + static_cast<std::ptrdiff_t>(4 * w); };
  const Bytes moved(at(from), at(from + count));
  if (below(r, 2)) s->body.erase(at(from), at(from + count));
  const std::size_t place = std::min(to, s->body.size() / 4);
  if (below(r, 3)) s->body.insert(at(place), moved.begin(), moved.end());
  if (s->tag == "UNIT" && s->body.size() >= 8 && below(r, 2)) {
    const auto count_now = static_cast<std::uint32_t>((s->body.size() - 8) / 4);
    std::memcpy(s->body.data() + 4, &count_now, 4);
  }
}

void cut_section(Container& c, const Container&, Random& r) {
  if (Section* s = pick(c, r)) s->body.resize(below(r, s->body.size() + 8));
}

void change_sections(Container& c, const Container&, Random& r) {
  if (c.sections.empty()) return;
  const std::size_t a = below(r, c.sections.size()), b = below(r, c.sections.size());
  switch (below(r, 4)) {
    case 0:
      c.sections.erase(c.sections.begin() + static_cast<std::ptrdiff_t>(a));
      break;
    case 1:
      c.sections.push_back(Section(c.sections[a]));
      break;
    case 2:
      std::swap(c.sections[a], c.sections[b]);
      break;
    default:
      c.sections[a].tag[below(r, 4)] = static_cast<char>(r());
  }
}

void splice(Container& c, const Container& other, Random& r) {
  if (other.sections.empty()) return;
  for (std::size_t n = 1 + below(r, 2); n--;) {
    const Section& lent = other.sections[below(r, other.sections.size())];
    for (Section& s : c.sections)
      if (s.tag == lent.tag) {
        s = lent;
        if (below(r, 2)) break;
      }
  }
}

void edit_header(Container& c, const Container&, Random& r) { edit(c.header, 8, 64, r); }

constexpr struct {
  const char* name;
  int weight;
  Kind apply;
} kKinds[] = {
    {"section edit", 6, edit_sections},       {"stream edit", 8, edit_streams},
    {"operand edit", 14, edit_operands},      {"table edit", 6, edit_tables},
    {"words moved", 3, move_words},           {"section cut", 1, cut_section},
    {"sections changed", 1, change_sections}, {"spliced", 2, splice},
    {"header edit", 1, edit_header},
};

}  // namespace

Mutant mutate(const std::vector<Bytes>& corpus, std::size_t which, Random& r) {
  const Bytes& image = corpus[which];
  switch (below(r, 24)) {
    case 0: {
      Mutant m{"damaged byte", image, false};
      m.image[below(r, image.size())] ^= static_cast<std::uint8_t>(1 + below(r, 255));
      return m;
    }
    case 1: {
      Mutant m{"truncated", image, false};
      m.image.resize(below(r, image.size()));
      return m;
    }
    case 2: {
      Mutant m{"truncated, resealed", image};
      m.image.resize(below(r, image.size()));
      if (m.image.size() >= 64) {
        const std::uint64_t size = m.image.size();
        std::memcpy(m.image.data() + 16, &size, 8);
      }
      reseal(m.image);
      return m;
    }
    case 3: {  // the section table included
      Mutant m{"bytes edited, resealed", image};
      edit(m.image, 8, std::min<std::size_t>(image.size(), 64 + 32 * 17), r);
      reseal(m.image);
      return m;
    }
    default: {
      int total = 0;
      for (const auto& kind : kKinds) total += kind.weight;
      auto at = static_cast<int>(below(r, static_cast<std::size_t>(total)));
      const auto* kind = kKinds;
      while (at >= kind->weight) at -= kind++->weight;
      Container c = unpack(image);
      kind->apply(c, unpack(corpus[below(r, corpus.size())]), r);
      return {kind->name, pack(c)};
    }
  }
}

}  // namespace loom::tests
