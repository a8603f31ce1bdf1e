// Operators of the device that are not kernels: factories, views, copies, fills, and the
// fallback that runs everything else on the host.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <string>

#include "torch_device/backend.h"
#include "torch_device/eager.h"
#include "torch_device/eager_fused.h"
#include "torch_device/fallback.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using c10::IntArrayRef;
template <typename T>
using Opt = std::optional<T>;

c10::ScalarType type_or_default(Opt<c10::ScalarType> t) {
  return t.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
}

void check_factory(Opt<c10::Layout> layout, Opt<bool> pin) {
  TORCH_CHECK(layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
              "Spyre backend does not support: tensors of layout ", *layout);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
}

// ---- factories ----

/// In fused mode memory is allocated when it is used.
at::Tensor fresh(IntArrayRef size, IntArrayRef stride, c10::ScalarType type, c10::DeviceIndex card) {
  return eager::defers() ? promise_tensor(size, stride, type, card) : make_tensor(size, stride, type, card);
}

at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Opt<c10::ScalarType> dtype,
                         Opt<c10::Layout> layout, Opt<c10::Device> device, Opt<bool> pin) {
  check_factory(layout, pin);
  return fresh(size, stride, type_or_default(dtype), device_or_current(device));
}

at::Tensor empty(IntArrayRef size, Opt<c10::ScalarType> dtype, Opt<c10::Layout> layout,
                 Opt<c10::Device> device, Opt<bool> pin, Opt<c10::MemoryFormat> format) {
  check_factory(layout, pin);
  const auto f = format.value_or(c10::MemoryFormat::Contiguous);
  at::detail::check_size_nonnegative(size);
  c10::DimVector stride(size.size());
  if (f == c10::MemoryFormat::Contiguous || f == c10::MemoryFormat::Preserve) {
    std::int64_t s = 1;
    for (std::size_t i = size.size(); i-- > 0;) {
      stride[i] = s;
      s *= std::max<std::int64_t>(size[i], 1);
    }
  } else if (f == c10::MemoryFormat::ChannelsLast) {
    const auto s = c10::get_channels_last_strides_2d(size);
    stride.assign(s.begin(), s.end());
  } else {
    const auto s = c10::get_channels_last_strides_3d(size);
    stride.assign(s.begin(), s.end());
  }
  return fresh(size, stride, type_or_default(dtype), device_or_current(device));
}

// ---- views: they share the storage, and the layout belongs to it ----

at::Tensor as_strided(const at::Tensor& self, IntArrayRef size, IntArrayRef stride,
                      Opt<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold(const at::Tensor& self, std::int64_t dim, std::int64_t size, std::int64_t step) {
  return at::native::unfold(self, dim, size, step);
}
bool is_set_to(const at::Tensor& self, const at::Tensor& other) { return at::native::is_set_to(self, other); }

const at::Tensor& resize_(const at::Tensor& self, IntArrayRef size, Opt<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  const auto item = static_cast<std::size_t>(self.itemsize());
  if (self.sizes() != size) {
    const std::size_t wanted = at::detail::computeStorageNbytesContiguous(
        size, item, static_cast<std::size_t>(self.storage_offset()));
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (wanted > storage->nbytes()) {
      TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
      if (storage->nbytes() == 0 && self.storage_offset() == 0) {
        // Nothing to keep: lay the new storage out for the new shape.
        const at::Tensor fresh = at::empty(size, self.options());
        storage->set_data_ptr_noswap(
            fresh.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, self.device())));
        fresh.storage().unsafeGetStorageImpl()->set_nbytes(0);
        storage->set_nbytes(wanted);
      } else {
        resize_storage(*storage, wanted);
      }
    }
    impl->generic_set_sizes_contiguous(size);
  }
  if (format.has_value()) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, std::int64_t offset, IntArrayRef size,
                               IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  c10::DimVector contiguous;
  if (stride.data() == nullptr || (stride.empty() && !size.empty())) {
    contiguous.resize(size.size());
    std::int64_t s = 1;
    for (std::size_t i = size.size(); i-- > 0;) {
      contiguous[i] = s;
      s *= std::max<std::int64_t>(size[i], 1);
    }
    stride = contiguous;
  }
  const std::size_t wanted = at::detail::computeStorageNbytes(
      size, stride, static_cast<std::size_t>(self.itemsize()), static_cast<std::size_t>(offset));
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (wanted > storage->nbytes()) resize_storage(*storage, wanted);
  impl->set_sizes_and_strides(size, stride);
  adopt_raw_storage(self);
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const std::int64_t n =
      static_cast<std::int64_t>(source.nbytes() / static_cast<std::size_t>(self.itemsize()));
  return set_storage_offset(self, std::move(source), 0, {n}, {});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(),
                            source.strides());
}
at::Tensor& set_nothing(at::Tensor& self) {
  const at::Tensor none = at::empty({0}, self.options());
  return set_storage_offset(self, none.storage(), 0, {0}, {});
}

// ---- copies and fills ----

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.device() == self.device()) {
    if (dst.is_alias_of(self) && dst.storage_offset() == self.storage_offset() &&
        dst.sizes() == self.sizes() && dst.strides() == self.strides() &&
        dst.scalar_type() == self.scalar_type() && dst.is_neg() == self.is_neg())
      return dst;  // as on the CPU, also where elements overlap
    // What the CPU's copy_ refuses.
    at::assert_no_internal_overlap(dst);
    at::assert_no_partial_overlap(dst, self);
  }
  const at::Tensor& src = self.sizes() == dst.sizes() ? self : self.expand_as(dst);
  if (!eager::defer_copy(dst, src)) copy_elements(dst, src, non_blocking);
  return dst;
}
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::native::resize_output(dst, self.sizes());
  copy_elements(dst, self, false);
  return dst;
}

/// A copy keeps a layout that somebody chose, as it keeps strides.
at::Tensor clone(const at::Tensor& self, Opt<c10::MemoryFormat> format) {
  const rt::Record& r = peek_record(self);
  const bool whole = self.storage_offset() == 0 && self.numel() == r.layout->elements &&
                     self.is_non_overlapping_and_dense() && dtype_of(self.scalar_type()) == r.dtype;
  if (format.value_or(c10::MemoryFormat::Preserve) != c10::MemoryFormat::Preserve || !whole ||
      r.layout->kind != rt::Kind::Custom)
    return at::native::clone(self, format);
  at::Tensor out =
      make_tensor(self.sizes(), self.strides(), self.scalar_type(), self.device().index(), r.layout);
  copy_elements(out, self, false);
  return out;
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0 || eager::defer_fill(self, value)) return self;
  const at::Tensor one = at::scalar_tensor(value, at::TensorOptions().dtype(self.scalar_type()));
  copy_private(self, one.expand(self.sizes()));
  return self;
}
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  copy_elements(self, value.to(at::kCPU).expand(self.sizes()), false);
  return self;
}
at::Tensor& zero_(at::Tensor& self) { return fill_scalar(self, 0); }

/// Sequences are made on the host: they have no input on the device.
at::Tensor& sequence(at::Tensor& out, const at::Tensor& host) {
  at::native::resize_output(out, host.sizes());
  copy_private(out, host);
  return out;
}
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                       at::Tensor& out) {
  return sequence(out, at::arange(start, end, step, out.options().device(at::kCPU)));
}

at::Tensor& linspace_out(const at::Scalar& start, const at::Scalar& end, std::int64_t steps,
                         at::Tensor& out) {
  return sequence(out, at::linspace(start, end, steps, out.options().device(at::kCPU)));
}
at::Tensor& logspace_out(const at::Scalar& start, const at::Scalar& end, std::int64_t steps, double base,
                         at::Tensor& out) {
  return sequence(out, at::logspace(start, end, steps, base, out.options().device(at::kCPU)));
}

at::Scalar local_scalar(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  copy_elements(host, self.dim() == 0 ? self : self.reshape({}), false);
  return host.item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// Copies see views that negate or conjugate as they are (copy.cpp), as PyTorch's own `copy_` does; resolving
// such a view is a copy itself.
void leave_to_copies(torch::Library& m) {
  for (const char* copy : {"_copy_from", "_copy_from_and_resize"})
    m.impl(copy, torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) { leave_to_copies(m); }
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { leave_to_copies(m); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("is_set_to", &is_set_to);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("clone", &clone);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero_);
  m.impl("arange.start_out", &arange_out);
  m.impl("linspace.out", &linspace_out);
  m.impl("logspace.out", &logspace_out);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("record_stream", &record_stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&eager::run_operator>());
}

}  // namespace
}  // namespace loom::dev
