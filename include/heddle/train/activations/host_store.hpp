// heddle/train/activations/host_store.hpp: a store of a device's activations on the host.
#pragma once

#include <heddle/train/activations/store.hpp>

#include <cstddef>
#include <span>

namespace heddle::inline v0::activations {

/// What leaves memory that the host may not touch stays on the host, in the copy that it leaves by: it is copied once each way, where
/// `memory_store` copies that copy again. `offloaded_layers` keeps the copies and calls none of its members. It has no rate that could be
/// measured: with `amount::adaptive` and no `offload_settings::bytes_per_second` all layers leave. In the host's own memory it does not
/// compile.
class host_store {
 public:
  static constexpr bool keeps_host_copies = true;

  explicit host_store(const store_options& /*options*/ = {}) noexcept {}
  void store(int, std::span<const std::byte>) noexcept {}
  void load(int, std::span<std::byte>) noexcept {}
  bool finished(int) const noexcept { return true; }
  void wait(int) noexcept {}
  bool cancel(int) noexcept { return false; }
  void forget(int) noexcept {}
  store_counters counters() const noexcept { return {.moved_by = "copies of the device"}; }
};

}  // namespace heddle::inline v0::activations
