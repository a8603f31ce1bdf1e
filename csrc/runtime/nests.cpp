// A dim that walks a stick axis moves in two ways: lane by lane inside a stick, and from stick to stick. Each
// becomes a loop of its own; sticks that are entered or left half-way give nests of their own.
#include "runtime/nests.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "runtime/cursor.h"

namespace loom::rt {
namespace {

/// Shares of a transfer that cover this many bytes in a row on both sides do not disturb each other.
constexpr std::int64_t kApart = 64 << 10;

/// How one dim moves one side.
struct Walk {
  std::int64_t step = 0;       // elements for one further index, while no stick ends
  std::int64_t slots = 0;      // indices per stick; 0: no stick ever ends
  std::int64_t first = 0;      // slot of index 0
  std::int64_t next_tile = 0;  // elements from a slot to the same slot of the next stick
};

/// The walks of one side; nothing when a stick is not walked evenly.
std::optional<std::vector<Walk>> walks(const Moves& plan, int which, const Side& side) {
  const auto& moves = plan.moves[which];
  std::vector<Walk> out(moves.size());
  std::vector<std::size_t> along;
  for (std::size_t d = 0; d < moves.size(); ++d) {
    out[d].step = moves[d].step;
    if (moves[d].stick) along.push_back(d);
  }
  if (along.empty()) return out;
  const Layout& layout = *side.layout;
  const std::int64_t lanes = rt::lanes(layout.format);
  // Sticks that follow one another are one long stick.
  if (layout.tile_stride == lanes) return out;
  std::sort(along.begin(), along.end(),
            [&](std::size_t a, std::size_t b) { return moves[a].step < moves[b].step; });
  // Lanes that the dims so far may reach: they must stay inside one slot of the next dim.
  const std::int64_t low = make_cursor(side).x % lanes;
  std::int64_t high = low;
  for (std::size_t d : along) {
    const std::int64_t n = plan.sizes[d], step = moves[d].step;
    if (step % lanes == 0) {
      out[d].step = step / lanes * layout.tile_stride;
    } else if (high + (n - 1) * step < lanes) {
      high += (n - 1) * step;
    } else if (lanes % step == 0 && low / step == high / step) {
      out[d] = {step, lanes / step, low / step, layout.tile_stride};
      high = lanes - 1;
    } else {
      return std::nullopt;
    }
  }
  return out;
}

/// A range of one dim whose sticks are walked alike.
struct Piece {
  std::int64_t start, tiles, slots;
};

std::vector<Piece> pieces(std::int64_t n, std::int64_t slots, std::int64_t first) {
  std::vector<Piece> out;
  const std::int64_t head = first == 0 ? 0 : std::min(n, slots - first);
  if (head > 0) out.push_back({0, 1, head});
  const std::int64_t tiles = (n - head) / slots, tail = (n - head) % slots;
  if (tiles > 0) out.push_back({head, tiles, slots});
  if (tail > 0) out.push_back({n - tail, 1, tail});
  return out;
}

}  // namespace

std::vector<Nest> cut(const Moves& plan, const Side& dst, const Side& src) {
  const Side* sides[2] = {&dst, &src};
  std::vector<Walk> by_side[2];
  Nest start;
  for (int k = 0; k < 2; ++k) {
    auto found = walks(plan, k, *sides[k]);
    if (!found) return {};
    by_side[k] = std::move(*found);
    start.base[k] = make_cursor(*sides[k]).address();
  }
  std::vector<Nest> nests{std::move(start)};
  for (std::size_t d = 0; d < plan.sizes.size(); ++d) {
    const Walk w[2] = {by_side[0][d], by_side[1][d]};
    if (w[0].slots == 0 && w[1].slots == 0) {
      for (Nest& nest : nests) nest.loops.push_back({plan.sizes[d], {w[0].step, w[1].step}});
      continue;
    }
    if (w[0].slots != 0 && w[1].slots != 0 && (w[0].slots != w[1].slots || w[0].first != w[1].first))
      return {};
    const Walk& by = w[0].slots != 0 ? w[0] : w[1];
    std::vector<Nest> all;
    for (const Piece& p : pieces(plan.sizes[d], by.slots, by.first)) {
      for (Nest nest : nests) {
        Loop tiles{p.tiles, {}}, lanes{p.slots, {}};
        for (int k = 0; k < 2; ++k) {
          lanes.step[k] = w[k].step;
          tiles.step[k] = w[k].slots != 0 ? w[k].next_tile : w[k].step * by.slots;
          std::int64_t at = p.start * w[k].step;
          if (w[k].slots != 0) {
            const std::int64_t slot = w[k].first + p.start;
            at = slot / w[k].slots * w[k].next_tile + (slot % w[k].slots - w[k].first) * w[k].step;
          }
          nest.base[k] += at * phys_bytes(sides[k]->phys);
        }
        nest.loops.push_back(tiles);
        nest.loops.push_back(lanes);
        all.push_back(std::move(nest));
      }
    }
    nests = std::move(all);
  }
  return nests;
}

std::vector<Loop> simplify(const std::vector<Loop>& loops) {
  std::vector<Loop> sorted;
  for (const Loop& l : loops)
    if (l.size != 1) sorted.push_back(l);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Loop& a, const Loop& b) {
    return std::pair{a.step[0], a.step[1]} > std::pair{b.step[0], b.step[1]};
  });
  std::vector<Loop> out;
  for (const Loop& l : sorted) {
    if (!out.empty() && out.back().step[0] == l.step[0] * l.size &&
        out.back().step[1] == l.step[1] * l.size) {
      out.back() = {out.back().size * l.size, {l.step[0], l.step[1]}};
    } else {
      out.push_back(l);
    }
  }
  return out;
}

std::optional<Nest> take(const Nest& nest, Share share, Phys dst, Phys src) {
  if (share.of == 1) return nest;
  Nest out{simplify(nest.loops), {nest.base[0], nest.base[1]}};
  if (out.loops.empty()) return share.number == 0 ? std::optional(out) : std::nullopt;
  const std::int64_t bytes[2] = {phys_bytes(dst), phys_bytes(src)};
  // Bytes that a share of a loop's indices covers in a row, on the side where they are fewer: threads that
  // take turns within a few cache lines are slower together than one of them alone.
  auto together = [&](const Loop& l) {
    const std::int64_t near = std::min(std::abs(l.step[0]) * bytes[0], std::abs(l.step[1]) * bytes[1]);
    return std::min(l.size / share.of * near, kApart);
  };
  // Of the loops that keep shares apart the longest, which gives the most equal shares.
  Loop& l = *std::max_element(out.loops.begin(), out.loops.end(), [&](const Loop& a, const Loop& b) {
    return std::pair{together(a), a.size} < std::pair{together(b), b.size};
  });
  const std::int64_t first = l.size * share.number / share.of;
  const std::int64_t last = l.size * (share.number + 1) / share.of;
  for (int k = 0; k < 2; ++k) out.base[k] += first * l.step[k] * bytes[k];
  l.size = last - first;
  if (l.size == 0) return std::nullopt;
  return out;
}

}  // namespace loom::rt
