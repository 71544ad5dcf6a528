// heddle/plan/co_clustering.hpp: places experts and tokens together, so that rows stay on ranks.
#pragma once

#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::plan {

/// How often each expert of each layer was chosen for each token of the vocabulary, in a profile.
struct expert_counts {
  expert_counts(int layers_of_model, int tokens_of_vocabulary, int experts_of_layer)
      : layers(layers_of_model),
        tokens(tokens_of_vocabulary),
        experts(experts_of_layer),
        counts(index(layers_of_model) * index(tokens_of_vocabulary) * index(experts_of_layer), 0) {}

  int layers, tokens, experts;
  std::vector<std::uint32_t> counts;  ///< [layers, tokens, experts]

  std::uint32_t& at(int layer, int token, int expert) {
    return counts[(index(layer) * index(tokens) + index(token)) * index(experts) + index(expert)];
  }
  const std::uint32_t* row(int layer, int token) const {
    return counts.data() + (index(layer) * index(tokens) + index(token)) * index(experts);
  }

 private:
  static std::size_t index(int i) { return i > 0 ? static_cast<std::size_t>(i) : 0; }
};

/// How experts are placed.
struct co_cluster_options {
  int ranks = 8;
  double theta = 0.2;  ///< weight of even loads of ranks against activations that leave their rank; 0 to 1
  int restarts = 4;    ///< from different layers and random placements
  int steps = 20;      ///< of tokens, then experts, for each restart at most
  std::uint64_t seed = 1;
};

/// A rank for each expert of each layer, the same number on each; and for each token of the vocabulary the rank where most of its
/// experts are, in all layers.
struct expert_placement {
  static constexpr int unseen = -1;

  int ranks = 0, layers = 0, experts = 0;
  std::vector<int> rank_of_expert;       ///< [layers, experts]
  std::vector<int> rank_of_token;        ///< of the vocabulary; `unseen` where the profile has none
  std::vector<std::uint8_t> confidence;  ///< of each token: 255ths of its activations that are on its rank
  std::vector<int> next_rank;            ///< [layers, ranks, ranks]: likeliest after these ranks in the last two layers
  std::vector<std::uint8_t> next_confidence;  ///< the same, in 255ths
  double local_share = 0;                     ///< activations on the rank of their token, of all in the profile
  double load = 1;                            ///< activations of the tokens of the fullest rank over the mean
  double objective = 0;                       ///< theta times imbalance, and 1 - theta times remote activations
  std::vector<double> objectives;             ///< of the steps of the restart that was kept, never rising

  /// The experts of a layer, those of rank 0 first: an order in which to read their weights.
  HEDDLE_INLINE std::vector<int> order(int layer) const;
  /// The same of all layers: what `model::experts_in_order` takes.
  std::vector<std::vector<int>> orders() const {
    std::vector<std::vector<int>> all;
    for (int layer = 0; layer < layers; ++layer) all.push_back(order(layer));
    return all;
  }
  /// The rank for a token at a layer, given its ranks in the two layers before (-1: there are none): by the surer of both tables; -1: neither
  /// knows.
  HEDDLE_INLINE int predicted(int layer, int token, int last = -1, int before_last = -1) const;
  friend bool operator==(const expert_placement&, const expert_placement&) = default;
};

/// Places experts and tokens in turn, each step by moves (of tokens) and exchanges (of experts) that lower
/// theta sum_i |load_i - mean| + (1 - theta) (activations that leave the rank of their token), until nothing does; the best of all
/// restarts. Loads and activations are counts of the profile. Work: layers x tokens x experts for each step.
/// Errors: `config_error` for sizes that are not positive, experts that the ranks do not divide, options out of range, an empty profile.
/// Source: arXiv:2503.04398 (Speculative MoE), whose placement it approximates by descent.
HEDDLE_INLINE expert_placement co_cluster(const expert_counts& counts, const co_cluster_options& options = {});

/// Activations on the rank of their token, of all in a profile: another one than a placement was made from shows how well it holds.
/// Unseen tokens count as remote. Errors: `config_error` for a profile of other sizes.
HEDDLE_INLINE double local_share_of(const expert_placement& placement, const expert_counts& counts);

/// Share of the bytes of both all-to-alls of a layer that a local share saves, against rows and experts that do not know each other:
/// 1 - (1 - local) / (1 - 1 / ranks).
constexpr double all_to_all_saving(double local_share, int ranks) noexcept {
  return ranks > 1 ? 1 - (1 - local_share) / (1 - 1.0 / ranks) : 0;
}
/// Bytes of a table with a rank and a confidence for each token in each layer: 2 for an entry.
constexpr std::int64_t token_table_bytes(std::int64_t tokens, std::int64_t layers) noexcept {
  return 2 * tokens * layers;
}

/// One line: local share, load, what is saved.
HEDDLE_INLINE std::string to_string(const expert_placement& placement);
/// The placement as text, which `parse_expert_placement` reads back to the same value, without `objectives`.
HEDDLE_INLINE std::string to_text(const expert_placement& placement);
/// Reads it. `experts`, `tokens`: of the model, 0 for any.
/// Errors: `config_error` naming `source`, line and what was expected, and a placement of another model.
HEDDLE_INLINE expert_placement parse_expert_placement(std::string_view text, int experts = 0, int tokens = 0,
                                                      std::string_view source = "the placement's text");

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/co_clustering.hpp>
#endif
