// What PyTorch asks of a device beyond operators: guard (device, streams, events), hooks, generators.
#include "torch_device/backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <memory>
#include <mutex>

#include "runtime/event.h"
#include "torch_device/storage.h"

namespace loom::dev {
namespace {

c10::Device spyre(c10::DeviceIndex i) { return {kSpyre, i}; }

/// The card with this number, the current one for a negative number. Raises when there is none.
c10::DeviceIndex existing(c10::DeviceIndex i) {
  const c10::DeviceIndex index = i < 0 ? current_device() : i;
  TORCH_CHECK(index < device_count(), "spyre device ", int(index), " does not exist: ", int(device_count()),
              " visible (TORCH_LOOM_CARDS)");
  return index;
}

c10::DeviceIndex index_of(c10::Device d) { return existing(d.index()); }

rt::Stream& stream_of(const c10::Stream& s) {
  return rt::card(s.device_index()).stream(static_cast<std::uint64_t>(s.id()));
}

c10::Stream make_stream(c10::DeviceIndex i, std::uint64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, spyre(i), static_cast<c10::StreamId>(id));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSpyre; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    setDevice(d);
    return before;
  }
  c10::Device getDevice() const override { return spyre(current_device()); }
  void setDevice(c10::Device d) const override {
    if (d.has_index() && d.index() != current_device()) set_current_device(d.index());
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.has_index() && d.index() >= 0 && d.index() < rt::settings().cards) set_current_device(d.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability c;
    c.capability_data.capability_bits = 0;
    for (auto t : {c10::kIndex_Half, c10::kIndex_BFloat16, c10::kIndex_Float, c10::kIndex_Bool,
                   c10::kIndex_Long, c10::kIndex_Int, c10::kIndex_Short, c10::kIndex_Char, c10::kIndex_Byte,
                   c10::kIndex_Float8_e4m3fn, c10::kIndex_Float8_e5m2fnuz})
      c.capability_data.capability_bits |= std::uint64_t{1} << t;
    return c;
  }

  c10::Stream getStream(c10::Device d) const override {
    const c10::DeviceIndex index = index_of(d);
    return make_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return make_stream(index_of(d), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool high) const override {
    const c10::DeviceIndex index = index_of(d);
    return make_stream(index, rt::card(index).next_stream(high));
  }
  c10::Stream getNewStream(c10::Device d, int priority) const override {
    return getStreamFromGlobalPool(d, priority != 0);
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    set_current_stream(s.device_index(), static_cast<std::uint64_t>(s.id()));
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return &stream_of(s); }
  bool queryStream(const c10::Stream& s) const override {
    finish_pending(s.device_index());
    return stream_of(s).idle();
  }
  void synchronizeStream(const c10::Stream& s) const override {
    finish_pending(s.device_index());
    stream_of(s).synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex i) const override {
    if (!rt::started() && !rt::in_bad_fork()) return;
    rt::Card& card = rt::card(i);
    finish_pending(i);
    card.synchronize();
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    finish_pending(s.device_index());
    if (*event == nullptr) *event = new rt::Event;
    static_cast<rt::Event*>(*event)->record(rt::card(s.device_index()), stream_of(s));
  }
  void block(void* event, const c10::Stream& s) const override {
    finish_pending(s.device_index());
    if (event != nullptr) static_cast<rt::Event*>(event)->block(stream_of(s));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<rt::Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<rt::Event*>(event)->synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<rt::Event*>(event);
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    TORCH_CHECK(a != nullptr && b != nullptr, "elapsed_time needs two recorded events");
    return static_cast<rt::Event*>(a)->wall_ms(*static_cast<rt::Event*>(b));
  }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& s) const override {
    device_allocator().recordStream(p, s);
  }
};

/// Device random numbers come from the same Mersenne twister as the CPU's, one per card: equal seeds give
/// equal values on both.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex i)
      : GeneratorImpl(spyre(i), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(at::make_generator<at::CPUGeneratorImpl>()) {}
  Generator(c10::DeviceIndex i, at::Generator cpu)
      : GeneratorImpl(spyre(i), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu_(std::move(cpu)) {}

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  // Where a twister stands is in its state. Copies and pickles carry seed, offset and state, in this order.
  void set_offset(std::uint64_t offset) override {
    TORCH_CHECK(offset == 0, "spyre generators have no offset but 0, got ", offset, "; set_state moves them");
  }
  std::uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& s) override { cpu_.unsafeGetGeneratorImpl()->set_state(s); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }
  at::Generator& cpu() { return cpu_; }

 private:
  Generator* clone_impl() const override { return new Generator(device_.index(), cpu_.clone()); }
  at::Generator cpu_;
};

const at::Generator& default_generator_ref(c10::DeviceIndex i) {
  static std::array<std::once_flag, rt::kMaxCards> once;
  static std::array<at::Generator, rt::kMaxCards> generators;
  const c10::DeviceIndex index = existing(i);
  const auto k = static_cast<std::size_t>(index);
  std::call_once(once[k], [&] {
    generators[k] = at::make_generator<Generator>(index);
    generators[k].seed();
  });
  return generators[k];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return rt::started(); }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex i) const override { set_current_device(i); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override {
    const c10::DeviceIndex before = current_device();
    set_current_device(i);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override {
    const c10::DeviceIndex before = current_device();
    if (i >= 0 && i < device_count()) set_current_device(i);
    return before;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override {
    return default_generator_ref(i);
  }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override {
    return at::make_generator<Generator>(existing(i));
  }
  at::Device getDeviceFromPtr(void* token) const override {
    const int card = rt::card_of_token(token);
    TORCH_CHECK(card >= 0, "not a pointer of a spyre tensor");
    return spyre(static_cast<c10::DeviceIndex>(card));
  }
  bool isPinnedPtr(const void* p) const override { return rt::is_pinned(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& s, std::size_t bytes) const override {
    resize_storage(*s.unsafeGetStorageImpl(), bytes);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t n) override {
    if (n == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    void* p = rt::allocate_pinned(n);
    return {p, p, &rt::free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &rt::free_pinned; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::DeviceIndex device_count() noexcept {
  try {
    return static_cast<c10::DeviceIndex>(rt::settings().cards);
  } catch (...) {
    return 0;
  }
}

c10::Allocator* pinned_allocator() {
  static PinnedAllocator* a = new PinnedAllocator;
  return a;
}

at::Generator default_generator(c10::DeviceIndex i) { return default_generator_ref(i); }

at::Generator host_generator(const std::optional<at::Generator>& g, c10::Device device) {
  const bool given = g.has_value() && g->defined();
  const c10::Device found = given ? g->device() : device;
  TORCH_CHECK(found.type() == device.type(), "Expected a '", device.type(),
              "' device type for generator but found '", found.type(), "'");
  TORCH_CHECK(found == device, "Expected a '", device, "' generator device but found '", found, "'");
  const at::Generator& chosen = given ? *g : default_generator_ref(device.index());
  return static_cast<Generator*>(chosen.unsafeGetGeneratorImpl())->cpu();
}

void register_backend() {
  static bool done = false;
  if (done) return;
  done = true;
  c10::SetAllocator(kSpyre, &device_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace loom::dev
