// heddle/train/impl/learning_rates.hpp: bodies of heddle/train/learning_rates.hpp.
#pragma once

#include <heddle/train/learning_rates.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <cstdint>
#include <string>

namespace heddle::inline v0::train::rates {

namespace detail {

HEDDLE_INLINE void require_warmup(double peak, double minimum, std::int64_t warmup_steps) {
  warmup_cosine{.peak = peak, .minimum = minimum, .warmup_steps = warmup_steps}.validate();
}
// Products of two such numbers, as lengths of periods are, must not overflow.
inline constexpr std::int64_t most_steps = 1000000000000, most_factor = 1000000;
HEDDLE_INLINE void require_count(const char* name, std::int64_t n, std::int64_t least, std::int64_t most) {
  if (n < least || n > most)
    throw config_error(text_of({"heddle: ", name, " of the learning rate must be ", std::to_string(least), " to ",
                                std::to_string(most), ", got ", std::to_string(n)}));
}
inline std::string text(const char* name, double peak, double minimum, std::int64_t warmup_steps) {
  using train::detail::exact_text;
  return text_of({"rate=", name, " lr=", exact_text(peak), " minimum_lr=", exact_text(minimum),
                  " warmup_steps=", std::to_string(warmup_steps)});
}
inline std::string text(const char* name, std::int64_t value) {
  return text_of({" ", name, "=", std::to_string(value)});
}

}  // namespace detail

HEDDLE_INLINE void linear::validate() const {
  detail::require_warmup(peak, minimum, warmup_steps);
  detail::require_count("total_steps", total_steps, 0, detail::most_steps);
}
HEDDLE_INLINE void warmup_stable_decay::validate() const {
  detail::require_warmup(peak, minimum, warmup_steps);
  detail::require_count("total_steps", total_steps, 0, detail::most_steps);
  detail::require_count("decay_steps", decay_steps, 0, detail::most_steps);
  if (total_steps > 0 && decay_steps > total_steps - warmup_steps)
    throw config_error(
        text_of({"heddle: warmup_steps and decay_steps of the learning rate must be at most total_steps = ",
                 std::to_string(total_steps), " together, got ", std::to_string(warmup_steps), " and ",
                 std::to_string(decay_steps)}));
}
HEDDLE_INLINE void cosine_with_restarts::validate() const {
  detail::require_warmup(peak, minimum, warmup_steps);
  detail::require_count("period", period, 1, detail::most_steps);
  detail::require_count("factor", factor, 1, detail::most_factor);
}

HEDDLE_INLINE std::string to_string(const constant& rate) {
  return detail::text("constant", rate.peak, 0, rate.warmup_steps);
}
HEDDLE_INLINE std::string to_string(const linear& rate) {
  return detail::text("linear", rate.peak, rate.minimum, rate.warmup_steps) +
         detail::text("total_steps", rate.total_steps);
}
HEDDLE_INLINE std::string to_string(const warmup_stable_decay& rate) {
  return detail::text("warmup_stable_decay", rate.peak, rate.minimum, rate.warmup_steps) +
         detail::text("decay_steps", rate.decay_steps) + detail::text("total_steps", rate.total_steps);
}
HEDDLE_INLINE std::string to_string(const cosine_with_restarts& rate) {
  return detail::text("cosine_with_restarts", rate.peak, rate.minimum, rate.warmup_steps) +
         detail::text("period", rate.period) + detail::text("factor", rate.factor);
}

}  // namespace heddle::inline v0::train::rates
