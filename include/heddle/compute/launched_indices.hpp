// heddle/compute/launched_indices.hpp: a look at the indices that a kernel is given, before it is launched, where the host can read them.
#pragma once

#include <heddle/compute/argument_checks.hpp>
#include <heddle/compute/check.hpp>

#include <cstddef>
#include <cstdint>

namespace heddle::inline v0::compute::detail {

/// Looks at indices where the host can read what `Launcher`'s kernels read, after a wait for the queue; elsewhere does nothing. Errors:
/// `layout_error` for one that is not in [first, end).
template <class Launcher, class Queue, class Indices>
void indices_within(const Launcher&, [[maybe_unused]] Queue& queue, [[maybe_unused]] const char* kernel,
                    [[maybe_unused]] const char* what, [[maybe_unused]] const Indices& indices,
                    [[maybe_unused]] std::int64_t first, [[maybe_unused]] std::int64_t end) {
  if constexpr (Launcher::host_can_read && checks_arguments) {
    queue.wait();
    argument_checks::within(kernel, what, {indices.address(), static_cast<std::size_t>(indices.size())}, first, end);
  }
}

}  // namespace heddle::inline v0::compute::detail
