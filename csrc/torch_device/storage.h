// Tensors of the device: a torch storage whose DataPtr context is the runtime's Record. The pointer
// itself is an opaque token; only the Record knows the device address and the layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <optional>

#include "runtime/runtime.h"

namespace loom::dev {

inline constexpr c10::DeviceType kSpyre = c10::DeviceType::PrivateUse1;

/// Dtype::None for scalar types without a counterpart.
rt::Dtype dtype_of(c10::ScalarType);
/// Its inverse.
c10::ScalarType scalar_type_of(rt::Dtype);
/// Dtype and device format, or the "does not support dtype" error.
rt::Dtype supported_dtype(c10::ScalarType, rt::Format* format);

/// The record of a storage for immediate use: pending work on it has run, and it has its block.
rt::Record& record_of(const c10::StorageImpl&);
rt::Record& record_of(const at::TensorBase&);
/// The record as it is now; its block may be promised and its value pending.
rt::Record& peek_record(const c10::StorageImpl&);
rt::Record& peek_record(const at::TensorBase&);

/// The recorder's part: makes a record fit for immediate use; runs the pending work of a card (-1: all).
void settle(rt::Record&);
void finish_pending(c10::DeviceIndex card = -1);

/// Allocates the block of a promised record on the current stream.
void allocate_block(rt::Record&);

/// Device chosen by the guard of the calling thread, and its current stream there.
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex);
std::uint64_t current_stream(c10::DeviceIndex);
/// Also runs the work that was held back for the stream before.
void set_current_stream(c10::DeviceIndex, std::uint64_t);
void select_stream(c10::DeviceIndex, std::uint64_t);
inline c10::DeviceIndex device_or_current(std::optional<c10::Device> d) {
  return d.has_value() && d->has_index() ? d->index() : current_device();
}

/// New tensor with undefined content and the given storage layout.
at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType, c10::DeviceIndex,
                       rt::Kind kind = rt::Kind::Default);
at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType, c10::DeviceIndex,
                       rt::LayoutPtr layout);

/// Tensor over a storage that exists.
at::Tensor make_view(c10::Storage, c10::IntArrayRef size, c10::IntArrayRef stride, std::int64_t offset,
                     c10::ScalarType);

/// New tensor in the default layout whose block is allocated at its first use.
at::Tensor promise_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType, c10::DeviceIndex);

/// Tensor of a new storage over the block of `t`, read with another layout and geometry.
at::Tensor make_alias(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::int64_t offset, rt::LayoutPtr layout);

/// Replaces the storage's block by one of `bytes` host bytes; what both hold keeps its place in host order.
void resize_storage(c10::StorageImpl&, std::size_t bytes);

/// Gives a raw storage (bytes in host form, as loading from a file makes them) the type and shape of the
/// tensor set on it. Leaves it raw when a value has no place on the device.
void adopt_raw_storage(const at::Tensor&);

/// The layout of these public fields; the shared default object where it says the same. Throws
/// std::invalid_argument when some host element has no place or shares one.
rt::LayoutPtr raw_layout(rt::Format, const rt::Dims& size, const rt::Dims& stride,
                         const rt::Dims& device_size, const rt::Dims& stride_map);

/// Moves the elements of a storage, which become `dtype`, to a new block in `layout`.
void relayout_storage(c10::StorageImpl&, rt::Dtype dtype, rt::LayoutPtr layout);

/// Makes a raw storage a copy of another one of the same size on the same card: type, layout and bytes.
/// Returns false when the two are not such a pair.
bool clone_storage(const at::Tensor& dst, const at::Tensor& src);

/// Copies `src` to `dst` of the same sizes; at least one is on the device. With `non_blocking` and pinned
/// host memory it may return before the elements have moved.
void copy_elements(const at::Tensor& dst, const at::Tensor& src, bool non_blocking);

/// Copies a host tensor that nobody else will change to a device tensor of the same sizes; may return early.
void copy_private(const at::Tensor& dst, const at::Tensor& host);

/// Resizes `out` to the sizes of `value` and copies it there: what every out= form does with its result.
at::Tensor& write_out(at::Tensor& out, const at::Tensor& value);

/// Whether the first int64 tensor that moves to a card warns about its 32 bits there.
void set_downcast_warning(bool on);
bool downcast_warning();

/// True when `t` covers its storage exactly and lies in memory as a fresh tensor of that kind would.
bool has_layout(const at::Tensor& t, rt::Kind kind);

c10::DeviceAllocator& device_allocator();

/// Called once when an allocation does not fit, before the second try.
void set_out_of_memory_hook(void (*hook)());

}  // namespace loom::dev
