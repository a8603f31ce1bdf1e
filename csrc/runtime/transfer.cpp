// A regular view is cut into nests of constant steps. One whose sticks are walked unevenly runs along its
// innermost dim, stick by stick; one without a plan moves element by element.
#include "runtime/transfer.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/cursor.h"
#include "runtime/staged.h"
#include "runtime/strided.h"
#include "runtime/writer.h"

namespace loom::rt {
namespace {

/// Results from this size on would only push other data out of the caches: they are written past them.
constexpr std::int64_t kStreamBytes = 4 << 20;
/// What a thread must have to write to be worth its start.
constexpr std::int64_t kThreadBytes = 4 << 20;

std::int64_t result_bytes(const Moves& plan, const Side& dst) {
  std::int64_t bytes = phys_bytes(dst.phys);
  for (std::int64_t n : plan.sizes) bytes *= n;
  return bytes;
}

/// Loops over the dims of a plan, its innermost one in runs that end with a stick.
class Uneven {
 public:
  Uneven(const Moves& plan, const Side& dst, const Side& src)
      : plan_(plan), writer_(dst.phys, src.phys, false), dst_(make_cursor(dst)), src_(make_cursor(src)) {}

  void run(std::size_t dim = 0) {
    const Move &d = plan_.moves[0][dim], &s = plan_.moves[1][dim];
    const Cursor dst = dst_, src = src_;
    const bool last = dim + 1 == plan_.sizes.size();
    for (std::int64_t left = plan_.sizes[dim]; left > 0;) {
      const std::int64_t n = last ? std::min(dst_.run_length(d, left), src_.run_length(s, left)) : 1;
      if (last) {
        writer_.convert(dst_.address(), src_.address(), {static_cast<std::size_t>(n), 1, d.step, s.step});
      } else {
        run(dim + 1);
      }
      dst_.advance(d, n);
      src_.advance(s, n);
      left -= n;
    }
    dst_ = dst;
    src_ = src;
  }

 private:
  const Moves& plan_;
  Writer writer_;
  Cursor dst_, src_;
};

/// Moves element by element, asking the layout for each place.
void by_element(const Dims& sizes, const Side& dst, const Side& src) {
  const Writer writer(dst.phys, src.phys, false);
  Dims index(sizes.size(), 0);
  std::int64_t h[2] = {dst.offset, src.offset};
  for (;;) {
    const std::int64_t d = dst.layout != nullptr ? dst.layout->at(h[0]) : h[0];
    const std::int64_t s = src.layout != nullptr ? src.layout->at(h[1]) : h[1];
    writer.convert(dst.base + d * writer.dst_bytes, src.base + s * writer.src_bytes, {.n = 1});
    std::size_t dim = sizes.size();
    for (;;) {
      if (dim == 0) return;
      --dim;
      h[0] += dst.strides[dim];
      h[1] += src.strides[dim];
      if (++index[dim] < sizes[dim]) break;
      h[0] -= dst.strides[dim] * sizes[dim];
      h[1] -= src.strides[dim] * sizes[dim];
      index[dim] = 0;
    }
  }
}

/// Runs `work` once for each of `count` shares, on threads of its own but for one; throws what one of them
/// threw.
void shared(int count, const std::function<void(Share)>& work) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  auto guarded = [&](int number) {
    try {
      work({number, count});
    } catch (...) {
      errors[static_cast<std::size_t>(number)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int number = 1; number < count; ++number) {
    try {
      threads.emplace_back(guarded, number);
    } catch (const std::system_error&) {  // the system has no thread to give
      guarded(number);
    }
  }
  guarded(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

void transfer(const Dims& sizes, const Side& dst, const Side& src, int threads) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  const auto plan = plan_moves(sizes, dst, src);
  if (!plan) return by_element(sizes, dst, src);
  const std::vector<Nest> nests = cut(*plan, dst, src);
  if (nests.empty()) return Uneven(*plan, dst, src).run();
  const std::int64_t bytes = result_bytes(*plan, dst);
  const bool stream = bytes >= kStreamBytes;
  shared(static_cast<int>(std::clamp<std::int64_t>(bytes / kThreadBytes, 1, threads)), [&](Share share) {
    for (const Nest& nest : nests) {
      const auto part = take(nest, share, dst.phys, src.phys);
      if (!part) continue;
      if (stream && run_staged(*part, dst.phys, src.phys)) continue;
      run_nest(*part, dst.phys, src.phys, stream);
    }
    if (stream) stream_fence();
  });
}

}  // namespace loom::rt
