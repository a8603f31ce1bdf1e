// One walk over a call's arguments serves both ends: the key and the description for the compiler.
#include "torch_device/eager_key.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <cmath>

#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev::eager {
namespace {

enum class Tag : std::uint8_t { None, Tensor, Float, Int, Size, Constant, List, End };

/// Receives the arguments of a call in order.
class Visitor {
 public:
  virtual ~Visitor() = default;
  virtual void tensor(const at::Tensor&) = 0;
  virtual void number(Tag, const Number&) = 0;
  virtual void constant(const c10::IValue&, c10::TypeKind) = 0;
  virtual void begin() = 0;
  virtual void end() = 0;
};

c10::TypePtr inner(const c10::TypePtr& type) {
  if (const auto o = type->cast<c10::OptionalType>()) return o->getElementType();
  return type;
}

/// Walks one call. A plain failure (false) means: no program for this call.
class Walk {
 public:
  Walk(Visitor& visitor, bool floating) : v_(visitor), floating_(floating) {}

  bool argument(const c10::Argument& a, const c10::IValue& value) {
    // A number that the caller left at its default is part of the operator (alpha=1 costs nothing).
    const bool preset = a.default_value().has_value() && !a.default_value()->isNone() && !value.isTensor() &&
                        !value.isList() && c10::IValue(value) == *a.default_value();
    return item(value, inner(a.real_type()), preset);
  }

 private:
  bool item(const c10::IValue& value, const c10::TypePtr& type, bool preset) {
    const auto kind = type->kind();
    if (value.isNone()) return constant(value, kind);
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isBool() || value.isString() || value.isDevice()) return constant(value, kind);
    if (value.isDouble() || value.isInt()) return number(value, kind, preset);
    if (!value.isList()) return false;
    const c10::TypePtr element = inner(
        type->cast<c10::ListType>() ? type->castRaw<c10::ListType>()->getElementType() : c10::AnyType::get());
    v_.begin();
    for (const c10::IValue& e : value.toListRef())
      if (!item(e, element, false)) return false;
    v_.end();
    return true;
  }

  bool constant(const c10::IValue& value, c10::TypeKind kind) {
    v_.constant(value, kind);
    return true;
  }

  bool number(const c10::IValue& value, c10::TypeKind kind, bool preset) {
    Number n;
    n.floating = value.isDouble();
    n.real = n.floating ? value.toDouble() : static_cast<double>(value.toInt());
    n.whole = n.floating ? 0 : value.toInt();
    if (preset) return constant(value, kind);
    if (kind == c10::TypeKind::SymIntType && n.whole > 1) {
      n.size = true;
      v_.number(Tag::Size, n);
      return true;
    }
    const bool scalar = kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType;
    return scalar ? open(n) : constant(value, kind);
  }

  /// A number that the key leaves open: float for operators on floats, whatever Python type it had.
  bool open(Number n) {
    if (n.floating && !std::isfinite(n.real)) return constant(n.real, c10::TypeKind::FloatType);
    n.floating |= floating_;
    v_.number(n.floating ? Tag::Float : Tag::Int, n);
    return true;
  }

  bool tensor(const at::Tensor& t) {
    if (!t.defined()) return constant(c10::IValue(), c10::TypeKind::NoneType);
    if (t.device().type() == kSpyre) {
      v_.tensor(t);
      return true;
    }
    if (!t.is_cpu() || t.dim() != 0) return false;
    const at::Scalar s = t.item();  // a Python number, or a single value from the host, which promotes as one
    if (s.isBoolean()) return constant(s.toBool(), c10::TypeKind::BoolType);
    if (s.isComplex()) return false;
    Number n;
    n.floating = s.isFloatingPoint();
    n.real = s.toDouble();
    n.whole = n.floating ? 0 : s.toLong();
    return open(n);
  }

  Visitor& v_;
  bool floating_;
};

/// Does the tensor show the same elements again and again along the dim?
bool repeats(const at::Tensor& t, std::int64_t dim) { return t.stride(dim) == 0 && t.size(dim) > 1; }

/// Where a tensor repeats elements: per dim the number of smaller strides, each counted once, and -1 for the
/// dims that repeat. Otherwise nothing: then the order of dims says it all.
c10::SmallVector<int, 6> stride_ranks(const at::Tensor& t) {
  c10::SmallVector<int, 6> out;
  c10::SmallVector<std::int64_t, 6> different;
  for (std::int64_t d = 0; d < t.dim(); ++d)
    if (!repeats(t, d)) different.push_back(t.stride(d));
  if (different.size() == static_cast<std::size_t>(t.dim())) return out;
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    const auto at = std::lower_bound(different.begin(), different.end(), t.stride(d));
    out.push_back(repeats(t, d) ? -1 : static_cast<int>(at - different.begin()));
  }
  return out;
}

class Keys final : public Visitor {
 public:
  Keys(std::string* key, Call* call) : key_(*key), call_(*call) {}
  void tensor(const at::Tensor& t) override {
    put(Tag::Tensor);
    key_.push_back(static_cast<char>(t.scalar_type()));
    key_.push_back(static_cast<char>(t.dim()));
    const auto order = dim_order(t);
    for (std::size_t d = 0; d < order.size(); ++d) {
      const auto at = static_cast<std::int64_t>(d);
      // Sizes of 0 and 1 are structure: programs for open sizes take them to be 2 at least.
      const int form = t.size(at) == 0 ? 3 : repeats(t, at) ? 2 : t.size(at) == 1 ? 1 : 0;
      key_.push_back(static_cast<char>(order[d] << 2 | form));
    }
    for (const int rank : stride_ranks(t)) key_.push_back(static_cast<char>(rank));
    call_.tensors.push_back(t);
  }
  void number(Tag tag, const Number& n) override {
    put(tag);
    call_.numbers.push_back(n);
  }
  void constant(const c10::IValue& v, c10::TypeKind) override {
    if (v.isNone()) return put(Tag::None);
    put(Tag::Constant);
    if (v.isString()) {
      key_ += v.toStringRef();
      key_.push_back('\0');
    } else if (v.isDouble()) {
      raw(v.toDouble(), 'd');
    } else if (v.isBool()) {
      key_.push_back(v.toBool() ? 'T' : 'F');
    } else if (v.isInt()) {
      raw(v.toInt(), 'i');
    } else {
      key_ += v.toDevice().str();
      key_.push_back('\0');
    }
  }
  void begin() override { put(Tag::List); }
  void end() override { put(Tag::End); }

 private:
  void put(Tag tag) { key_.push_back(static_cast<char>(tag)); }
  template <typename T>
  void raw(T value, char type) {
    key_.push_back(type);
    key_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  std::string& key_;
  Call& call_;
};

class Describe final : public Visitor {
 public:
  Describe() { open_.emplace_back(); }
  void tensor(const at::Tensor& t) override {
    py::tuple sizes(t.dim()), order(t.dim());
    const auto dims = dim_order(t);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      sizes[d] = t.size(static_cast<std::int64_t>(d));
      order[d] = static_cast<int>(dims[d]);
    }
    py::list ranks;
    for (const int rank : stride_ranks(t)) ranks.append(rank);
    put(py::make_tuple("tensor", sizes, order, ranks, dtype(t.scalar_type()),
                       static_cast<int>(t.device().index())));
  }
  void number(Tag tag, const Number& n) override {
    const char* kind = tag == Tag::Float ? "float" : tag == Tag::Int ? "int" : "size";
    const py::object value =
        tag == Tag::Float ? py::object(py::float_(n.real)) : py::object(py::int_(n.whole));
    put(py::make_tuple("number", value, kind));
  }
  void constant(const c10::IValue& v, c10::TypeKind kind) override {
    py::object value = py::none();
    if (v.isInt() && kind == c10::TypeKind::ScalarTypeType) {
      value = dtype(static_cast<c10::ScalarType>(v.toInt()));
    } else if (v.isInt() && kind == c10::TypeKind::LayoutType) {
      value = object(torch::getTHPLayout(static_cast<c10::Layout>(v.toInt())));
    } else if (v.isInt() && kind == c10::TypeKind::MemoryFormatType) {
      value = object(torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(v.toInt())));
    } else if (v.isBool()) {
      value = py::bool_(v.toBool());
    } else if (v.isInt()) {
      value = py::int_(v.toInt());
    } else if (v.isDouble()) {
      value = py::float_(v.toDouble());
    } else if (v.isString()) {
      value = py::str(v.toStringRef());
    } else if (v.isDevice()) {
      value = py::module_::import("torch").attr("device")(v.toDevice().str());
    }
    put(py::make_tuple("constant", value));
  }
  void begin() override { open_.emplace_back(); }
  void end() override {
    py::list done = open_.back();
    open_.pop_back();
    put(py::make_tuple("list", done));
  }
  py::list result() { return open_.back(); }

 private:
  template <typename T>
  static py::object object(T* o) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(o));
  }
  static py::object dtype(c10::ScalarType t) { return object(torch::getTHPDtype(t)); }
  void put(const py::object& item) { open_.back().append(item); }
  std::vector<py::list> open_;
};

/// The tensors of a call taken together: their card, and whether one of them holds floats.
Described survey(const Site& site, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex* card,
                 bool* floating) {
  bool any = false, several = false, elements = false;
  const auto look = [&](const at::Tensor& t) {
    if (!t.defined() || t.device().type() != kSpyre) return;
    several |= any && *card != t.device().index();
    elements |= t.numel() != 0;
    any = true;
    *card = t.device().index();
    *floating |= at::isFloatingType(t.scalar_type());
  };
  for (const std::size_t i : site.inputs) {
    const c10::IValue& v = arguments[i];
    if (v.isTensor()) {
      look(v.toTensor());
    } else if (v.isList()) {
      for (const c10::IValue& e : v.toListRef())
        if (e.isTensor()) look(e.toTensor());
    }
  }
  return several || !any ? Described::Odd : elements ? Described::Call : Described::Nothing;
}

bool walk(const Site& site, const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
          bool floating, Visitor& visitor) {
  Walk w(visitor, floating);
  for (const std::size_t i : site.inputs)
    if (!w.argument(schema.arguments()[i], arguments[i])) return false;
  return true;
}

}  // namespace

Described describe(const Site& site, const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                   std::string* key, Call* call) {
  bool floating = false;
  const Described found = survey(site, arguments, &call->card, &floating);
  if (found != Described::Call) return found;
  Keys keys(key, call);
  return walk(site, schema, arguments, floating, keys) ? found : Described::Odd;
}

py::list described(const Site& site, const c10::FunctionSchema& schema,
                   c10::ArrayRef<c10::IValue> arguments) {
  bool floating = false;
  c10::DeviceIndex card = 0;
  (void)survey(site, arguments, &card, &floating);
  Describe describe;
  walk(site, schema, arguments, floating, describe);
  return describe.result();
}

}  // namespace loom::dev::eager
