// heddle/model/paper/profile.hpp: measured seconds of kernels, scaled to other shapes.
#pragma once

#include <heddle/model/paper/trace.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// A kernel of one shape as it was measured: the median of its calls. `flops` and `bytes` as in `kernel_calls`.
struct measured_kernel {
  std::string name{};
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  double spread = 0;  ///< by how much the median is above the least of the calls, as a part of the least
};

/// Measured kernels by name and shape. A shape that was not measured has the rate of the nearest one of the same kernel.
class kernel_profile {
 public:
  bool empty() const noexcept { return kernels_.empty(); }
  std::span<const measured_kernel> kernels() const noexcept { return kernels_; }
  /// Takes the place of what was measured of this kernel and shape.
  void add(measured_kernel k) {
    const auto at = std::lower_bound(kernels_.begin(), kernels_.end(), k, before);
    if (at != kernels_.end() && !before(k, *at))
      *at = std::move(k);
    else
      kernels_.insert(at, std::move(k));
  }

  /// What is known of a kernel.
  struct answer {
    double seconds = 0, spread = 0;
    bool known = false;   ///< a kernel of this name was measured
    bool inside = false;  ///< with as much or more, and with as much or less
  };
  /// Of one call.
  answer of(std::string_view name, std::int64_t flops, std::int64_t bytes) const {
    const auto by_name = [](const measured_kernel& k, std::string_view n) { return k.name < n; };
    const auto size = [](std::int64_t f, std::int64_t b) { return static_cast<double>(f > 0 ? f : b) + 1; };
    const double wanted = size(flops, bytes);
    answer found;
    bool below = false, above = false;
    double nearest = std::numeric_limits<double>::infinity();
    for (auto at = std::lower_bound(kernels_.begin(), kernels_.end(), name, by_name);
         at != kernels_.end() && at->name == name; ++at) {
      const double n = size(at->flops, at->bytes);
      below = below || n <= wanted;
      above = above || n >= wanted;
      const double far = std::abs(std::log(n / wanted)) +
                         std::abs(std::log((static_cast<double>(at->bytes) + 1) / (static_cast<double>(bytes) + 1)));
      if (far >= nearest) continue;
      nearest = far;
      found = {at->seconds * wanted / n, at->spread, true, false};
    }
    found.inside = below && above;
    return found;
  }

 private:
  static bool before(const measured_kernel& a, const measured_kernel& b) {
    return std::tie(a.name, a.flops, a.bytes) < std::tie(b.name, b.flops, b.bytes);
  }
  std::vector<measured_kernel> kernels_{};
};

namespace detail {
// The middle one, of at least one.
inline double median_of_times(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}
}  // namespace detail

/// Seconds of calls as they come, from which a profile follows.
class kernel_times {
 public:
  void note(std::string_view name, std::int64_t flops, std::int64_t bytes, double seconds) {
    times_[{std::string(name), flops, bytes}].push_back(seconds);
  }
  /// Adds the median time of each kernel and shape: a step has slow calls among its calls too.
  void add_to(kernel_profile& profile) const {
    for (const auto& [key, times] : times_) {
      const double least = *std::min_element(times.begin(), times.end()), median = detail::median_of_times(times);
      profile.add({std::get<0>(key), std::get<1>(key), std::get<2>(key), median, least > 0 ? median / least - 1 : 0});
    }
  }

 private:
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, std::vector<double>> times_{};
};

/// What the kernels of a trace take: as they were measured, else by the roofline of the device. Units: seconds.
struct traced_seconds {
  double seconds = 0;
  double spread = 0;   ///< of the measured ones
  double outside = 0;  ///< of those that are outside of what was measured; 0 where nothing was
  traced_seconds& add(const traced_seconds& more, double times = 1) noexcept {
    seconds += times * more.seconds;
    spread += times * more.spread;
    outside += times * more.outside;
    return *this;
  }
  /// Whether more than a hundredth of the seconds is outside of what was measured.
  bool extrapolated() const noexcept { return outside > 0.01 * seconds; }
};
/// Of the calls of a trace, one after another. Units: seconds.
inline traced_seconds seconds_of(const kernel_trace& trace, const kernel_profile& measured, const roofline& device) {
  traced_seconds all;
  for (const kernel_calls& k : trace.kernels()) {
    const kernel_profile::answer a =
        measured.empty() ? kernel_profile::answer{} : measured.of(k.name, k.flops, k.bytes);
    const double once =
        a.known ? a.seconds : device.seconds(static_cast<double>(k.flops), static_cast<double>(k.bytes));
    all.add({once, once * a.spread, measured.empty() || a.inside ? 0 : once}, static_cast<double>(k.calls));
  }
  return all;
}

}  // namespace heddle::inline v0::model
