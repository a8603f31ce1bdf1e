// Buffers that are kept in LX between the programs of a job: what a launch may assume about them.
#include <algorithm>

#include "chip/program.h"

namespace loom::chip {

std::int64_t lx_used(const Program& p) {
  std::int64_t end = 0;
  for (const Block& b : p.blocks) end = std::max(end, b.address + b.bytes * b.phases);
  return end;
}

void check_kept(const Program& p, std::span<const ArgValue> args, int cores, std::int64_t lx_bytes) {
  const auto lx = static_cast<std::uint64_t>(lx_bytes), own = static_cast<std::uint64_t>(lx_used(p));
  for (std::size_t i = 0; i < args.size(); ++i) {
    const ArgValue& a = args[i];
    if (!a.kept()) continue;
    const auto refuse = [&](const std::string& what) {
      throw Error("DEV-11", p.name + ": argument " + p.args[i].name + " is kept in LX bytes " +
                                std::to_string(a.address) + ".." + std::to_string(a.address + a.share) +
                                what);
    };
    if (p.args[i].kind != 0)
      throw Error("SC-E11", p.name + ": number " + p.args[i].name + " has a place in LX");
    if (a.address % 128 != 0 || a.share % 128 != 0) refuse(", which are no whole sticks");
    if (a.address > lx || a.share > lx - a.address) refuse(", but a core has " + std::to_string(lx));
    if (a.bytes == 0 || (a.bytes - 1) / a.share >= static_cast<std::uint64_t>(cores))
      refuse(" of " + std::to_string(cores) + " cores, which do not hold its " + std::to_string(a.bytes) +
             " bytes");
    if (a.address < own) refuse(", but the program itself uses 0.." + std::to_string(own));
    for (std::size_t j = 0; j < i; ++j) {
      const ArgValue& b = args[j];
      const bool same = b.address == a.address && b.share == a.share && b.bytes == a.bytes;
      if (b.kept() && !same && a.address < b.address + b.share && b.address < a.address + a.share)
        refuse(", where argument " + p.args[j].name + " lies");
    }
  }
}

}  // namespace loom::chip
