// heddle/sim/diffusion_cost.hpp: rows, time and tokens a second of diffusion decoding.
#pragma once

#include <cstdint>

namespace heddle::inline v0::sim {

/// An answer that is decoded in blocks: how many rows its forwards have. Units: tokens. `window`: rows of a forward
/// that is no refresh (the block and those beside it); `warm`: further
/// refreshes, of all rows, beside the first forward of each block; `tokens_a_forward`: what a rule commits in the mean.
struct diffusion_answer {
  double prompt = 0;
  double answer = 0;
  double block = 32;
  double window = 32;
  double warm = 0;
  double tokens_a_forward = 1;

  constexpr double forwards() const noexcept { return answer / tokens_a_forward; }
  /// Forwards of all rows: one a block, and `warm`, but not more than there are.
  constexpr double refreshes() const noexcept {
    const double all = answer / block + warm;
    return all < forwards() ? all : forwards();
  }
  /// Rows of a forward in the mean.
  constexpr double rows() const noexcept { return window + (prompt + answer - window) * refreshes() / forwards(); }
};

/// The time of a forward, c0 + c1 rows. Units: seconds. Source: dInfer, arXiv:2510.08666, table 2, by tokens a forward
/// and tokens a second.
struct forward_time {
  double fixed = 0;
  double row = 0;

  constexpr double operator()(double rows) const noexcept { return fixed + row * rows; }
};
/// The time through two measurements: of so many rows so many seconds. The numbers of rows must differ.
constexpr forward_time fit_forward_time(double rows, double seconds, double other_rows, double other_seconds) noexcept {
  const double row = (other_seconds - seconds) / (other_rows - rows);
  return {seconds - row * rows, row};
}
/// Tokens a second of one answer.
constexpr double diffusion_tokens_per_second(const diffusion_answer& a, const forward_time& time) noexcept {
  return a.tokens_a_forward / time(a.rows());
}

}  // namespace heddle::inline v0::sim
