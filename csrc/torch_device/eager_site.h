// What is known of an operator before any call: its form (functional, in place, out=), the functional
// operator that computes it, and the programs compiled for that one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_device/eager_program.h"

namespace loom::dev::eager {

/// A Python object that may be let go on any thread.
struct Held {
  pybind11::object object;
  explicit Held(pybind11::object o) : object(std::move(o)) {}
  ~Held() {
    const pybind11::gil_scoped_acquire gil;
    object.release().dec_ref();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
};

/// Programs of one structural key, each with guards of its own; `refused` when the target cannot compile it.
struct Entry {
  std::vector<std::shared_ptr<const Program>> programs;
  bool refused = false;
  std::string structural;                 // the key
  std::shared_ptr<const Held> arguments;  // a call described for the compiler
};

/// A functional operator and its programs by structural key.
struct Table {
  std::string name, overload;
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const Entry>> entries;
};

enum class Form : std::uint8_t { Functional, InPlace, Out, None };

struct Site {
  Form form = Form::None;
  bool pointwise = false;
  /// Arguments of the functional operator, as positions in this operator's schema.
  std::vector<std::size_t> inputs;
  /// Written arguments, in the order of the results.
  std::vector<std::size_t> written;
  std::shared_ptr<Table> table;
};

/// The site of an operator; made at its first call.
const Site& site_of(const c10::OperatorHandle&);

/// All tables, for `loom ops` and for tests.
std::vector<std::shared_ptr<Table>> tables();

}  // namespace loom::dev::eager
