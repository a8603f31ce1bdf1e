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
  bool size = false;  // part of a size, fixed in a graph
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
  /// Does a floating number of the call take part?
  bool floating(const Call&) const;
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

/// A kernel of a program: a plan, which is replaced when a size outgrows the bound it was compiled for, or a
/// Python callable of a target that computes on the host.
class Kernel {
 public:
  explicit Kernel(pybind11::object launchable);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  /// The plan that serves these arguments.
  std::shared_ptr<rt::Plan> plan_for(const std::vector<chip::ArgValue>& args);
  const std::shared_ptr<rt::Plan>& plan() const { return plan_; }

  /// An argument of a callable: a tensor, or a number.
  struct Operand {
    at::Tensor tensor;
    Number number;
  };
  bool on_host() const { return on_host_; }
  void call(const std::vector<Operand>&);

 private:
  struct Bound {
    std::size_t argument;
    std::int64_t top;
  };
  void read();
  bool fits(const std::vector<chip::ArgValue>& args) const;
  pybind11::object launchable_;
  bool on_host_ = false;
  std::shared_ptr<rt::Plan> plan_;
  std::vector<Bound> bounds_;
  std::mutex mutex_;
};

/// What an output of a program will be.
struct Shape {
  c10::DimVector sizes, strides;
  c10::ScalarType type = c10::ScalarType::Undefined;
  bool none = false;
};

class Program {
 public:
  /// From the fields of torch_loom.inductor.op_program.Program and the launchable form of its kernels.
  Program(const pybind11::object& fields, const pybind11::list& kernels);
  /// Do the sizes and numbers of the call satisfy what the program was compiled under?
  bool accepts(const Call&) const;
  /// Runs the steps and returns the outputs; an undefined tensor stands for None. With `into`, the single
  /// output is written there (the caller has checked that this is safe).
  /// `origins` are the lines of the operators that the program computes.
  c10::SmallVector<at::Tensor, 3> run(Call&, c10::ArrayRef<rt::Origin> origins,
                                      const at::Tensor* into = nullptr) const;
  /// Sizes, strides and dtypes of the outputs; false when two of them share memory.
  bool shapes(const Call&, c10::SmallVector<Shape, 3>* out) const;
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
    std::vector<std::size_t> lines;  // of a launch: which of the origins it computes
  };
  void launch(const Step&, const Call&, c10::ArrayRef<at::Tensor>, c10::ArrayRef<rt::Origin>,
              rt::Batch&) const;

  std::size_t maker(int buffer) const;
  static rt::Origin joined(const std::vector<std::size_t>& lines, c10::ArrayRef<rt::Origin> origins);

  std::size_t inputs_ = 0, buffers_ = 0;
  std::vector<Step> steps_;
  std::vector<int> outputs_;
  std::vector<std::size_t> makers_;  // per output: the step that makes its buffer
  std::vector<std::unique_ptr<Kernel>> kernels_;
  Exprs guards_;
  bool writes_once_ = false;
};

/// Dense strides of a tensor's sizes in the order in which its dims lie in memory.
c10::DimVector dense_strides(const at::Tensor&, c10::ArrayRef<std::uint8_t> order);
/// Dims from the outermost in memory; the identity whenever the strides allow it.
c10::SmallVector<std::uint8_t, 6> dim_order(const at::Tensor&);

/// Launches of programs since the process started, and the kernels in them.
std::int64_t launches();
std::int64_t kernels_launched();

}  // namespace loom::dev::eager
