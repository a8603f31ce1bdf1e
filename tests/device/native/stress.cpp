// Streams, events, copies, launches and memory under random load, against a sequential model. No torch and no
// Python, so that it can be built with a sanitizer: see run.py.
//
// usage: stress IMAGE [STREAMS] [STEPS] [ALLOCATIONS] [SEED]   (IMAGE: the `scale` program of programs.py)
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "runtime/event.h"
#include "runtime/plan.h"
#include "runtime/transfer.h"

using namespace loom::rt;

namespace {

constexpr std::int64_t kElements = 64;  // one stick

/// What one stream owns: two device tensors, and what they must hold.
struct Lane {
  std::unique_ptr<Record> x, y;
  float model_x = 1, model_y = 1;
  std::uint64_t stream = 0;
};

Side device(const Record& r) { return {r.base(), r.layout.get(), Phys::DF16, {1}, 0}; }
Side host(std::vector<float>& v) {
  return {reinterpret_cast<std::uint8_t*>(v.data()), nullptr, Phys::F32, {1}, 0};
}

/// One layout for all: it must outlive the queued transfers that point at it.
const LayoutPtr& layout() {
  static const LayoutPtr l = [] {
    const std::int64_t size[] = {kElements}, stride[] = {1};
    return make_layout(Kind::Default, Format::DF16, size, stride, kElements);
  }();
  return l;
}

std::unique_ptr<Record> tensor(Card& card, std::uint64_t stream) {
  auto r = allocate(card, Dtype::F16, layout(), kElements * 2, stream);
  std::vector<float> ones(kElements, 1);
  transfer({kElements}, device(*r), host(ones));
  return r;
}

loom::chip::ArgValue buffer(const Record& r) { return {r.address, r.bytes, 0}; }

int check(Card& card, std::vector<Lane>& lanes) {
  int wrong = 0;
  for (Lane& lane : lanes) {
    card.stream(lane.stream).synchronize();
    for (auto [record, model] : {std::pair{lane.x.get(), lane.model_x}, {lane.y.get(), lane.model_y}}) {
      std::vector<float> got(kElements);
      transfer({kElements}, host(got), device(*record));
      wrong += std::any_of(got.begin(), got.end(), [&](float v) { return v != model; });
    }
  }
  return wrong;
}

/// One thread issues `steps` random operations on its lanes. Lanes of one thread depend on each other
/// through events only.
void issue(Card& card, const std::shared_ptr<Plan>& plan, std::vector<Lane>& lanes, int steps,
           unsigned seed) {
  std::mt19937 random(seed);
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int step = 0; step < steps; ++step) {
    Lane& lane = lanes[static_cast<std::size_t>(pick(static_cast<int>(lanes.size())))];
    Stream& stream = card.stream(lane.stream);
    switch (pick(8)) {
      case 0: {  // copy inside the lane
        const Side to = device(*lane.y), from = device(*lane.x);
        stream.submit([=] { transfer({kElements}, to, from); });
        lane.model_y = lane.model_x;
        break;
      }
      case 1: {  // copy from another lane, ordered both ways by events
        Lane& other = lanes[static_cast<std::size_t>(pick(static_cast<int>(lanes.size())))];
        if (&other == &lane) break;
        Stream& source = card.stream(other.stream);
        Event ready, taken;
        ready.record(card, source);
        ready.block(stream);
        const Side to = device(*lane.x), from = device(*other.x);
        stream.submit([=] { transfer({kElements}, to, from); });
        taken.record(card, stream);
        taken.block(source);
        lane.model_x = other.model_x;
        break;
      }
      case 2: {  // a temporary that dies while the stream still uses it
        auto temporary = tensor(card, lane.stream);
        const Side middle = device(*temporary), from = device(*lane.x), to = device(*lane.y);
        stream.submit([=] { transfer({kElements}, middle, from); });
        stream.submit([=] { transfer({kElements}, to, middle); });
        lane.model_y = lane.model_x;
        break;
      }
      case 3:  // the host waits
        pick(2) != 0 ? stream.synchronize() : stream.drain();
        break;
      default: {
        const float model = lane.model_x;
        const float factor = pick(2) != 0 ? -1.0f : (model > 100 || model < -100 ? 0.5f : 2.0f);
        const loom::chip::ArgValue args[] = {buffer(*lane.x),
                                             buffer(*lane.y),
                                             {0, 0, 1},
                                             {0, 0, std::bit_cast<std::int32_t>(factor) & 0xFFFFFFFFll}};
        launch(plan, args, stream, nullptr);
        lane.model_y = model * factor;
        std::swap(lane.x, lane.y);
        std::swap(lane.model_x, lane.model_y);
      }
    }
  }
}

int stress_streams(Card& card, const std::shared_ptr<Plan>& plan, int streams, int steps, unsigned seed) {
  constexpr int kThreads = 4;
  std::vector<std::vector<Lane>> lanes(kThreads);
  for (int i = 0; i < streams; ++i) {
    Lane lane;
    lane.stream = static_cast<std::uint64_t>(1 + i % 64);
    lane.x = tensor(card, lane.stream);
    lane.y = tensor(card, lane.stream);
    lanes[static_cast<std::size_t>(i % kThreads)].push_back(std::move(lane));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      issue(card, plan, lanes[static_cast<std::size_t>(t)], steps * streams / kThreads,
            seed + static_cast<unsigned>(t));
    });
  for (auto& t : threads) t.join();
  int wrong = 0;
  for (auto& group : lanes) wrong += check(card, group);
  return wrong;
}

int stress_memory(Card& card, int allocations, unsigned seed) {
  Memory& memory = card.memory();
  const auto before = memory.stats().allocated_bytes.current;
  std::mt19937 random(seed);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> held;
  for (int i = 0; i < allocations; ++i) {
    if (held.size() > 2000 || (!held.empty() && random() % 2 == 0)) {
      const std::size_t k = random() % held.size();
      memory.free(held[k].first);
      held[k] = held.back();
      held.pop_back();
    } else {
      const std::uint64_t bytes = 1 + random() % (1u << (random() % 20));
      held.emplace_back(memory.allocate(bytes), bytes);
    }
  }
  std::sort(held.begin(), held.end());
  int wrong = 0;
  for (std::size_t i = 0; i + 1 < held.size(); ++i)
    wrong += held[i].first + held[i].second > held[i + 1].first;
  for (const auto& [address, bytes] : held) memory.free(address);
  return wrong + (memory.stats().allocated_bytes.current != before) + (memory.stats().free_blocks > 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2)
    return std::fprintf(stderr, "usage: stress IMAGE [STREAMS] [STEPS] [ALLOCATIONS] [SEED]\n"), 2;
  auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<std::uint8_t> image((std::istreambuf_iterator<char>(file)), {});
  Card& device = card(0);
  int wrong = 0;
  {
    const auto plan = Plan::prepare(device, image, "scale");
    const int lanes =
        stress_streams(device, plan, number(2, 64), number(3, 200), static_cast<unsigned>(number(5, 1)));
    std::printf("streams: %d wrong, %lld launches\n", lanes, static_cast<long long>(plan->launches()));
    wrong += lanes;
  }
  device.synchronize();
  const int blocks = stress_memory(device, number(4, 100000), static_cast<unsigned>(number(5, 1)));
  std::printf("memory: %d wrong\n", blocks);
  stop();
  return wrong + blocks != 0;
}
