// Mutated binaries against the chip: every mutant loads and runs inside its allocations, or is refused with
// one Error. Made for AddressSanitizer, which is told where the allocations end.
//
//   fuzz CORPUS [COUNT] [FIRST]     mutants FIRST .. FIRST + COUNT - 1; the number alone decides a mutant
//
// CORPUS is a folder written by tests/native/make_corpus.py: NAME.bin, NAME.args with a line per argument
// ("buffer BYTES", "int N", "float X"), and clock.txt with the rates ("NAME VALUE").
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "chip/chip.h"
#include "chip/program.h"
#include "tests/mutate.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

namespace {

using namespace loom::chip;
using loom::tests::Bytes;

constexpr std::uint64_t kDdrBytes = 1 << 24, kGap = 4096;
constexpr int kCores = 32;
constexpr std::int64_t kLxBytes = 256 << 10, kMaxSteps = 20000;
constexpr unsigned kSecondsPerMutant = 60;

struct Member {
  std::string name;
  std::vector<ArgValue> args;  // buffers: bytes only, placed per launch
};

/// What the process is at when it dies.
long current = -1;
const char* current_kind = "";

void say_where() {
  std::fprintf(stderr, "mutant %ld (%s); repeat with COUNT 1 and this number as FIRST\n", current,
               current_kind);
}

extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1:abort_on_error=1"; }
extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }

extern "C" void on_abort(int) { say_where(); }

extern "C" void on_alarm(int) {
  say_where();
  std::fprintf(stderr, "still running after %u s of processor time\n", kSecondsPerMutant);
  _exit(3);
}

/// Sends SIGPROF after so many seconds of this process's processor time; 0 stops the watch.
void watch(unsigned seconds) {
  itimerval when{};
  when.it_value.tv_sec = seconds;
  ::setitimer(ITIMER_PROF, &when, nullptr);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<ArgValue> read_args(const std::filesystem::path& path) {
  std::vector<ArgValue> args;
  std::ifstream in(path);
  std::string kind, number;
  while (in >> kind >> number) {
    ArgValue a;
    if (kind == "buffer")
      a.bytes = std::stoull(number);
    else if (kind == "int")
      a.number = std::stoll(number);
    else
      a.number = std::bit_cast<std::uint32_t>(std::stof(number));
    args.push_back(a);
  }
  return args;
}

ClockParams read_rates(const std::filesystem::path& path) {
  ClockParams rates;
  std::ifstream in(path);
  std::string name;
  double value = 0;
  while (in >> name >> value) rates[name] = value;
  return rates;
}

/// Device memory that faults beside the buffers of the launch, and a machine whose LX faults beside the
/// blocks of the program.
class Bench {
 public:
  Bench() {
    void* at = ::mmap(nullptr, kDdrBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::runtime_error("no memory for DDR");
    ddr_ = static_cast<std::uint8_t*>(at);
    MachineOptions o;
    o.cores = kCores;
    o.lx_bytes = kLxBytes;
    o.threads = 1;
    o.ddr = ddr_;
    o.ddr_bytes = kDdrBytes;
    o.max_steps = kMaxSteps;
    machine_ = std::make_unique<Machine>(o);
  }
  ~Bench() {
    ASAN_UNPOISON_MEMORY_REGION(ddr_, kDdrBytes);
    for (int core = 0; core < kCores; ++core) {
      const auto lx = machine_->lx(core);
      ASAN_UNPOISON_MEMORY_REGION(lx.data(), lx.size());
    }
    ::munmap(ddr_, kDdrBytes);
  }

  /// Places the buffers and gives them contents: small words, valid as indices and harmless as numbers.
  void place(std::vector<ArgValue>& args, const std::vector<ArgInfo>& infos) {
    ASAN_POISON_MEMORY_REGION(ddr_, kDdrBytes);
    std::uint64_t at = kGap;
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (infos[i].kind != 0) continue;
      const std::uint64_t bytes = std::min(args[i].bytes ? args[i].bytes : 4096, kDdrBytes / 16);
      if (at + bytes + kGap > kDdrBytes) at = kGap;  // they may share memory then
      args[i].address = at;
      args[i].bytes = bytes;
      ASAN_UNPOISON_MEMORY_REGION(ddr_ + at, bytes);
      for (std::uint64_t k = 0; k < bytes; ++k)
        ddr_[at + k] = k % 4 ? 0 : static_cast<std::uint8_t>(k / 4 % 5);
      at += (bytes + 127) / 128 * 128 + kGap;
    }
  }

  void run(const Program& p, std::span<const std::int64_t> table, std::span<const ArgValue> args) {
    for (int core = 0; core < cores_of(p); ++core) {
      const auto lx = machine_->lx(core);
      ASAN_UNPOISON_MEMORY_REGION(lx.data(), lx.size());
      std::fill(lx.begin(), lx.end(), std::uint8_t{0});
      ASAN_POISON_MEMORY_REGION(lx.data(), lx.size());
      for (const Block& b : p.blocks) {
        // Blocks beyond LX are the decoder's fault, not something to run into here.
        if (b.address < 0 || b.bytes < 0 ||
            b.address + b.bytes * b.phases > static_cast<std::int64_t>(lx.size()))
          continue;
        ASAN_UNPOISON_MEMORY_REGION(lx.data() + b.address, static_cast<std::size_t>(b.bytes * b.phases));
      }
    }
    machine_->run(p, table, args);
  }

 private:
  std::uint8_t* ddr_ = nullptr;
  std::unique_ptr<Machine> machine_;
};

/// One image through all stages. Returns where it ended: "ran", or the stage and code that refused it.
std::string try_image(const Bytes& image, const Member& member, Bench& bench, const ClockParams& rates) {
  const char* stage = "decode ";
  try {
    const Bytes exact(image);  // its own block, so that a read beyond the end is seen
    const auto program = decode(exact);
    const auto& infos = args_of(*program);
    std::vector<ArgValue> args(member.args);
    args.resize(infos.size());
    bench.place(args, infos);
    std::vector<std::int64_t> table(table_words(*program));
    stage = "correct ";
    correct(*program, args, table);
    stage = "run ";
    std::string end = "ran";
    try {
      bench.run(*program, table, args);
    } catch (const Error& e) {
      // A program that did not come to its end within the bench's steps may take all of the clock's, which
      // are many; one that waits for ever stops there, too.
      if (e.code() != "DEV-04") throw;
      end = stage + e.code();
    }
    stage = "time ";
    time(*program, table, rates);
    return end;
  } catch (const Error& e) {
    return stage + e.code();
  }
}

int fuzz(const std::filesystem::path& folder, long count, long first) {
  std::vector<Member> members;
  std::vector<Bytes> images;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".bin") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    images.push_back(read_file(path));
    members.push_back({path.stem(), read_args(std::filesystem::path(path).replace_extension(".args"))});
  }
  const ClockParams rates = read_rates(folder / "clock.txt");
  if (images.empty() || rates.empty()) {
    std::fprintf(stderr, "%s holds no corpus\n", folder.c_str());
    return 2;
  }
  Bench bench;
  std::size_t whole = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::string end = try_image(images[i], members[i], bench, rates);
    whole += end == "ran";
    if (end.rfind("decode", 0) == 0 || end.rfind("correct", 0) == 0) {
      std::fprintf(stderr, "%s itself ends with %s\n", members[i].name.c_str(), end.c_str());
      return 1;
    }
  }
  std::map<std::string, long> ends;
  std::map<std::string, std::pair<long, long>> kinds;  // accepted by the decoder, all
  double slowest = 0;
  long slowest_at = first;
  for (current = first; current < first + count; ++current) {
    std::seed_seq seed{static_cast<std::uint32_t>(current), 4u};
    std::mt19937_64 random(seed);
    const std::size_t which = random() % images.size();
    const loom::tests::Mutant mutant = loom::tests::mutate(images, which, random);
    current_kind = mutant.kind.c_str();
    watch(kSecondsPerMutant);
    const auto start = std::chrono::steady_clock::now();
    const std::string end = try_image(mutant.image, members[which], bench, rates);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const bool accepted = end.rfind("decode", 0) != 0;
    if (accepted && !mutant.sealed) {
      say_where();
      std::fprintf(stderr, "damage of %s was not detected\n", members[which].name.c_str());
      return 1;
    }
    ++ends[end];
    ++kinds[mutant.kind].second;
    kinds[mutant.kind].first += accepted;
    if (spent.count() > slowest) slowest = spent.count(), slowest_at = current;
  }
  watch(0);
  std::printf("%ld mutants of %zu binaries, of which %zu run to their end\n", count, images.size(), whole);
  for (const auto& [kind, n] : kinds)
    std::printf("  %-24s %8ld, accepted by the decoder %ld\n", kind.c_str(), n.second, n.first);
  for (const auto& [end, n] : ends) std::printf("  %-24s %8ld\n", end.c_str(), n);
  std::printf("  slowest: mutant %ld with %.2f s\n", slowest_at, slowest);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz CORPUS [COUNT] [FIRST]\n");
    return 2;
  }
  ::signal(SIGABRT, on_abort);  // how the sanitizers end a process
  ::signal(SIGPROF, on_alarm);
  try {
    return fuzz(argv[1], argc > 2 ? std::atol(argv[2]) : 3000, argc > 3 ? std::atol(argv[3]) : 0);
  } catch (const std::exception& e) {
    say_where();
    std::fprintf(stderr, "not one of the chip's errors: %s\n", e.what());
    return 1;
  }
}
