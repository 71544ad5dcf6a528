// heddle/plan/offload_amount.hpp: the count of layers whose offload computation hides.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

namespace heddle::inline v0::plan {

/// What is kept or offloaded as one, in the order of the forward pass: usually a layer. Units: bytes, seconds of its
/// forward.
struct offload_scope {
  double bytes = 0, seconds = 0;
};

/// The scopes before `first_kept` are offloaded, it and all later ones stay.
struct offload_amount {
  std::size_t first_kept = 0;
  double bytes = 0;  ///< offloaded
  double kept_bytes = 0;
};

namespace detail {
inline bool is_measured(double x) noexcept {
  return x >= 0 && x < std::numeric_limits<double>::infinity();
}
HEDDLE_INLINE void require_offload_scopes(std::span<const offload_scope> scopes, double bytes_per_second);
}  // namespace detail

/// Bytes per second that a store must take and give so that scope n, the last that is offloaded, costs no time: what is
/// offloaded before it, and itself written and read, within the forward and the backward of it and all after it, where
/// a backward takes twice its forward: (sum of bytes before + 2 bytes of n) / (3 forward - 2 sum of seconds before).
/// Errors: `config_error` if there is no such scope.
/// Source: Wu et al., arXiv:2408.10013 (SSDTrain), the adaptive amount of the reference code.
HEDDLE_INLINE double needed_bytes_per_second(std::span<const offload_scope> scopes, std::size_t n);

/// How much to offload to a store of `bytes_per_second`: everything before the first scope that needs as much or more.
/// At exactly its rate a store has nothing in reserve, so that scope is kept; rates are compared to one part in 10^9.
/// Errors: `config_error` for what is negative or not a number.
/// Source: as `needed_bytes_per_second`.
HEDDLE_INLINE offload_amount amount_to_offload(std::span<const offload_scope> scopes, double bytes_per_second);

/// Bytes that may wait to be written when scope n is saved, its own among them, so that they are written and n is read
/// in the time that `needed_bytes_per_second` gives it: the forwards after it, and the backwards of them and of n. Above
/// that n is kept: it would be served from memory, or late, and what waits behind it later still. Negative if n alone is
/// too much. A store that could write at its rate from the forward's beginning would never have more waiting before
/// `amount_to_offload`'s first kept scope.
/// Errors: `config_error` if there is no such scope. Source: as `needed_bytes_per_second`, seen from scope n's end.
HEDDLE_INLINE double most_waiting_bytes(std::span<const offload_scope> scopes, std::size_t n, double bytes_per_second);

/// Whether to start reading scope `candidate` now, when the backward of scope `running` begins, so that it and the
/// scopes before it are there in time: always the `least` scopes before the running one; and more as soon as waiting
/// for the beginning of the next backward would make any of them late, or later: not where the reads that have been
/// started last until then, as its memory would only be taken sooner. `read_seconds[i]` and `backward_seconds[i]` are
/// those of scope i, `queued_seconds` what the reads take that have been started and have not ended. Reads end one
/// after the other. Source: the worked model of SSDTrain, where a fixed depth reads too late below one bandwidth.
HEDDLE_INLINE bool read_now(std::size_t running, std::size_t candidate, std::size_t least, double queued_seconds,
                            std::span<const double> read_seconds, std::span<const double> backward_seconds);

/// Bytes of one transformer layer's activations in 16-bit numbers: 34 s b h without what the attention keeps for each
/// pair of tokens, which is 5 a s^2 b more without flash attention. Over tensor parallelism of degree t, 24 s b h and the
/// attention's part are divided, 10 s b h are not. Units: s tokens, b samples, h the width, a heads.
/// Source: Korthikanti et al., arXiv:2205.05198, section 4, as used by SSDTrain.
constexpr double activation_bytes_per_layer(double s, double b, double h, double a, double t = 1, bool flash = true) {
  return s * b * h * (10 + 24 / t) + (flash ? 0 : 5 * a * s * s * b / t);
}

/// Seconds until the rated endurance of a drive is used up. Units: bytes, bytes per step, seconds per step.
constexpr double drive_life_seconds(double rated_bytes, double bytes_per_step, double step_seconds) {
  return bytes_per_step > 0 ? rated_bytes / bytes_per_step * step_seconds : std::numeric_limits<double>::infinity();
}

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/offload_amount.hpp>
#endif
