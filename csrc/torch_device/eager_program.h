// Op programs: what runs when an eager operator's structural key is known. A program is data that a compiler
// made once (steps over buffers, sizes as expressions of the call); running one calls no Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace loom::dev::eager {

/// A number of a call: a Python scalar or a size given as argument.
struct Number {
  double real = 0;
  std::int64_t whole = 0;
  bool floating = false;
};

/// What a program runs on: the tensors of the call, each covering its storage in the default layout (`run`
/// makes copies of those that do not), and its numbers.
struct Call {
  c10::SmallVector<at::Tensor, 6> tensors;
  c10::SmallVector<Number, 4> numbers;
  c10::DeviceIndex card = 0;
};

/// An expression over sizes and numbers of a call, in postfix order.
class Expr {
 public:
  enum class Op : std::uint8_t {
    Constant,
    Size,
    Number,
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Not
  };
  explicit Expr(const pybind11::handle& nested);
  std::int64_t whole(const Call&) const;
  double real(const Call&) const;

 private:
  struct Item {
    Op op = Op::Constant;
    std::int32_t tensor = 0, dim = 0;
    std::int64_t constant = 0;
    double real = 0;
  };
  void append(const pybind11::handle& nested);
  template <typename T>
  T value(const Call&) const;
  std::vector<Item> items_;
};
using Exprs = std::vector<Expr>;

/// A kernel of a program. Its plan is replaced when a size outgrows the bound it was compiled for.
class Kernel {
 public:
  explicit Kernel(pybind11::object launchable);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  /// The plan that serves these arguments.
  std::shared_ptr<rt::Plan> plan_for(const std::vector<chip::ArgValue>& args);
  const std::shared_ptr<rt::Plan>& plan() const { return plan_; }

 private:
  struct Bound {
    std::size_t argument;
    std::int64_t top;
  };
  void read();
  bool fits(const std::vector<chip::ArgValue>& args) const;
  pybind11::object launchable_;
  std::shared_ptr<rt::Plan> plan_;
  std::vector<Bound> bounds_;
  std::mutex mutex_;
};

class Program {
 public:
  /// From the fields of torch_loom.inductor.op_program.Program and the launchable form of its kernels.
  Program(const pybind11::object& fields, const pybind11::list& kernels);
  /// Do the sizes and numbers of the call satisfy what the program was compiled under?
  bool accepts(const Call&) const;
  /// Runs the steps and returns the outputs; an undefined tensor stands for None. With `into`, the single
  /// output is written there (the caller has checked that this is safe).
  c10::SmallVector<at::Tensor, 3> run(Call&, const rt::Origin&, const at::Tensor* into = nullptr) const;
  /// May the output take the place of an input: one launch, one output that is allocated once?
  bool writes_once() const { return writes_once_; }
  /// Would the single output be a tensor like `t`?
  bool result_matches(const Call&, const at::Tensor& t) const;

 private:
  enum class Kind : std::uint8_t { Allocate, View, Launch, Free };
  struct Argument {
    int buffer = -1;  // or an expression
    int expr = -1;
  };
  struct Step {
    Kind kind = Kind::Free;
    int buffer = 0, base = 0;
    Exprs size, stride, offset;
    c10::ScalarType type = c10::ScalarType::Undefined;
    rt::Kind layout = rt::Kind::Default;
    std::vector<Argument> args;
    Exprs exprs;
  };
  void launch(const Step&, const Call&, c10::ArrayRef<at::Tensor>, const rt::Origin&) const;

  std::size_t inputs_ = 0, buffers_ = 0;
  std::vector<Step> steps_;
  std::vector<int> outputs_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  Exprs guards_;
  bool writes_once_ = false;
};

/// Dense strides of a tensor's sizes in the order in which its dims lie in memory.
c10::DimVector dense_strides(const at::Tensor&, c10::ArrayRef<std::uint8_t> order);
/// Dims from the outermost in memory; the identity whenever the strides allow it.
c10::SmallVector<std::uint8_t, 6> dim_order(const at::Tensor&);

/// Launches of programs since the process started.
std::int64_t launches();

}  // namespace loom::dev::eager
