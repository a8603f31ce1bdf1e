// The catch-all: an operator without a device kernel runs on host copies of its tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>

namespace loom::dev {

/// Boxed kernel registered for every operator of the device that has no kernel of its own.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Calls per operator since start or the last reset.
std::map<std::string, std::int64_t> fallback_counts();
void reset_fallback_counts();

enum class FallbackMode { Warn, Silent, Error };
void set_fallback_mode(FallbackMode);
FallbackMode fallback_mode();
/// Called with the operator's name the first time it falls back; may throw.
void set_fallback_hook(void (*hook)(const std::string& op));

}  // namespace loom::dev
