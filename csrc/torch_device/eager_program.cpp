// Evaluation and execution of op programs.
#include "torch_device/eager_program.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "torch_device/storage.h"

namespace py = pybind11;

namespace loom::dev::eager {
namespace {

std::atomic<std::int64_t> launch_count{0}, kernel_count{0};

const std::unordered_map<std::string, Expr::Op>& op_names() {
  using Op = Expr::Op;
  static const auto* names = new std::unordered_map<std::string, Op>{
      {"+", Op::Add},   {"-", Op::Sub},   {"*", Op::Mul}, {"//", Op::Div}, {"%", Op::Mod}, {"min", Op::Min},
      {"max", Op::Max}, {"==", Op::Eq},   {"!=", Op::Ne}, {"<", Op::Lt},   {"<=", Op::Le}, {">", Op::Gt},
      {">=", Op::Ge},   {"and", Op::And}, {"or", Op::Or}, {"not", Op::Not}};
  return *names;
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  TORCH_CHECK(b != 0, "a size expression of an op program divides by zero");
  const std::int64_t q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
double floor_div(double a, double b) { return std::floor(a / b); }

Exprs exprs(const py::handle& list) {
  Exprs out;
  for (const auto& e : list) out.emplace_back(e);
  return out;
}

c10::DimVector values(const Exprs& list, const Call& call) {
  c10::DimVector out;
  for (const Expr& e : list) out.push_back(e.whole(call));
  return out;
}

}  // namespace

std::int64_t launches() { return launch_count.load(std::memory_order_relaxed); }
std::int64_t kernels_launched() { return kernel_count.load(std::memory_order_relaxed); }

// ---- expressions ----

Expr::Expr(const py::handle& nested) { append(nested); }

void Expr::append(const py::handle& nested) {
  Item item;
  if (py::isinstance<py::int_>(nested)) {
    item.constant = nested.cast<std::int64_t>();
    item.real = static_cast<double>(item.constant);
  } else if (py::isinstance<py::float_>(nested)) {
    item.real = nested.cast<double>();
    item.constant = static_cast<std::int64_t>(item.real);
  } else {
    const auto list = nested.cast<py::sequence>();
    const auto name = list[0].cast<std::string>();
    if (name == "t" || name == "n") {
      item.op = name == "t" ? Op::Size : Op::Number;
      item.tensor = list[1].cast<std::int32_t>();
      if (name == "t") item.dim = list[2].cast<std::int32_t>();
    } else {
      const auto found = op_names().find(name);
      if (found == op_names().end()) throw py::value_error("op program: no operation '" + name + "'");
      for (std::size_t i = 1; i < list.size(); ++i) append(list[i]);
      item.op = found->second;
    }
  }
  items_.push_back(item);
}

template <typename T>
T Expr::value(const Call& call) const {
  c10::SmallVector<T, 8> stack;
  for (const Item& item : items_) {
    switch (item.op) {
      case Op::Constant:
        stack.push_back(std::is_same_v<T, double> ? static_cast<T>(item.real)
                                                  : static_cast<T>(item.constant));
        continue;
      case Op::Size:
        stack.push_back(static_cast<T>(call.tensors[static_cast<std::size_t>(item.tensor)].size(item.dim)));
        continue;
      case Op::Number: {
        const Number& n = call.numbers[static_cast<std::size_t>(item.tensor)];
        stack.push_back(n.floating ? static_cast<T>(n.real) : static_cast<T>(n.whole));
        continue;
      }
      case Op::Not:
        stack.back() = stack.back() == T(0) ? T(1) : T(0);
        continue;
      default:
        break;
    }
    const T b = stack.pop_back_val();
    T& a = stack.back();
    switch (item.op) {
      case Op::Add:
        a = a + b;
        break;
      case Op::Sub:
        a = a - b;
        break;
      case Op::Mul:
        a = a * b;
        break;
      case Op::Div:
        a = floor_div(a, b);
        break;
      case Op::Mod:
        a = a - floor_div(a, b) * b;
        break;
      case Op::Min:
        a = std::min(a, b);
        break;
      case Op::Max:
        a = std::max(a, b);
        break;
      case Op::Eq:
        a = static_cast<T>(a == b);
        break;
      case Op::Ne:
        a = static_cast<T>(a != b);
        break;
      case Op::Lt:
        a = static_cast<T>(a < b);
        break;
      case Op::Le:
        a = static_cast<T>(a <= b);
        break;
      case Op::Gt:
        a = static_cast<T>(a > b);
        break;
      case Op::Ge:
        a = static_cast<T>(a >= b);
        break;
      case Op::And:
        a = static_cast<T>(a != T(0) && b != T(0));
        break;
      default:
        a = static_cast<T>(a != T(0) || b != T(0));
        break;
    }
  }
  return stack.back();
}

std::int64_t Expr::whole(const Call& call) const {
  if (items_.size() == 1 && items_[0].op == Op::Size)
    return call.tensors[static_cast<std::size_t>(items_[0].tensor)].size(items_[0].dim);
  return value<std::int64_t>(call);
}
bool Expr::floating(const Call& call) const {
  return std::any_of(items_.begin(), items_.end(), [&](const Item& i) {
    return i.op == Op::Number && call.numbers[static_cast<std::size_t>(i.tensor)].floating;
  });
}
double Expr::real(const Call& call) const { return value<double>(call); }

// ---- kernels ----

Kernel::Kernel(py::object launchable) : launchable_(std::move(launchable)) { read(); }

Kernel::~Kernel() {
  const py::gil_scoped_acquire gil;
  launchable_.release().dec_ref();
}

void Kernel::call(const std::vector<Operand>& operands) {
  const py::gil_scoped_acquire gil;
  py::list args;
  for (const Operand& o : operands) {
    if (o.tensor.defined()) {
      args.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(o.tensor)));
    } else if (o.number.floating) {
      args.append(o.number.real);
    } else {
      args.append(o.number.whole);
    }
  }
  launchable_(*args);
}

void Kernel::read() {
  on_host_ = !py::hasattr(launchable_, "plan");
  if (on_host_) return;
  plan_ = launchable_.attr("plan").cast<std::shared_ptr<rt::Plan>>();
  bounds_.clear();
  for (const auto& b : launchable_.attr("bounds"))
    bounds_.push_back(
        {b.cast<py::tuple>()[0].cast<std::size_t>(), b.cast<py::tuple>()[2].cast<std::int64_t>()});
}

bool Kernel::fits(const std::vector<chip::ArgValue>& args) const {
  return std::all_of(bounds_.begin(), bounds_.end(),
                     [&](const Bound& b) { return args[b.argument].number <= b.top; });
}

std::shared_ptr<rt::Plan> Kernel::plan_for(const std::vector<chip::ArgValue>& args) {
  {
    const std::lock_guard lock(mutex_);
    if (fits(args)) return plan_;
  }
  const py::gil_scoped_acquire gil;  // taken before the mutex here, and never inside of it
  py::list numbers;
  for (const auto& a : args) numbers.append(a.number);
  launchable_.attr("grow")(numbers);
  const std::lock_guard lock(mutex_);
  read();
  return plan_;
}

// ---- programs ----

Program::Program(const py::object& fields, const py::list& kernels) {
  for (const auto& k : kernels)
    kernels_.push_back(std::make_unique<Kernel>(py::reinterpret_borrow<py::object>(k)));
  inputs_ = fields.attr("inputs").cast<std::size_t>();
  buffers_ = inputs_;
  guards_ = exprs(fields.attr("guards"));
  for (const auto& o : fields.attr("outputs")) outputs_.push_back(o.is_none() ? -1 : o.cast<int>());
  std::size_t allocations = 0, launched = 0;
  for (const auto& entry : fields.attr("steps")) {
    const auto s = entry.cast<py::sequence>();
    const auto name = s[0].cast<std::string>();
    Step step;
    step.buffer = s[1].cast<int>();  // of a launch: the kernel
    if (name == "alloc") {
      step.kind = Kind::Allocate;
      step.size = exprs(s[2]);
      step.stride = exprs(s[3]);
      const py::object dtype = py::module_::import("torch").attr(s[4].cast<std::string>().c_str());
      step.type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
      step.layout = s[5].cast<std::string>() == "default" ? rt::Kind::Default : rt::Kind::RowMajor;
      ++allocations;
    } else if (name == "view") {
      step.kind = Kind::View;
      step.base = s[2].cast<int>();
      step.size = exprs(s[3]);
      step.stride = exprs(s[4]);
      step.offset.emplace_back(s[5]);
    } else if (name == "launch") {
      step.kind = Kind::Launch;
      for (const auto& a : s[2].cast<py::sequence>()) {
        const auto pair = a.cast<py::sequence>();
        if (pair[0].cast<std::string>() == "b") {
          step.args.push_back({pair[1].cast<int>(), -1});
        } else {
          step.args.push_back({-1, static_cast<int>(step.exprs.size())});
          step.exprs.emplace_back(pair[1]);
        }
      }
      if (s.size() > 3)
        for (const auto& line : s[3].cast<py::sequence>()) step.lines.push_back(line.cast<std::size_t>());
      ++launched;
    }
    if (step.kind == Kind::Allocate || step.kind == Kind::View)
      buffers_ = std::max(buffers_, static_cast<std::size_t>(step.buffer) + 1);
    steps_.push_back(std::move(step));
  }
  writes_once_ = allocations == 1 && launched == 1 && steps_.size() == 2 && outputs_.size() == 1 &&
                 steps_[0].kind == Kind::Allocate && outputs_[0] == steps_[0].buffer;
  for (const int o : outputs_) makers_.push_back(o < 0 ? 0 : maker(o));
}

/// The lines that a launch computes, as one text.
rt::Origin Program::joined(const std::vector<std::size_t>& lines, c10::ArrayRef<rt::Origin> origins) {
  if (lines.empty() || origins.size() == 1) return origins.empty() ? nullptr : origins.back();
  c10::SmallVector<const std::string*, 8> different;
  for (const std::size_t l : lines) {
    const std::string* text = origins[l].get();
    if (text != nullptr && std::find(different.begin(), different.end(), text) == different.end())
      different.push_back(text);
  }
  if (different.empty()) return nullptr;
  std::string text = *different.front();
  for (std::size_t i = 1; i < different.size(); ++i) text += (i == 1 ? " fused with " : ", ") + *different[i];
  return std::make_shared<const std::string>(std::move(text));
}

bool Program::accepts(const Call& call) const {
  return std::all_of(guards_.begin(), guards_.end(), [&](const Expr& g) { return g.real(call) != 0; });
}

void Program::launch(const Step& step, const Call& call, c10::ArrayRef<at::Tensor> buffers,
                     c10::ArrayRef<rt::Origin> origins, rt::Batch& batch) const {
  Kernel& kernel = *kernels_[static_cast<std::size_t>(step.buffer)];
  kernel_count.fetch_add(1, std::memory_order_relaxed);
  if (kernel.on_host()) {
    batch.submit();
    std::vector<Kernel::Operand> operands;
    for (const Argument& a : step.args) {
      Kernel::Operand o;
      if (a.buffer >= 0) {
        o.tensor = buffers[static_cast<std::size_t>(a.buffer)];
      } else {
        const Expr& e = step.exprs[static_cast<std::size_t>(a.expr)];
        o.number.floating = e.floating(call);
        o.number.real = e.real(call);
        o.number.whole = o.number.floating ? 0 : e.whole(call);
      }
      operands.push_back(std::move(o));
    }
    return kernel.call(operands);
  }
  thread_local std::vector<chip::ArgValue> args;
  const std::uint64_t stream = current_stream(call.card);
  const auto& described = kernel.plan()->args();
  TORCH_INTERNAL_ASSERT(described.size() == step.args.size(), "op program and kernel disagree");
  args.clear();
  for (std::size_t i = 0; i < step.args.size(); ++i) {
    const Argument& a = step.args[i];
    if (a.buffer >= 0) {
      rt::Record& r = record_of(buffers[static_cast<std::size_t>(a.buffer)]);
      rt::note_use(r, stream);
      if (described[i].access & 2) rt::note_write(r);
      args.push_back({r.address, r.bytes, 0});
      continue;
    }
    const Expr& e = step.exprs[static_cast<std::size_t>(a.expr)];
    chip::ArgValue v;
    v.number = described[i].kind == 2
                   ? static_cast<std::int64_t>(std::bit_cast<std::uint32_t>(static_cast<float>(e.real(call))))
                   : e.whole(call);
    args.push_back(v);
  }
  batch.add(kernel.plan_for(args), args, joined(step.lines, origins));
}

c10::SmallVector<at::Tensor, 3> Program::run(Call& call, c10::ArrayRef<rt::Origin> origins,
                                             const at::Tensor* into) const {
  c10::SmallVector<at::Tensor, 8> buffers(call.tensors.begin(), call.tensors.end());
  buffers.resize(buffers_);
  for (std::size_t i = 0; i < inputs_; ++i) {
    const at::Tensor& t = buffers[i];
    if (has_layout(t, rt::Kind::Default)) continue;
    const auto strides = dense_strides(t, dim_order(t));
    const at::Tensor dense = make_tensor(t.sizes(), strides, t.scalar_type(), call.card);
    copy_elements(dense, t, false);
    buffers[i] = dense;
  }
  rt::Batch batch(rt::card(call.card).stream(current_stream(call.card)));
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::Allocate:
        buffers[static_cast<std::size_t>(step.buffer)] =
            into != nullptr ? *into
                            : make_tensor(values(step.size, call), values(step.stride, call), step.type,
                                          call.card, step.layout);
        break;
      case Kind::View:
        buffers[static_cast<std::size_t>(step.buffer)] =
            buffers[static_cast<std::size_t>(step.base)].as_strided(
                values(step.size, call), values(step.stride, call), step.offset[0].whole(call));
        break;
      case Kind::Launch:
        launch(step, call, buffers, origins, batch);
        break;
      case Kind::Free:
        batch.submit();  // the memory must have been used by then
        buffers[static_cast<std::size_t>(step.buffer)] = at::Tensor();
        break;
    }
  }
  batch.submit();
  launch_count.fetch_add(1, std::memory_order_relaxed);
  c10::SmallVector<at::Tensor, 3> out;
  for (int o : outputs_) out.push_back(o < 0 ? at::Tensor() : buffers[static_cast<std::size_t>(o)]);
  return out;
}

bool Program::shapes(const Call& call, c10::SmallVector<Shape, 3>* out) const {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Shape shape;
    shape.none = outputs_[i] < 0;
    if (!shape.none) {
      const Step* made = &steps_[makers_[i]];
      shape.sizes = values(made->size, call);
      shape.strides = values(made->stride, call);
      while (made->kind == Kind::View) made = &steps_[maker(made->base)];
      shape.type = made->type;
      for (std::size_t j = 0; j < i; ++j)
        if (outputs_[j] == outputs_[i]) return false;
    }
    out->push_back(std::move(shape));
  }
  return true;
}

std::size_t Program::maker(int buffer) const {
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if ((steps_[i].kind == Kind::Allocate || steps_[i].kind == Kind::View) && steps_[i].buffer == buffer)
      return i;
  TORCH_INTERNAL_ASSERT(false, "an op program returns buffer ", buffer, " and does not make it");
}

bool Program::result_matches(const Call& call, const at::Tensor& t) const {
  const Step& made = steps_[0];
  return made.type == t.scalar_type() && made.layout == rt::Kind::Default &&
         c10::IntArrayRef(values(made.size, call)) == t.sizes() &&
         c10::IntArrayRef(values(made.stride, call)) == t.strides();
}

// ---- geometry ----

c10::SmallVector<std::uint8_t, 6> dim_order(const at::Tensor& t) {
  c10::SmallVector<std::uint8_t, 6> order;
  for (std::int64_t d = 0; d < t.dim(); ++d) order.push_back(static_cast<std::uint8_t>(d));
  const auto sizes = t.sizes(), strides = t.strides();
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  bool plain = true;
  for (std::int64_t d = 0; d < t.dim() && plain; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (sizes[i] == 1 || strides[i] == 0) continue;
    plain = strides[i] <= last;
    last = strides[i];
  }
  if (!plain)
    std::stable_sort(order.begin(), order.end(), [&](std::uint8_t a, std::uint8_t b) {
      const bool one_a = sizes[a] == 1, one_b = sizes[b] == 1;
      if (one_a || one_b) return one_a && !one_b;
      return strides[a] > strides[b];
    });
  return order;
}

c10::DimVector dense_strides(const at::Tensor& t, c10::ArrayRef<std::uint8_t> order) {
  c10::DimVector out(static_cast<std::size_t>(t.dim()));
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    out[order[i]] = step;
    step *= t.size(order[i]);
  }
  return out;
}

}  // namespace loom::dev::eager
