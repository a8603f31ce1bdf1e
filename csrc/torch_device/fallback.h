// The catch-all: an operator without a device kernel runs on host copies of its tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>

namespace loom::dev {

/// Runs an operator on the host and counts it.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Its halves: count, warn, and refuse where the CPU is forbidden; run on host copies.
void note_fallback(const c10::OperatorHandle& op);
void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Calls per operator since start or the last reset.
std::map<std::string, std::int64_t> fallback_counts();
void reset_fallback_counts();

enum class FallbackMode { Warn, Silent, Error };
void set_fallback_mode(FallbackMode);
FallbackMode fallback_mode();
/// Called with the operator's name the first time it falls back; may throw.
void set_fallback_hook(void (*hook)(const std::string& op));

}  // namespace loom::dev
