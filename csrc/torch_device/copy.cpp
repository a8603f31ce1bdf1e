// Copies between host and device tensors of any strides and dtypes, and inside the device.
//
// The device side of a copy is addressed through its storage's layout, so a tensor must mean the same
// element type as its storage. A view of other bytes (`x.view(torch.int16)` of a half tensor, the byte view
// that serialization makes) has a meaning only on the host: such a copy goes through a host image of the
// storage range it covers.
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>

#include "runtime/plan.h"
#include "runtime/transfer.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

rt::Dims dims(c10::IntArrayRef a) { return {a.begin(), a.end()}; }

rt::Side device_side(const at::Tensor& t) {
  const rt::Record& r = record_of(t);
  std::int64_t last = t.storage_offset();
  for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  TORCH_CHECK(last < r.layout->elements, "a tensor of sizes ", t.sizes(), " and strides ", t.strides(),
              " at offset ", t.storage_offset(), " is out of bounds of its storage, which was resized to ",
              r.layout->elements, " elements");
  return {r.base(), r.layout.get(), rt::device_phys(r.dtype, r.layout->format), dims(t.strides()),
          t.storage_offset()};
}

rt::Side host_side(const at::Tensor& t) {
  return {static_cast<std::uint8_t*>(t.data_ptr()), nullptr, rt::host_phys(dtype_of(t.scalar_type())),
          dims(t.strides()), 0};
}

bool typed(const at::Tensor& t) { return record_of(t).dtype == dtype_of(t.scalar_type()); }

/// Host memory that queued transfers still read or write. It is let go by the threads that copy, never by
/// a stream's thread, which must not run Python finalizers.
class Keeper {
 public:
  void hold(rt::Stream& stream, std::uint64_t ticket, c10::Storage storage) {
    const std::lock_guard lock(mutex_);
    held_.push_back({&stream, ticket, std::move(storage)});
  }
  void release() {
    std::vector<Held> passed;
    {
      const std::lock_guard lock(mutex_);
      if (held_.empty()) return;
      const auto split = std::stable_partition(held_.begin(), held_.end(),
                                               [](const Held& h) { return !h.stream->passed(h.ticket); });
      passed.assign(std::make_move_iterator(split), std::make_move_iterator(held_.end()));
      held_.erase(split, held_.end());
    }
  }

 private:
  struct Held {
    rt::Stream* stream;
    std::uint64_t ticket;
    c10::Storage storage;
  };
  std::mutex mutex_;
  std::vector<Held> held_;
};

Keeper& keeper() {
  static auto* k = new Keeper;
  return *k;
}

std::atomic<bool> warn_downcast{false};

/// Tells the allocator that `stream` uses a block that another stream allocated.
void note_use(const at::Tensor& t, std::uint64_t stream) {
  if (t.device().type() == kSpyre) rt::note_use(record_of(t), stream);
}

/// Bytes of host memory from which a copy takes longer than handing it to the stream's thread.
constexpr std::size_t kQueueBytes = 1 << 20;

/// Queues or runs one transfer on the current stream of `card`. It is queued when it cannot fail, no host
/// memory of the caller would be touched after the return (both sides on the device, or `host`, which is then
/// kept, pinned or private to this library), and it would keep the caller: the stream is busy, or `host` is
/// large.
void move(const at::Tensor& dst, const at::Tensor& src, const rt::Side& to, const rt::Side& from,
          c10::DeviceIndex card, const at::Tensor* host, bool may_queue) {
  const std::uint64_t id = current_stream(card);
  rt::Stream& stream = rt::card(card).stream(id);
  note_use(dst, id);
  note_use(src, id);
  if (to.layout != nullptr) rt::note_write(record_of(dst));
  keeper().release();
  if (to.layout != nullptr && from.layout != nullptr) {
    rt::count_copy(src.numel() * static_cast<std::int64_t>(src.itemsize()));
    if (rt::timing_only()) return;
  }
  if (from.phys == rt::Phys::I64 && to.phys == rt::Phys::I32N &&
      warn_downcast.load(std::memory_order_relaxed))
    TORCH_WARN_ONCE("torch.int64 tensors lie on the spyre device as 32-bit integers");
  const bool can_fail = to.phys == rt::Phys::I32N && from.phys != rt::Phys::I32N;
  rt::Dims sizes = dims(dst.sizes());
  const int threads = rt::transfer_threads();
  const bool keeps_caller = !stream.idle() || (host != nullptr && host->nbytes() >= kQueueBytes);
  if (may_queue && !can_fail && keeps_caller) {
    // The layouts outlive their storages here; the blocks do so by the allocator's stream rule.
    rt::LayoutPtr keep_to = to.layout != nullptr ? record_of(dst).layout : nullptr;
    rt::LayoutPtr keep_from = from.layout != nullptr ? record_of(src).layout : nullptr;
    const std::uint64_t ticket =
        stream.submit([sizes = std::move(sizes), to, from, threads, keep_to = std::move(keep_to),
                       keep_from = std::move(keep_from)] { rt::transfer(sizes, to, from, threads); });
    if (host != nullptr) keeper().hold(stream, ticket, host->storage());
    return;
  }
  try {
    stream.run([&] { rt::transfer(sizes, to, from, threads); });
  } catch (const rt::ValueError& e) {
    TORCH_CHECK(false, "the value ", e.value,
                " does not fit: the device holds torch.int64 as 32-bit integers (", -2147483648LL, " .. ",
                2147483647LL, ")");
  }
  // A copy to the host waits for the stream, so it is where failed launches are reported.
  if (to.layout == nullptr) stream.synchronize();
}

/// Host bytes that the elements of a device tensor cover in its storage: [first, last).
std::pair<std::int64_t, std::int64_t> byte_range(const at::Tensor& t) {
  std::int64_t last = t.storage_offset();
  for (std::int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  const std::int64_t item = static_cast<std::int64_t>(t.itemsize());
  return {t.storage_offset() * item, (last + 1) * item};
}

/// A host tensor with the type, sizes and strides of `t` over a copy of the storage range it covers.
struct Image {
  at::Tensor buffer;  // whole elements of the storage's own dtype
  at::Tensor view;
  std::int64_t first = 0, count = 0;

  explicit Image(const at::Tensor& t) {
    const rt::Record& r = record_of(t);
    const auto [low, high] = byte_range(t);
    const std::int64_t item = rt::host_bytes(r.dtype);
    first = low / item;
    count = (high + item - 1) / item - first;
    buffer = at::empty({count * item}, at::TensorOptions().dtype(at::kByte));
    const rt::Side to{static_cast<std::uint8_t*>(buffer.data_ptr()), nullptr, rt::host_phys(r.dtype), {1}, 0};
    rt::transfer({count}, to, side(r));
    view = at::from_blob(static_cast<std::uint8_t*>(buffer.data_ptr()) + (low - first * item), t.sizes(),
                         t.strides(), t.options().device(at::kCPU));
  }
  void write_back(rt::Record& r) const {
    rt::note_write(r);
    const rt::Side from{
        static_cast<std::uint8_t*>(buffer.data_ptr()), nullptr, rt::host_phys(r.dtype), {1}, 0};
    rt::transfer({count}, side(r), from);
  }
  rt::Side side(const rt::Record& r) const {
    return {r.base(), r.layout.get(), rt::device_phys(r.dtype, r.layout->format), {1}, first};
  }
};

void drain(const at::Tensor& t) {
  const c10::DeviceIndex i = t.device().index();
  rt::card(i).stream(current_stream(i)).drain();
}

/// Copy whose device sides all mean their storage's type. `may_queue` speaks of the host side's memory.
void copy_typed(const at::Tensor& dst, const at::Tensor& src, bool may_queue = false) {
  const bool to_device = dst.device().type() == kSpyre, from_device = src.device().type() == kSpyre;
  if (to_device && from_device) {
    if (dst.device() != src.device() || dst.is_alias_of(src)) {
      // Another card, or bytes that may overlap: through a dense host copy in the source's type.
      const at::Tensor host = at::empty(src.sizes(), src.options().device(at::kCPU));
      copy_typed(host, src);
      return copy_typed(dst, host);
    }
    return move(dst, src, device_side(dst), device_side(src), dst.device().index(), nullptr, true);
  }
  const at::Tensor& host = to_device ? src : dst;
  if (dtype_of(host.scalar_type()) == rt::Dtype::None) {
    if (to_device) return copy_typed(dst, src.to(dst.scalar_type()));
    const at::Tensor same = at::empty(src.sizes(), src.options().device(at::kCPU));
    copy_typed(same, src);
    dst.copy_(same);
    return;
  }
  if (to_device) {
    move(dst, src, device_side(dst), host_side(src), dst.device().index(), &host, may_queue);
  } else {
    move(dst, src, host_side(dst), device_side(src), src.device().index(), &host, may_queue);
  }
}

}  // namespace

void set_downcast_warning(bool on) { warn_downcast.store(on); }
bool downcast_warning() { return warn_downcast.load(); }

void copy_private(const at::Tensor& dst, const at::Tensor& host) {
  if (dst.numel() == 0) return;
  typed(dst) ? copy_typed(dst, host, true) : copy_elements(dst, host, false);
}

at::Tensor& write_out(at::Tensor& out, const at::Tensor& value) {
  at::native::resize_output(out, value.sizes());
  return out.copy_(value);
}

/// A copy of which at least one side is a view that means the negative of what its storage holds.
static void copy_negated(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  auto as_stored = [](const at::Tensor& t) { return t.is_neg() ? at::_neg_view(t) : t; };
  const at::Tensor value = src.is_neg() ? as_stored(src) : src.to(dst.scalar_type());
  copy_elements(as_stored(dst), src.is_neg() == dst.is_neg() ? value : at::neg(value), non_blocking);
}

void copy_elements(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (dst.numel() == 0 || clone_storage(dst, src)) return;
  if (src.is_conj()) return copy_elements(dst, src.resolve_conj(), non_blocking);
  if (src.is_neg() || dst.is_neg()) return copy_negated(dst, src, non_blocking);
  for (const at::Tensor* t : {&dst, &src})
    TORCH_CHECK(t->device().type() == kSpyre || t->is_cpu(),
                "Unsupported copy types: spyre tensors exchange data with cpu and spyre tensors, not with ",
                t->device());
  const bool image_src = src.device().type() == kSpyre && !typed(src);
  const bool image_dst = dst.device().type() == kSpyre && !typed(dst);
  if (image_src) {
    drain(src);
    if (dst.is_cpu())
      rt::card(src.device().index()).stream(current_stream(src.device().index())).synchronize();
    const Image image(src);
    if (dst.device().type() == kSpyre) return copy_elements(dst, image.view, non_blocking);
    dst.copy_(image.view);
    return;
  }
  if (image_dst) {
    drain(dst);
    Image image(dst);
    if (src.device().type() == kSpyre) {
      copy_typed(image.view, src);
    } else {
      image.view.copy_(src);
    }
    image.write_back(record_of(dst));
    return;
  }
  const at::Tensor& host = src.is_cpu() ? src : dst;
  copy_typed(dst, src, non_blocking && host.is_cpu() && rt::is_pinned(host.storage().data()));
}

}  // namespace loom::dev
