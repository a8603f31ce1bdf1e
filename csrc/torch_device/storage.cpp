// Allocation of tensor storages and the torch-facing allocator with its statistics.
#include "torch_device/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <cstring>
#include <limits>

#include "runtime/transfer.h"

namespace loom::dev {
namespace {

thread_local c10::DeviceIndex tls_device = 0;
thread_local std::array<std::uint8_t, rt::kMaxCards> tls_streams{};
void (*oom_hook)() = nullptr;

void delete_record(void* context) { delete static_cast<rt::Record*>(context); }

/// Allocates; when that does not fit, once more after everything has been let go that waits for it.
template <typename Allocate>
auto twice(c10::DeviceIndex index, Allocate allocate) {
  try {
    return allocate();
  } catch (const rt::OutOfMemory& first) {
    finish_pending(index);
    if (oom_hook != nullptr) oom_hook();
  }
  try {
    return allocate();
  } catch (const rt::OutOfMemory& e) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, e.what());
  }
}

c10::DataPtr data_ptr(rt::Dtype dtype, rt::LayoutPtr layout, std::size_t host_bytes, c10::DeviceIndex index) {
  rt::Card& card = rt::card(index);
  std::unique_ptr<rt::Record> record =
      twice(index, [&] { return rt::allocate(card, dtype, layout, host_bytes, current_stream(index)); });
  void* token = record->token();
  return {token, record.release(), &delete_record, c10::Device(kSpyre, index)};
}

/// A negative number of bytes arrives here as a very large one.
void check_bytes(std::size_t bytes) {
  TORCH_CHECK(bytes <= static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()),
              "a storage cannot have ", static_cast<std::int64_t>(bytes), " bytes");
}

/// The record of a pointer; null where there is none. Pointers of this allocator carry it, those that others
/// made (legacy serialization, DLPack) know only the token.
rt::Record* find_record(const c10::DataPtr& p) {
  if (p.get_deleter() == &delete_record && p.get_context() != nullptr)
    return static_cast<rt::Record*>(p.get_context());
  return rt::record_of_token(p.get());
}

/// Bytes without a dtype yet: one flat dim of uint8.
c10::DataPtr raw_ptr(std::size_t bytes, c10::DeviceIndex index) {
  check_bytes(bytes);
  const std::int64_t n = static_cast<std::int64_t>(bytes);
  const std::array<std::int64_t, 1> size{n}, stride{1};
  c10::DataPtr p = data_ptr(rt::Dtype::U8, rt::layout_for(rt::Kind::Default, rt::Format::U8, size, stride, n),
                            bytes, index);
  static_cast<rt::Record*>(p.get_context())->raw = true;
  return p;
}

c10::Storage new_storage(std::size_t bytes, c10::DataPtr ptr, bool resizable = true) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                            std::move(ptr), &device_allocator(), resizable));
}

void check_geometry(c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(size.size() == stride.size(), "sizes and strides differ in number: ", size, " and ", stride);
  at::detail::check_size_nonnegative(size);
  for (std::int64_t s : stride) TORCH_CHECK(s >= 0, "negative strides are not supported: ", stride);
}

constexpr std::array<std::pair<c10::ScalarType, rt::Dtype>, 12> kTypes{{
    {c10::ScalarType::Half, rt::Dtype::F16},
    {c10::ScalarType::Float, rt::Dtype::F32},
    {c10::ScalarType::BFloat16, rt::Dtype::BF16},
    {c10::ScalarType::Long, rt::Dtype::I64},
    {c10::ScalarType::Bool, rt::Dtype::Bool},
    {c10::ScalarType::Int, rt::Dtype::I32},
    {c10::ScalarType::Double, rt::Dtype::F64},
    {c10::ScalarType::Short, rt::Dtype::I16},
    {c10::ScalarType::Char, rt::Dtype::I8},
    {c10::ScalarType::Byte, rt::Dtype::U8},
    {c10::ScalarType::Float8_e4m3fn, rt::Dtype::F8E4M3},
    {c10::ScalarType::Float8_e5m2fnuz, rt::Dtype::F8E5M2Z},
}};

using StatArray = c10::CachingAllocator::StatArray;

void put(StatArray& out, const rt::Counter& c) {
  auto& s = out[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  s.current = c.current;
  s.peak = c.peak;
  s.allocated = c.increased;
  s.freed = c.decreased;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t n) override { return raw_ptr(n, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "device memory is not addressable from the host");
  }
  bool initialized() override { return rt::started(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!rt::started()) return;
    for (int i = 0; i < rt::settings().cards; ++i) rt::card(i).memory().trim();
  }
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    rt::Record* record = find_record(ptr);
    if (record == nullptr || record->bytes == 0) return;
    TORCH_CHECK(stream.device_type() == kSpyre && stream.device_index() == record->card->index(),
                "record_stream: the stream is of ", stream.device(),
                ", the tensor is on spyre:", record->card->index());
    (void)record->card->stream(static_cast<std::uint64_t>(stream.id()));  // raises where there is none
    rt::note_use(*record, static_cast<std::uint64_t>(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats out;
    if (!rt::started()) return out;
    const rt::MemoryStats s = rt::card(device).memory().stats();
    put(out.allocation, s.allocations);
    put(out.active, s.allocations);
    put(out.allocated_bytes, s.allocated_bytes);
    put(out.active_bytes, s.allocated_bytes);
    put(out.reserved_bytes, s.reserved_bytes);
    put(out.requested_bytes, s.requested_bytes);
    out.num_ooms = s.ooms;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (rt::started()) rt::card(device).memory().reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    if (rt::started()) rt::card(device).memory().reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    rt::Memory& m = rt::card(device).memory();
    const rt::MemoryStats s = m.stats();
    const auto tensors = static_cast<std::uint64_t>(s.reserved_bytes.current);
    return {std::min(m.limit() - std::min(tensors, m.limit()), rt::kCapacity - tensors - s.programs_bytes),
            m.limit()};
  }
};

}  // namespace

rt::Dtype dtype_of(c10::ScalarType t) {
  for (const auto& [torch_type, type] : kTypes)
    if (torch_type == t) return type;
  return rt::Dtype::None;
}

c10::ScalarType scalar_type_of(rt::Dtype t) {
  for (const auto& [torch_type, type] : kTypes)
    if (type == t) return torch_type;
  return c10::ScalarType::Undefined;
}

rt::Dtype supported_dtype(c10::ScalarType t, rt::Format* format) {
  const rt::Dtype d = dtype_of(t);
  TORCH_CHECK(
      rt::device_format(d, rt::settings().ieee, format), "Spyre backend does not support dtype torch.",
      c10::getDtypeNames(t).first,
      "; it holds float16, bfloat16, float32, bool, int8, int16, int32, int64, uint8, float8_e4m3fn and "
      "float8_e5m2fnuz");
  return d;
}

rt::Record& peek_record(const c10::StorageImpl& s) {
  TORCH_CHECK(s.device_type() == kSpyre, "this storage holds no spyre memory");
  rt::Record* record = find_record(s.data_ptr());
  TORCH_CHECK(record != nullptr, "this storage was not allocated on the spyre device");
  return *record;
}

rt::Record& peek_record(const at::TensorBase& t) { return peek_record(*t.storage().unsafeGetStorageImpl()); }

rt::Record& record_of(const c10::StorageImpl& s) {
  rt::Record& record = peek_record(s);
  if (!record.settled.load(std::memory_order_acquire)) settle(record);
  return record;
}

rt::Record& record_of(const at::TensorBase& t) { return record_of(*t.storage().unsafeGetStorageImpl()); }

void allocate_block(rt::Record& r) {
  const auto index = static_cast<c10::DeviceIndex>(r.card->index());
  twice(index, [&] {
    rt::fulfil(r, current_stream(index));
    return true;
  });
}

c10::DeviceIndex current_device() { return tls_device; }

void set_current_device(c10::DeviceIndex index) {
  if (index < 0 || index >= rt::settings().cards) (void)rt::card(index);  // raises the precise error
  tls_device = index;
}

std::uint64_t current_stream(c10::DeviceIndex index) { return tls_streams[static_cast<std::size_t>(index)]; }

void set_current_stream(c10::DeviceIndex index, std::uint64_t id) {
  TORCH_CHECK(index >= 0 && index < rt::kMaxCards && id < rt::kStreams, "no stream ", id,
              " on spyre:", int(index));
  if (id != current_stream(index)) finish_pending(index);
  select_stream(index, id);
}

void select_stream(c10::DeviceIndex index, std::uint64_t id) {
  tls_streams[static_cast<std::size_t>(index)] = static_cast<std::uint8_t>(id);
}

at::Tensor make_view(c10::Storage storage, c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::int64_t offset, c10::ScalarType type) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                    c10::scalarTypeToTypeMeta(type));
  t.unsafeGetTensorImpl()->set_storage_offset(offset);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return t;
}

at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType type,
                       c10::DeviceIndex index, rt::LayoutPtr layout) {
  rt::Format format;
  const rt::Dtype dtype = supported_dtype(type, &format);
  const std::size_t bytes =
      at::detail::computeStorageNbytes(size, stride, static_cast<std::size_t>(rt::host_bytes(dtype)));
  return make_view(new_storage(bytes, data_ptr(dtype, std::move(layout), bytes, index)), size, stride, 0,
                   type);
}

at::Tensor promise_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType type,
                          c10::DeviceIndex index) {
  rt::Format format;
  const rt::Dtype dtype = supported_dtype(type, &format);
  check_geometry(size, stride);
  const auto item = static_cast<std::size_t>(rt::host_bytes(dtype));
  const std::size_t bytes = at::detail::computeStorageNbytes(size, stride, item);
  if (bytes == 0) return make_tensor(size, stride, type, index);
  auto record = rt::promise(
      rt::card(index), dtype,
      rt::layout_for(rt::Kind::Default, format, size, stride, static_cast<std::int64_t>(bytes / item)), bytes,
      current_stream(index));
  void* token = record->token();
  c10::DataPtr ptr(token, record.release(), &delete_record, c10::Device(kSpyre, index));
  return make_view(new_storage(bytes, std::move(ptr)), size, stride, 0, type);
}

at::Tensor make_tensor(c10::IntArrayRef size, c10::IntArrayRef stride, c10::ScalarType type,
                       c10::DeviceIndex index, rt::Kind kind) {
  rt::Format format;
  const rt::Dtype dtype = supported_dtype(type, &format);
  check_geometry(size, stride);
  const auto item = static_cast<std::size_t>(rt::host_bytes(dtype));
  const std::size_t elements = at::detail::computeStorageNbytes(size, stride, item) / item;
  return make_tensor(size, stride, type, index,
                     rt::layout_for(kind, format, size, stride, static_cast<std::int64_t>(elements)));
}

at::Tensor make_alias(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::int64_t offset, rt::LayoutPtr layout) {
  rt::Record& base = record_of(t);
  const std::size_t bytes = at::detail::computeStorageNbytes(size, stride, t.itemsize(), offset);
  auto record = rt::alias(base, std::move(layout), std::make_shared<c10::Storage>(t.storage()));
  record->host_bytes = bytes;
  void* token = record->token();
  c10::DataPtr ptr(token, record.release(), &delete_record, t.device());
  return make_view(new_storage(bytes, std::move(ptr), /*resizable=*/false), size, stride, offset,
                   t.scalar_type());
}

void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  check_bytes(bytes);
  const rt::Record& old = record_of(storage);
  const c10::DeviceIndex index = storage.device().index();
  const auto item = static_cast<std::size_t>(rt::host_bytes(old.dtype));
  const std::int64_t n = static_cast<std::int64_t>((bytes + item - 1) / item);
  const std::array<std::int64_t, 1> size{n}, stride{1};
  c10::DataPtr fresh = data_ptr(
      old.dtype, rt::layout_for(rt::Kind::Default, old.layout->format, size, stride, n), bytes, index);
  const auto& record = *static_cast<rt::Record*>(fresh.get_context());
  const std::int64_t kept = std::min(n, old.layout->elements);
  if (kept > 0) {
    const rt::Phys phys = rt::device_phys(old.dtype, old.layout->format);
    const rt::Side to{record.base(), record.layout.get(), phys, {1}, 0};
    const rt::Side from{old.base(), old.layout.get(), phys, {1}, 0};
    rt::card(index).stream(current_stream(index)).run([&] { rt::transfer({kept}, to, from); });
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

rt::LayoutPtr raw_layout(rt::Format format, const rt::Dims& size, const rt::Dims& stride,
                         const rt::Dims& device_size, const rt::Dims& stride_map) {
  rt::LayoutPtr custom = rt::make_custom(format, size, stride, device_size, stride_map);
  const auto plain = rt::layout_for(rt::Kind::Default, format, size, stride, custom->elements);
  return rt::same_bytes(*plain, *custom) ? plain : custom;
}

void relayout_storage(c10::StorageImpl& storage, rt::Dtype dtype, rt::LayoutPtr layout) {
  const rt::Record& old = record_of(storage);
  if (!old.raw && old.dtype == dtype && rt::same_bytes(*old.layout, *layout)) return;
  const c10::DeviceIndex index = storage.device().index();
  const std::int64_t n = layout->elements;
  const rt::Phys phys = rt::device_phys(dtype, layout->format);
  c10::DataPtr fresh = data_ptr(dtype, std::move(layout), storage.nbytes(), index);
  if (n > 0) {
    const auto& record = *static_cast<rt::Record*>(fresh.get_context());
    // A raw storage lies on the device as on the host.
    const rt::Side from =
        old.raw
            ? rt::Side{old.base(), nullptr, rt::host_phys(dtype), {1}, 0}
            : rt::Side{old.base(), old.layout.get(), rt::device_phys(old.dtype, old.layout->format), {1}, 0};
    const rt::Side to{record.base(), record.layout.get(), phys, {1}, 0};
    rt::card(index).stream(current_stream(index)).run([&] { rt::transfer({n}, to, from); });
  }
  storage.set_data_ptr_noswap(std::move(fresh));
}

bool clone_storage(const at::Tensor& dst, const at::Tensor& src) {
  auto whole = [](const at::Tensor& t) {
    return t.device().type() == kSpyre && t.scalar_type() == at::kByte && t.is_contiguous() &&
           t.storage_offset() == 0 && static_cast<std::size_t>(t.numel()) == t.storage().nbytes();
  };
  if (!whole(dst) || !whole(src) || dst.device() != src.device() || dst.numel() != src.numel()) return false;
  const rt::Record &to = record_of(dst), &from = record_of(src);
  if (!to.raw || from.raw || &to == &from) return false;
  const c10::DeviceIndex index = dst.device().index();
  c10::DataPtr fresh = data_ptr(from.dtype, from.layout, dst.storage().nbytes(), index);
  const auto& record = *static_cast<rt::Record*>(fresh.get_context());
  const auto bytes = std::min(record.bytes, from.bytes);
  rt::card(index).stream(current_stream(index)).run([&] { std::memcpy(record.base(), from.base(), bytes); });
  dst.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  return true;
}

void adopt_raw_storage(const at::Tensor& t) {
  const rt::Record& raw = record_of(t);
  rt::Format format;
  const rt::Dtype dtype = dtype_of(t.scalar_type());
  if (!raw.raw || dtype == rt::Dtype::U8 || !rt::device_format(dtype, rt::settings().ieee, &format)) return;
  auto& storage = *t.storage().unsafeGetStorageImpl();
  const auto item = static_cast<std::size_t>(rt::host_bytes(dtype));
  if (storage.nbytes() % item != 0) return;
  const std::int64_t n = static_cast<std::int64_t>(storage.nbytes() / item);
  const std::array<std::int64_t, 1> flat_size{n}, flat_stride{1};
  const bool exact = t.storage_offset() == 0 && t.numel() == n && t.is_non_overlapping_and_dense();
  const rt::LayoutPtr layout = exact ? rt::layout_for(rt::Kind::Default, format, t.sizes(), t.strides(), n)
                                     : rt::layout_for(rt::Kind::Default, format, flat_size, flat_stride, n);
  try {
    relayout_storage(storage, dtype, layout);
  } catch (const rt::ValueError&) {
    return;
  }
}

bool has_layout(const at::Tensor& t, rt::Kind kind) {
  if (t.storage_offset() != 0) return false;
  const rt::Record& r = record_of(t);
  if (dtype_of(t.scalar_type()) != r.dtype || t.numel() != r.layout->elements) return false;
  rt::Format format;
  if (!rt::device_format(r.dtype, rt::settings().ieee, &format) || format != r.layout->format) return false;
  const auto wanted = rt::layout_for(kind, r.layout->format, t.sizes(), t.strides(), r.layout->elements);
  if (wanted == r.layout) return true;
  if (!t.is_non_overlapping_and_dense()) return false;
  return rt::same_bytes(*wanted, *r.layout);
}

c10::DeviceAllocator& device_allocator() {
  static Allocator* a = new Allocator;
  return *a;
}

void set_out_of_memory_hook(void (*hook)()) { oom_hook = hook; }

}  // namespace loom::dev
