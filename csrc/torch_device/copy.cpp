// Copies between host and device tensors of any strides and dtypes, and inside the device.
//
// The device side of a copy is addressed through its storage's layout, so a tensor must mean the same
// element type as its storage. A view of other bytes (`x.view(torch.int16)` of a half tensor, the byte view
// that serialization makes) has a meaning only on the host: such a copy goes through a host image of the
// storage range it covers.
#include <ATen/ATen.h>

#include "runtime/transfer.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

rt::Dims dims(c10::IntArrayRef a) { return {a.begin(), a.end()}; }

rt::Side device_side(const at::Tensor& t) {
  const rt::Record& r = record_of(t);
  return {r.base(), r.layout.get(), rt::device_phys(r.dtype, r.layout->format), dims(t.strides()), t.storage_offset()};
}

rt::Side host_side(const at::Tensor& t) {
  return {static_cast<std::uint8_t*>(t.data_ptr()), nullptr, rt::host_phys(dtype_of(t.scalar_type())),
          dims(t.strides()), 0};
}

bool typed(const at::Tensor& t) { return record_of(t).dtype == dtype_of(t.scalar_type()); }

void move(const at::Tensor& dst, const rt::Side& to, const rt::Side& from, c10::DeviceIndex card) {
  const rt::Dims sizes = dims(dst.sizes());
  try {
    rt::card(card).stream(current_stream(card)).run([&] { rt::transfer(sizes, to, from); });
  } catch (const rt::ValueError& e) {
    TORCH_CHECK(false, "the value ", e.value, " does not fit: the device holds torch.int64 as 32-bit integers (", -2147483648LL,
                " .. ", 2147483647LL, ")");
  }
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
    view = at::from_blob(static_cast<std::uint8_t*>(buffer.data_ptr()) + (low - first * item), t.sizes(), t.strides(),
                         t.options().device(at::kCPU));
  }
  void write_back(const rt::Record& r) const {
    const rt::Side from{static_cast<std::uint8_t*>(buffer.data_ptr()), nullptr, rt::host_phys(r.dtype), {1}, 0};
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

/// Copy whose device sides all mean their storage's type.
void copy_typed(const at::Tensor& dst, const at::Tensor& src) {
  const bool to_device = dst.device().type() == kSpyre, from_device = src.device().type() == kSpyre;
  if (to_device && from_device) {
    if (dst.device() != src.device() || dst.is_alias_of(src)) {
      // Another card, or bytes that may overlap: through a dense host copy in the source's type.
      const at::Tensor host = at::empty(src.sizes(), src.options().device(at::kCPU));
      copy_typed(host, src);
      return copy_typed(dst, host);
    }
    return move(dst, device_side(dst), device_side(src), dst.device().index());
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
    move(dst, device_side(dst), host_side(src), dst.device().index());
  } else {
    move(dst, host_side(dst), device_side(src), src.device().index());
  }
}

}  // namespace

void copy_elements(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (dst.numel() == 0) return;
  for (const at::Tensor* t : {&dst, &src})
    TORCH_CHECK(t->device().type() == kSpyre || t->is_cpu(), "Unsupported copy types: spyre tensors exchange data with cpu and spyre tensors, not with ",
                t->device());
  const bool image_src = src.device().type() == kSpyre && !typed(src);
  const bool image_dst = dst.device().type() == kSpyre && !typed(dst);
  if (image_src) {
    drain(src);
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
  copy_typed(dst, src);
}

}  // namespace loom::dev
