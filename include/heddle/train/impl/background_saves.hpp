// heddle/train/impl/background_saves.hpp: bodies of heddle/train/background_saves.hpp.
#pragma once

#include <heddle/train/background_saves.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/io/dtype.hpp>
#include <heddle/sim/reliability.hpp>
#include <heddle/train/nonfinite.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0::train {

HEDDLE_INLINE save_clock::save_clock(save_interval every) : every_(every) {
  if (every.steps_ < 0)
    throw config_error("heddle: background_saves: a save is made after every 1 or more steps, or 0 for the last, not " +
                       std::to_string(every.steps_));
  if (!every.chosen_ && !(every.mtbf_seconds_ > 0))
    throw config_error("heddle: background_saves: a mean time between failures is above 0 seconds, not " +
                       std::to_string(every.mtbf_seconds_));
}

HEDDLE_INLINE std::int64_t save_clock::choose(std::int64_t step, std::int64_t now_ns, std::int64_t held_ns,
                                              std::int64_t there_ns) {
  if (first_step_ < 0 || step <= first_step_) {
    first_step_ = step;
    first_ns_ = now_ns;
    return every_.steps_;
  }
  constexpr double most = 1e9;  // steps: then the last one alone is saved, as good as
  const double step_ns = static_cast<double>(now_ns - first_ns_) / static_cast<double>(step - first_step_);
  const double interval_ns =
      1e9 * sim::daly_interval({.between_failures = every_.mtbf_seconds_,
                                .save = static_cast<double>((std::max)(held_ns, std::int64_t{1})) * 1e-9});
  const double best = std::round(interval_ns / step_ns), least = std::ceil(static_cast<double>(there_ns) / step_ns);
  return static_cast<std::int64_t>((std::min)((std::max)({best, least, 1.0}), most));
}

namespace detail {

HEDDLE_INLINE std::string fault_of_parts(const io::save_snapshot& parts, std::span<const std::string> squares) {
  std::string fault;
  const auto look = [&]<class T>(std::type_identity<T>, std::string_view name, std::span<const std::byte> bytes,
                                 const io::tensor_region& region) {
    const std::size_t slash = name.find('/');
    const std::string slot(name.substr(0, slash));
    const bool square = std::find(squares.begin(), squares.end(), slot) != squares.end();
    const std::span<const T> x(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
    const std::size_t bad = first_unfit(x, !square);
    if (bad == x.size()) return;
    const std::string kind = slot == "weight" ? slot : slot == "master" ? "master weight" : words_of_slot(slot);
    fault = fault_of_element(kind.c_str(), std::string(name.substr(slash + 1)), static_cast<double>(x[bad]),
                             static_cast<std::int64_t>(bad)) +
            " of " + io::detail::describe(region);
  };
  parts.each([&](std::string_view name, std::string_view dtype, std::span<const std::byte> bytes,
                 const io::tensor_region& region) {
    if (!fault.empty()) return;
    if (dtype == io::dtype_name<float>()) look(std::type_identity<float>{}, name, bytes, region);
    if (dtype == io::dtype_name<double>()) look(std::type_identity<double>{}, name, bytes, region);
    if (dtype == io::dtype_name<bf16>()) look(std::type_identity<bf16>{}, name, bytes, region);
    if (dtype == io::dtype_name<f16>()) look(std::type_identity<f16>{}, name, bytes, region);
  });
  return fault;
}

HEDDLE_INLINE void report_failure(const std::string& fault) {
  std::fprintf(stderr, "%s\n", fault.c_str());
}

}  // namespace detail
}  // namespace heddle::inline v0::train
