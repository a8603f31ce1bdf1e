#include "chip/chip.h"
namespace loom::chip {
Timing time(const Program&, std::span<const std::int64_t>, const ClockParams&) { throw Error("DEV-99", "clock"); }
}
