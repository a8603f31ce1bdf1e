// What a pickled tensor says of its storage's layout, through PyTorch's registry of backend metadata. Its
// values are bools, so the layout is written into the key.
#include "torch_device/metadata.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <sstream>

#include "torch_device/storage.h"

namespace loom::dev {
namespace {

using Metadata = std::unordered_map<std::string, bool>;
constexpr char kPrefix[] = "spyre_layout 1";

void put(std::ostream& out, const char* name, const rt::Dims& values) {
  out << ' ' << name << ' ' << values.size();
  for (std::int64_t v : values) out << ' ' << v;
}

rt::Dims get(std::istream& in, const char* name) {
  std::string found;
  std::size_t n = 0;
  in >> found >> n;
  rt::Dims out;
  if (in && found == name && n < 64) {
    out.resize(n);
    for (auto& v : out) in >> v;
  }
  TORCH_CHECK(in && found == name && n < 64, "the saved layout of a spyre tensor is damaged at '", name, "'");
  return out;
}

void write(const at::Tensor& t, Metadata& out) {
  // A fake tensor names the device and has no memory there; tracing asks for its metadata too.
  if (t.storage().device_type() != kSpyre) return;
  const rt::Record& r = record_of(t);
  if (r.layout->kind == rt::Kind::Default) return;
  std::ostringstream text;
  rt::Dims size, stride;
  for (const auto& a : r.layout->axes) {
    size.push_back(a.size);
    stride.push_back(a.host_stride);
  }
  text << kPrefix;
  put(text, "size", size);
  put(text, "stride", stride);
  put(text, "device_size", r.layout->device_size);
  put(text, "stride_map", r.layout->stride_map);
  out[text.str()] = true;
}

void read(const at::Tensor& t, Metadata& in) {
  for (const auto& [key, value] : in) {
    if (key.rfind(kPrefix, 0) != 0) continue;
    std::istringstream text(key.substr(sizeof kPrefix - 1));
    const rt::Dims size = get(text, "size"), stride = get(text, "stride");
    const rt::Dims device_size = get(text, "device_size"), stride_map = get(text, "stride_map");
    rt::Format format;
    supported_dtype(t.scalar_type(), &format);
    const rt::LayoutPtr layout = raw_layout(format, size, stride, device_size, stride_map);
    TORCH_CHECK(layout->elements == static_cast<std::int64_t>(t.storage().nbytes() / t.itemsize()),
                "the saved layout of a spyre tensor holds ", layout->elements, " elements, its storage ",
                t.storage().nbytes() / t.itemsize());
    relayout_storage(*t.storage().unsafeGetStorageImpl(), dtype_of(t.scalar_type()), layout);
  }
}

}  // namespace

void register_metadata() { torch::jit::TensorBackendMetaRegistry(kSpyre, &write, &read); }

}  // namespace loom::dev
