// Classification of operators by their schema.
#include "torch_device/eager_site.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace loom::dev::eager {
namespace {

std::mutex mutex;

std::map<std::string, std::shared_ptr<Table>>& all_tables() {
  static auto* t = new std::map<std::string, std::shared_ptr<Table>>;
  return *t;
}

std::shared_ptr<Table> table_for(const c10::OperatorName& name) {
  auto& slot = all_tables()[name.name + "." + name.overload_name];
  if (!slot) {
    slot = std::make_shared<Table>();
    slot->name = name.name;
    slot->overload = name.overload_name;
  }
  return slot;
}

bool written(const c10::Argument& a) { return a.alias_info() != nullptr && a.alias_info()->isWrite(); }

bool all_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& r) { return r.type()->kind() == c10::TypeKind::TensorType; });
}

bool aliases(const c10::FunctionSchema& schema) {
  const auto has = [](const c10::Argument& a) { return a.alias_info() != nullptr; };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), has) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), has);
}

/// Is `candidate` the functional form of `schema` without the arguments in `out`?
bool matches(const c10::FunctionSchema& candidate, const c10::FunctionSchema& schema,
             const std::vector<std::size_t>& inputs) {
  if (aliases(candidate) || candidate.arguments().size() != inputs.size()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto &a = candidate.arguments()[i], &b = schema.arguments()[inputs[i]];
    if (a.name() != b.name() || *a.type() != *b.type()) return false;
  }
  return true;
}

std::optional<c10::OperatorName> functional_of(const c10::FunctionSchema& schema, const std::string& base,
                                               const std::vector<std::size_t>& inputs) {
  auto& dispatcher = c10::Dispatcher::singleton();
  static const auto* names = new std::vector<c10::OperatorName>(dispatcher.getAllOpNames());
  for (const auto& name : *names) {
    if (name.name != base) continue;
    const auto op = dispatcher.findSchema(name);
    if (op.has_value() && matches(op->schema(), schema, inputs)) return name;
  }
  return std::nullopt;
}

/// Operators whose results depend on data in size, on a generator, or that PyTorch marks as views.
bool never_compiled(const c10::OperatorHandle& op) {
  for (const auto tag : {at::Tag::data_dependent_output, at::Tag::dynamic_output_shape,
                         at::Tag::nondeterministic_seeded, at::Tag::inplace_view})
    if (op.hasTag(tag)) return true;
  return false;
}

Site classify(const c10::OperatorHandle& op) {
  Site site;
  const auto& schema = op.schema();
  if (never_compiled(op) || !all_tensors(schema) || schema.returns().empty()) return site;
  std::vector<std::size_t> inputs, outputs;
  bool in_place = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& a = schema.arguments()[i];
    if (!written(a)) {
      if (a.alias_info() != nullptr) return site;
      inputs.push_back(i);
    } else if (a.is_out()) {
      outputs.push_back(i);
    } else {
      if (i != 0) return site;
      in_place = true;
      inputs.push_back(i);
      outputs.push_back(i);
    }
  }
  if (outputs.empty() && aliases(schema)) return site;
  if (!outputs.empty() && outputs.size() != schema.returns().size()) return site;
  std::optional<c10::OperatorName> functional = schema.operator_name();
  if (!outputs.empty()) {
    std::string base = schema.name();
    if (in_place) {
      if (outputs.size() != 1 || !base.ends_with('_') || base.ends_with("__")) return site;
      base.pop_back();
    }
    functional = functional_of(schema, base, inputs);
  }
  if (!functional.has_value()) return site;
  site.form = outputs.empty() ? Form::Functional : in_place ? Form::InPlace : Form::Out;
  site.pointwise = op.hasTag(at::Tag::pointwise);
  site.inputs = std::move(inputs);
  site.written = std::move(outputs);
  site.table = table_for(*functional);
  return site;
}

}  // namespace

const Site& site_of(const c10::OperatorHandle& op) {
  static auto* sites = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<Site>>;
  thread_local std::unordered_map<const c10::FunctionSchema*, const Site*> seen;
  const auto* key = &op.schema();
  const auto found = seen.find(key);
  if (found != seen.end()) return *found->second;
  const std::lock_guard lock(mutex);
  auto& slot = (*sites)[key];
  if (!slot) slot = std::make_unique<Site>(classify(op));
  seen.emplace(key, slot.get());
  return *slot;
}

std::vector<std::shared_ptr<Table>> tables() {
  const std::lock_guard lock(mutex);
  std::vector<std::shared_ptr<Table>> out;
  for (const auto& [name, table] : all_tables()) out.push_back(table);
  return out;
}

}  // namespace loom::dev::eager
