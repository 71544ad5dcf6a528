// examples/gpt2_train/memory.hpp: refuses settings that need more memory than there is, before anything is allocated.
#pragma once

#include <heddle/model/gpt2_config.hpp>
#include <heddle/tensor/buffer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "settings.hpp"

namespace memory {

namespace hd = heddle;

/// What a run needs at the very least, over all ranks. In floating point, which no setting overflows. Units: bytes.
struct need {
  double state = 0;        ///< weights and gradients once for each dp rank, two moments once (ZeRO-1)
  double activations = 0;  ///< of one microbatch on each stage: with `--recompute` or `--offload` their inputs alone
};

inline need of(const settings& s, const hd::model::gpt2_config& c, int dp, std::size_t element) {
  const double layers = c.layers, width = c.width, size = static_cast<double>(element);
  const double parameters =
      (static_cast<double>(c.vocabulary) + c.context) * width + layers * (12 * width * width + 13 * width) + 2 * width;
  const double samples = std::ceil(static_cast<double>(s.batch) / dp / s.microbatches);
  const double of_token = layers * (s.recompute == "none" && s.offload.empty() ? 16 : 1) * width + c.vocabulary;
  return {size * parameters * (2.0 * dp + 2), size * dp * samples * c.context * of_token};
}

inline std::string gigabytes(double bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.4g GB", bytes / 1e9);
  return text;
}

/// `ranks` of this process, of `all`. Errors: `config_error` naming what is needed and what there is.
inline void check(const settings& s, const hd::model::gpt2_config& c, int dp, std::size_t element, int ranks, int all) {
  const need n = of(s, c, dp, element);
  const double share = static_cast<double>(ranks) / all, limit = static_cast<double>(hd::memory_limit());
  if ((n.state + n.activations) * share <= limit) return;
  throw hd::config_error("heddle: --layers " + std::to_string(s.layers) + " --width " + std::to_string(s.width) +
                         " --context " + std::to_string(s.context) + " --batch " + std::to_string(s.batch) +
                         " need at least " + gigabytes(n.state * share) + " for weights, gradients and moments and " +
                         gigabytes(n.activations * share) + " for activations; this process can have " +
                         gigabytes(limit));
}

}  // namespace memory
