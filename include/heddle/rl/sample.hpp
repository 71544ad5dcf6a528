// heddle/rl/sample.hpp: an answer to a prompt, with what drew its tokens and what was made of it.
#pragma once

#include <heddle/infer/finish_reason.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0::rl {

/// Tokens of an answer from token `first` on, up to the next segment: weights of one `version`, which counts the
/// trainer's steps, drew them.
struct segment {
  std::int64_t version = 0, first = 0;
  friend bool operator==(const segment&, const segment&) = default;
};

/// An answer to a prompt, and what was made of it. `group`: all answers to one prompt; `id`: no other answer has it.
/// `finish`: how the answer ended; `none`: it goes on. Of each token of the answer, as long as `tokens` or empty:
/// `log_probabilities`, of what drew it (empty: 0); `proximal`, of the policy at the batch's begin (empty: as
/// `log_probabilities`); `reference`, of the reference (empty: 0); `values`, what a critic said before the token (empty: nobody did); `advantages`, in the place of `advantage`; `weights`
/// (empty: 1), such as `decoupled_weight`; `mask`, whether it counts (empty: all do).
struct sample {
  std::vector<std::int32_t> prompt{}, tokens{};
  std::vector<double> log_probabilities{}, proximal{}, reference{}, values{}, advantages{}, weights{};
  std::vector<bool> mask{};
  double reward = 0, advantage = 0;
  std::int64_t id = 0, group = 0;
  std::vector<segment> segments{};  ///< ascending, from token 0 on; empty: nobody counted versions
  infer::finish_reason finish = infer::finish_reason::none;
  std::string missing{};  ///< why there is no reward; empty: there is one
  friend bool operator==(const sample&, const sample&) = default;
};

/// The version of the weights that drew a token of an answer with segments.
inline std::int64_t version_of(const sample& s, std::size_t token) {
  std::int64_t version = 0;
  for (const segment& x : s.segments)
    if (x.first <= static_cast<std::int64_t>(token)) version = x.version;
  return version;
}

}  // namespace heddle::inline v0::rl
