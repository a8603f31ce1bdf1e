// The result of a simulation: times, shares, bytes and energy.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>

#include "chip/clock_run.h"

namespace loom::chip {

std::map<std::string, UnitTime> Clock::unit_times(double cycles) const {
  std::map<std::string, UnitTime> units;
  for (int u = 0; u < kUnits; ++u) {
    UnitTime& sum = units[kUnitNames[u]];
    for (const CoreState& c : cores_) {
      sum.busy_cycles += is_compute(static_cast<Unit>(u)) ? c.corelet_busy[u] : c.unit[u].busy;
      sum.wait_cycles += c.unit[u].wait;
    }
  }
  units["DDR"] = {ddr_.active(), cycles - ddr_.active()};
  const double ring = ring_.busy();  // summed over all links of both directions
  if (ring > 0) units["ring"] = {ring, 2 * static_cast<double>(cores_.size()) * cycles - ring};
  return units;
}

Timing Clock::report() const {
  Timing t;
  t.cycles = end_;
  t.ns = t.cycles * 1e9 / rates_.hz;
  t.launch_cycles = launch_;
  t.ddr_read_bytes = read_;
  t.ddr_write_bytes = written_;
  t.macs = macs_;
  t.events = steps_;
  t.units = unit_times(t.cycles);
  const double all = t.cycles * rates_.cores * rates_.corelets;
  t.pt_util = t.units["PT"].busy_cycles / all;
  t.sfu_util = t.units["SFU"].busy_cycles / all;

  // Units of a core by the busier corelet of the cores at work; what the chip has once by its own time.
  const auto mean = [&](Unit u) {
    double sum = 0;
    for (const CoreState& c : cores_) sum += c.unit[static_cast<int>(u)].busy;
    return sum / (t.cycles * static_cast<double>(cores_.size()));
  };
  t.shares = {{"PT", mean(Unit::PT)},
              {"SFU", mean(Unit::SFU)},
              {"LX", std::max(mean(Unit::L1LU), mean(Unit::L1SU))},
              {"DDR read", ddr_.busy_read() / t.cycles},
              {"DDR write", ddr_.busy_write() / t.cycles},
              {"ring", ring_.busiest() / t.cycles},
              {"launch", launch_ / t.cycles}};
  // Reads and writes keep the memory busy together; the larger part names it.
  const double ddr = t.shares["DDR read"] + t.shares["DDR write"];
  double top = ddr;
  t.bottleneck = t.shares["DDR read"] >= t.shares["DDR write"] ? "DDR read" : "DDR write";
  for (const char* name : {"PT", "SFU", "LX", "ring", "launch"})
    if (t.shares[name] > top) top = t.shares[name], t.bottleneck = name;
  t.shares["wait"] = std::clamp(1 - top, 0.0, 1.0);
  if (top < 0.5) t.bottleneck = "wait";

  const double ring_bytes = ring_.busy() * rates_.ring_bytes;
  t.link_bytes = {{"DDR read", read_},
                  {"DDR write", written_},
                  {"LX read", lx_read_},
                  {"LX write", lx_written_},
                  {"ring", static_cast<std::int64_t>(ring_bytes)}};
  const auto price = [&](const char* name) { return parameter(params_, name); };
  t.energy_pj = {{"PT", static_cast<double>(macs_) * price("energy.mac_pj")},
                 {"SFU", sfu_ops_ * price("energy.sfu_op_pj")},
                 {"LX", static_cast<double>(lx_read_ + lx_written_) * price("energy.lx_byte_pj")},
                 {"DDR", static_cast<double>(read_ + written_) * price("energy.ddr_byte_pj")},
                 {"ring", ring_bytes * price("energy.ring_byte_pj")},
                 {"idle", price("energy.idle_w") * t.ns * 1e3}};
  t.between_bytes = {{"DDR read", between_[0][0]},
                     {"DDR write", between_[0][1]},
                     {"LX read", between_[1][0]},
                     {"LX write", between_[1][1]}};
  return t;
}

}  // namespace loom::chip
