// Native tests of the runtime without torch, for the sanitizer build: allocator, streams, events, layouts
// and transfers, plans and launches. `runtime_tests CORPUS`; the corpus is the fuzzer's.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "runtime/event.h"
#include "runtime/plan.h"
#include "runtime/runtime.h"
#include "runtime/transfer.h"

namespace {

namespace chip = loom::chip;
using namespace loom::rt;
using Random = std::mt19937_64;

int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (false)

template <class E, class F>
std::string thrown(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

std::size_t below(Random& r, std::size_t n) { return r() % n; }

// -- memory ---------------------------------------------------------------------------------------------

bool always(void*, const StreamPoint&) { return true; }
bool flag(void* context, const StreamPoint&) { return *static_cast<bool*>(context); }

void blocks_never_overlap() {
  Memory memory(0, always, nullptr);
  Random r(1);
  std::map<std::uint64_t, std::uint64_t> live;
  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || below(r, 5) < 3) {
      const std::uint64_t bytes = 1 + below(r, std::size_t{1} << (1 + below(r, 24)));
      const std::uint64_t at = memory.allocate(bytes, below(r, 8) ? Arena::Tensors : Arena::Programs);
      CHECK(at % kAlignment == 0 && at + bytes <= kAddressSpace);
      const auto after = live.lower_bound(at);
      CHECK(after == live.end() || at + bytes <= after->first);
      CHECK(after == live.begin() || std::prev(after)->first + std::prev(after)->second <= at);
      memory.host(at)[0] = memory.host(at)[bytes - 1] = 1;
      live[at] = bytes;
    } else {
      auto it = live.begin();
      std::advance(it, below(r, live.size()));
      memory.free(it->first);
      live.erase(it);
    }
  }
  const auto tensors =
      std::count_if(live.begin(), live.end(), [](const auto& b) { return b.first < kProgramBase; });
  CHECK(memory.stats().allocations.current == tensors);
  for (const auto& [at, bytes] : live) memory.free(at);
  memory.trim();
  CHECK(memory.stats().allocated_bytes.current == 0 && memory.stats().programs_bytes == 0);
  for (const BlockInfo& b : memory.snapshot()) CHECK(!b.allocated);
}

void memory_in_use_is_not_given_away() {
  bool passed = false;
  Memory memory(0, flag, &passed);
  const std::uint64_t first = memory.allocate(1000);
  memory.free(first, {{3, 7}});
  CHECK(memory.allocate(1000) != first);
  passed = true;
  CHECK(memory.allocate(1000) == first);
}

void a_full_card_says_so_and_goes_on() {
  Memory memory(0, always, nullptr);
  memory.set_limit(1 << 20);
  const std::uint64_t held = memory.allocate(1 << 19);
  CHECK(!thrown<OutOfMemory>([&] { memory.allocate(1 << 20); }).empty());
  CHECK(!thrown<OutOfMemory>([&] { memory.allocate(~std::uint64_t{0}); }).empty());
  memory.free(held);
  CHECK(!thrown<std::logic_error>([&] { memory.free(held); }).empty());
  memory.free(memory.allocate(1 << 20));
}

// -- streams and events ---------------------------------------------------------------------------------

void tasks_run_in_order_and_fail_alone() {
  std::vector<int> seen;
  Stream stream(1, 0);
  for (int i = 0; i < 500; ++i)
    stream.submit([&seen, i] {
      if (i == 100) throw std::runtime_error("task 100");
      seen.push_back(i);
    });
  stream.run([&seen] { seen.push_back(500); });
  CHECK(seen.size() == 500 && std::is_sorted(seen.begin(), seen.end()));
  CHECK(thrown<std::runtime_error>([&] { stream.synchronize(); }) == "task 100");
  CHECK(thrown<std::runtime_error>([&] { stream.synchronize(); }).empty());
  CHECK(thrown<std::runtime_error>([&] { stream.run([] { throw std::runtime_error("now"); }); }) == "now");
}

void many_threads_may_use_one_stream() {
  Stream stream(1, 0);
  long sum = 0;  // guarded by the stream's order
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) i % 3 ? (void)stream.submit([&] { ++sum; }) : stream.run([&] { ++sum; });
    });
  for (std::thread& t : threads) t.join();
  stream.synchronize();
  CHECK(sum == 800);
}

void events_order_streams() {
  Card& c = card(0);
  Stream &a = c.stream(1), &b = c.stream(2);
  Event event;
  CHECK(event.query());
  std::atomic<bool> go{false};
  int value = 0;
  a.submit([&] {
    while (!go) std::this_thread::yield();
    value = 1;
  });
  event.record(c, a);
  event.block(b);
  int seen = -1;
  b.submit([&] { seen = value; });
  CHECK(!event.query());
  go = true;
  event.synchronize();
  b.synchronize();
  CHECK(seen == 1 && event.query());
  CHECK(event.wall_ms(event) == 0);
}

// -- layouts and transfers ------------------------------------------------------------------------------

struct Type {
  Format format;
  Phys host, device;
};
// Types whose values pass unchanged in both directions.
constexpr Type kTypes[] = {{Format::F32, Phys::F32, Phys::F32},   {Format::I32, Phys::I32, Phys::I32},
                           {Format::F16, Phys::F16, Phys::F16},   {Format::I16, Phys::I16, Phys::I16},
                           {Format::I8, Phys::I8, Phys::I8},      {Format::U8, Phys::U8, Phys::U8},
                           {Format::BF16, Phys::BF16, Phys::BF16}};

Dims dense(const Dims& sizes, Random& r) {
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), r);
  Dims strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t d : order) {
    strides[d] = step;
    step *= sizes[d];
  }
  return strides;
}

void transfers_return_what_was_sent() {
  Random r(2);
  constexpr std::int64_t kSizes[] = {1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 100, 130};
  for (int round = 0; round < 400; ++round) {
    const Type& type = kTypes[below(r, std::size(kTypes))];
    Dims sizes(1 + below(r, 4));
    std::int64_t count = 1;
    for (std::int64_t& n : sizes) {
      n = kSizes[below(r, std::size(kSizes))];
      if (count * n > 40000) n = 1;
      count *= n;
    }
    const Dims strides = dense(sizes, r);
    const LayoutPtr layout =
        make_layout(below(r, 3) ? Kind::Default : Kind::RowMajor, type.format, sizes, strides, count);
    const auto bytes = static_cast<std::size_t>(phys_bytes(type.host));
    // Buffers of exactly the sizes promised, so that a touch beyond them is seen.
    std::vector<std::uint8_t> host(static_cast<std::size_t>(count) * bytes), back(host.size()),
        device(static_cast<std::size_t>(layout->bytes));
    for (std::uint8_t& b : host) b = static_cast<std::uint8_t>(below(r, 60));
    std::vector<bool> taken(device.size() / bytes);
    for (std::int64_t h = 0; h < count; ++h) {
      const auto at = static_cast<std::size_t>(layout->at(h));
      CHECK(at < taken.size() && !taken[at]);
      if (at < taken.size()) taken[at] = true;
    }
    const Side outside{host.data(), nullptr, type.host, strides, 0};
    const Side inside{device.data(), layout.get(), type.device, strides, 0};
    const Side again{back.data(), nullptr, type.host, strides, 0};
    transfer(sizes, inside, outside);
    transfer(sizes, again, inside);
    CHECK(host == back);
  }
}

// -- plans ----------------------------------------------------------------------------------------------

std::vector<std::uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void plans_launch_from_two_streams(const std::filesystem::path& corpus) {
  const auto image = read_file(corpus / "vector_add.bin");
  if (image.empty()) throw std::runtime_error(corpus.string() + " holds no corpus");
  Card& c = card(0);
  const auto before = c.memory().stats().programs_bytes;
  auto damaged = image;
  damaged[damaged.size() / 2] ^= 1;
  CHECK(thrown<LaunchError>([&] { Plan::prepare(c, damaged, "bad"); }).find("SC-E16") != std::string::npos);
  CHECK(thrown<LaunchError>([&] { Plan::prepare(c, {}, "none"); }).find("empty") != std::string::npos);
  CHECK(c.memory().stats().programs_bytes == before);
  {
    const auto plan = Plan::prepare(c, image, "");
    CHECK(plan->name() == "vector_add");
    std::vector<chip::ArgValue> args(plan->args().size());
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (plan->args()[i].kind != 0) continue;
      args[i].bytes = 1 << 16;
      args[i].address = c.memory().allocate(args[i].bytes);
      std::memset(c.memory().host(args[i].address), 0, args[i].bytes);
    }
    for (int n = 0; n < 100; ++n)
      launch(plan, args, c.stream(1 + static_cast<std::uint64_t>(n) % 2), nullptr);
    auto small = args;
    small[0].bytes = 128;
    launch(plan, small, c.stream(1), std::make_shared<const std::string>("line 7"));
    const std::string error = thrown<LaunchError>([&] { c.synchronize(); });
    CHECK(error.find("vector_add") != std::string::npos && error.find("line 7") != std::string::npos);
    CHECK(!thrown<LaunchError>([&] { launch(plan, {}, c.stream(1), nullptr); }).empty());
    launch(plan, args, c.stream(1), nullptr);  // the stream goes on after a failure
    c.synchronize();
    CHECK(plan->launches() == 102);
    for (const chip::ArgValue& a : args)
      if (a.bytes) c.memory().free(a.address);
  }
  CHECK(!thrown<DeviceError>([] { card(kMaxCards); }).empty());
  stop();
  CHECK(!started());
}

void pinned_memory_is_known() {
  void* p = allocate_pinned(10000);
  CHECK(is_pinned(p) && !is_pinned(&failures));
  std::memset(p, 1, 10000);
  free_pinned(p);
  CHECK(!is_pinned(p));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: runtime_tests CORPUS\n");
    return 2;
  }
  blocks_never_overlap();
  memory_in_use_is_not_given_away();
  a_full_card_says_so_and_goes_on();
  tasks_run_in_order_and_fail_alone();
  many_threads_may_use_one_stream();
  events_order_streams();
  transfers_return_what_was_sent();
  pinned_memory_is_known();
  plans_launch_from_two_streams(argv[1]);
  std::printf("runtime tests: %d failures\n", failures);
  return failures != 0;
}
