#pragma GCC optimize("fp-contract=off")  // the same cycles on every machine
#include "chip/clock_rates.h"

#include <cmath>

namespace loom::chip {

double parameter(const ClockParams& params, const char* name) {
  const auto found = params.find(name);
  if (found == params.end()) throw Error("DEV-08", std::string("clock parameter ") + name + " is missing");
  if (!(found->second >= 0)) throw Error("DEV-08", std::string("clock parameter ") + name + " is not a rate");
  return found->second;
}

Rates::Rates(const ClockParams& params) {
  const auto get = [&](const char* name) { return parameter(params, name); };
  const auto positive = [&](const char* name) {
    const double value = get(name);
    if (!(value > 0)) throw Error("DEV-08", std::string("clock parameter ") + name + " is zero");
    return value;
  };
  hz = positive("clock.frequency_hz");
  const double per_ns = hz / 1e9;
  cores = static_cast<int>(positive("core.count"));
  corelets = static_cast<int>(positive("core.corelets"));
  lx_read = positive("lx.read_bytes_per_cycle");
  lx_write = positive("lx.write_bytes_per_cycle");
  lx_strided = positive("lx.strided_elements_per_cycle");
  lx_banks = positive("lx.bank_bytes_per_cycle");
  lx_latency = get("lx.latency_cycles");

  // The controller's peak, less the share of check words and of refresh.
  const double kept = 1 - get("ddr.ecc_bytes") / positive("ddr.bytes");
  const double alive = 1 - get("ddr.refresh_ns") / positive("ddr.refresh_interval_ns");
  if (!(kept > 0) || !(alive > 0)) throw Error("DEV-08", "clock parameters leave no DDR bandwidth");
  ddr_word_cycle = positive("ddr.peak_bytes_per_s") / hz * kept * alive;
  channels = positive("ddr.channels");
  page = positive("ddr.page_bytes");
  interleave = positive("ddr.interleave_bytes");
  reach = channels * positive("ddr.banks") * page;
  page_open = get("ddr.page_open_ns") * per_ns / channels;
  request_min = positive("ddr.request_min_bytes");
  request_max = positive("ddr.request_max_bytes");
  request = get("ddr.request_overhead_ns") * per_ns;
  ddr_base = 1 / ddr_word_cycle + page_open / page + request / request_max;
  turnaround = 2 * get("ddr.turnaround_ns") * per_ns / positive("ddr.turnaround_group_bytes");
  ddr_latency = get("ddr.latency_ns") * per_ns;
  ports = static_cast<int>(positive("ddr.ports"));
  if (ports > kMaxPorts)
    throw Error("DEV-08", "clock parameter ddr.ports is above " + std::to_string(kMaxPorts));
  port_bytes = positive("ddr.port_bytes_per_cycle");
  window = positive("dma.window_bytes");
  streams = positive("dma.streams");
  dma_read = positive("dma.read_bytes_per_cycle");
  dma_write = positive("dma.write_bytes_per_cycle");
  dma_issue = get("dma.issue_cycles");
  index = get("dma.index_cycles");

  pt_rows = positive("pt.rows");
  pt_columns = positive("pt.columns");
  pt_depth = pt_rows * positive("pt.macs_per_element");
  macs = pt_depth * pt_columns;
  pt_step = positive("pt.step_cycles");
  pt_fill = get("pt.fill_cycles");
  pt_reload = get("pt.reload_cycles");
  pt_kept_rows = positive("pt.full_rows");
  rate_8bit = positive("pt.rate_8bit");
  lanes = positive("sfu.lanes_16bit");
  simple = get("sfu.simple_cycles");
  transcendental = get("sfu.transcendental_cycles");
  divide = get("sfu.divide_cycles");
  tree = get("sfu.tree_cycles");
  start = get("sfu.start_cycles");
  queue = positive("queue.depth");
  ring_bytes = positive("ring.bytes_per_cycle");
  ring_hop = get("ring.hop_cycles");
  credit = get("sync.credit_cycles");
  issue = get("sync.issue_cycles");
  launch = get("launch.fixed_ns") * per_ns;
  correction = get("launch.correction_ns_per_word") * per_ns;
  prologue = get("launch.prologue_cycles_per_word");
  table_bytes = positive("launch.table_bytes_per_s") / hz;
}

double transfer_ns(std::int64_t bytes, const std::string& link, const ClockParams& params) {
  if (bytes < 0) throw Error("DEV-06", "a transfer of " + std::to_string(bytes) + " bytes");
  if (link != "pcie" && link != "card") throw Error("DEV-06", "link '" + link + "' is unknown: pcie or card");
  const auto get = [&](const char* field) { return parameter(params, (link + "." + field).c_str()); };
  const double rate = get("bytes_per_s"), payload = get("packet_payload_bytes");
  if (!(rate > 0) || !(payload > 0)) throw Error("DEV-08", "a rate of link " + link + " is zero");
  const double packets = std::ceil(static_cast<double>(bytes) / payload);
  const double wire = static_cast<double>(bytes) + packets * get("packet_overhead_bytes");
  return get("latency_ns") + wire / rate * 1e9;
}

}  // namespace loom::chip
