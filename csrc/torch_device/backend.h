// Process-wide registrations of the device and its generators.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <optional>

namespace loom::dev {

/// Installs allocator and hooks; the guard registers itself when the module loads.
void register_backend();

/// Visible cards; 0 when the environment does not parse. Never throws.
c10::DeviceIndex device_count() noexcept;

c10::Allocator* pinned_allocator();
at::Generator default_generator(c10::DeviceIndex);
/// The CPU generator behind a device generator (the card's default one when none is given).
at::Generator host_generator(const std::optional<at::Generator>&, c10::Device);

}  // namespace loom::dev
