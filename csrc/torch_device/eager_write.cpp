// In-place and out= forms: the functional program runs, its result goes to where the argument lies.
#include "torch_device/eager_write.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

#include "torch_device/storage.h"

namespace loom::dev::eager {
namespace {

/// Do two tensors have the same elements in the same order?
bool same_place(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

/// May the program write its result straight over `self`? An elementwise kernel reads and writes an element
/// in the same place.
bool direct(const Site& site, const Program& program, const at::Tensor& self, const Call& call) {
  if (site.form != Form::InPlace || !site.pointwise || !program.writes_once()) return false;
  if (!has_layout(self, rt::Kind::Default) || !same_place(self, call.tensors[0])) return false;
  for (std::size_t i = 1; i < call.tensors.size(); ++i)
    if (call.tensors[i].is_alias_of(self) && !same_place(call.tensors[i], self)) return false;
  return program.result_matches(call, self);
}

}  // namespace

void check_written(const Site& site, c10::ArrayRef<c10::IValue> arguments) {
  for (const std::size_t w : site.written)
    for (const std::size_t i : site.inputs)
      if (arguments[i].isTensor() && arguments[i].toTensor().defined()) {
        const at::Tensor &out = arguments[w].toTensor(), &in = arguments[i].toTensor();
        TORCH_CHECK(out.device() == in.device() || (in.is_cpu() && in.dim() == 0),
                    "Expected all tensors to be on the same device, but the result is to go to ",
                    out.device(), " and an argument is on ", in.device());
      }
  if (!site.pointwise) return;
  for (const std::size_t w : site.written) {
    const at::Tensor& self = arguments[w].toTensor();
    at::assert_no_internal_overlap(self);
    for (const std::size_t i : site.inputs)
      if (arguments[i].isTensor() && arguments[i].toTensor().defined())
        at::assert_no_partial_overlap(self, arguments[i].toTensor());
  }
}

void prepare_written(const Site& site, const at::Tensor& into, c10::IntArrayRef sizes, c10::ScalarType type) {
  TORCH_CHECK(c10::canCast(type, into.scalar_type()), "result type ", c10::toString(type),
              " can't be cast to the desired output type ", c10::toString(into.scalar_type()));
  if (site.form == Form::Out) {
    at::native::resize_output(into, sizes);
  } else {
    TORCH_CHECK(into.sizes() == sizes, "output with shape ", into.sizes(),
                " doesn't match the broadcast shape ", sizes);
  }
}

c10::SmallVector<at::Tensor, 3> compute(const Site& site, const Program& program, Call& call,
                                        c10::ArrayRef<at::Tensor> into, const rt::Origin& origin) {
  const bool over = into.size() == 1 && direct(site, program, into[0], call);
  auto results = program.run(call, origin, over ? &into[0] : nullptr);
  if (!over)
    for (std::size_t i = 0; i < into.size(); ++i) {
      prepare_written(site, into[i], results[i].sizes(), results[i].scalar_type());
      copy_elements(into[i], results[i], false);
    }
  return results;
}

}  // namespace loom::dev::eager
