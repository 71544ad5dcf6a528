// heddle/model/gpt2_layers.hpp: the layers of one pipeline stage of GPT-2, bound to their parameters.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/split.hpp>
#include <heddle/model/block.hpp>
#include <heddle/model/embedding.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/head.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/buffer.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Which layers a pipeline stage holds: blocks [first, first + count), the embedding on stage 0, the final norm and the
/// head on stage `stages - 1`. A stage may hold no block. Where several pipelines run copies of one model, `replica`
/// counts them; parameters count (in norms and saves) on the first.
struct stage_layers {
  int first = 0;
  int count = 0;
  int stage = 0;
  int stages = 1;
  int replica = 0;
  constexpr bool has_embedding() const noexcept { return stage == 0; }
  constexpr bool has_head() const noexcept { return stage == stages - 1; }
  friend constexpr bool operator==(const stage_layers&, const stage_layers&) = default;
};

/// The layers of one of `stages` stages when `layers` blocks are split evenly, the larger stages first.
constexpr stage_layers split_layers(int layers, int stage, int stages) noexcept {
  const balanced_split cut{layers, stages};
  return {static_cast<int>(cut.offset(stage)), static_cast<int>(cut.size(stage)), stage, stages};
}

/// The layers of one stage when stage s has `counts[s]` of the blocks.
/// Errors: `config_error` if the counts are not those of a model of `layers` blocks.
inline stage_layers given_layers(int layers, int stage, std::span<const int> counts) {
  stage_layers part{0, 0, stage, static_cast<int>(counts.size())};
  int total = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] < 0)
      throw config_error("heddle: stage " + std::to_string(s) + " cannot have " + std::to_string(counts[s]) +
                         " layers");
    if (static_cast<int>(s) == stage) part.first = total, part.count = counts[s];
    total += counts[s];
  }
  if (total != layers)
    throw config_error("heddle: the stages are given " + std::to_string(total) + " layers, the model has " +
                       std::to_string(layers));
  return part;
}

/// The configuration. Errors: `config_error` if a stage cannot be made like this.
inline const gpt2_config& checked_stage(const gpt2_config& config, stage_layers part, int slots,
                                        std::int64_t max_samples, int deferred) {
  config.validate();
  if (part.first < 0 || part.count < 0 || part.first + part.count > config.layers)
    throw config_error("heddle: a stage of layers [" + std::to_string(part.first) + ", " +
                       std::to_string(part.first + part.count) + ") does not fit a model of " +
                       std::to_string(config.layers) + " layers");
  if (part.stages < 1 || part.stage < 0 || part.stage >= part.stages)
    throw config_error("heddle: stage " + std::to_string(part.stage) + " of " + std::to_string(part.stages) +
                       " does not exist");
  if (slots < 0 || max_samples < 0 || deferred < 0)
    throw config_error("heddle: a stage needs slots, max_samples and deferred that are not negative, got " +
                       std::to_string(slots) + ", " + std::to_string(max_samples) + ", " + std::to_string(deferred));
  return config;
}

/// The parameters of a stage and the layers that use them. Parameters come in Hugging Face's order; a stage with both
/// the embedding and the head has one token embedding with one gradient. A head without the embedding has a copy of it,
/// or uses that of another stage of this rank (`lender`), with a gradient of its own outside the flat buffer.
/// `Plan` is `tensor_parallel<layer mesh>`; `rank` is the place in that mesh.
template <class T, class Plan>
struct gpt2_layers {
  using mesh_type = typename Plan::mesh_type;

  gpt2_layers(const gpt2_config& config, const mesh_type& mesh, int rank, stage_layers part,
              const gpt2_layers* lender = nullptr)
      : config_(config), mesh_(mesh), rank_(rank), first_replica_(part.replica == 0) {
    const auto tp_extent = mesh.template extent<tp>();
    first_of_copies_ = rank % tp_extent == 0;
    const std::int64_t d = config.width;
    const double deviation = config.initial_deviation;
    const double residual = deviation / std::sqrt(2.0 * (config.layers > 0 ? config.layers : 1));
    const std::int64_t v = config.vocabulary, h = config.heads, e = config.head_dim(), f = config.hidden();
    using vocabulary_layout = typename Plan::vocabulary_weight;
    using whole = typename Plan::whole;

    std::size_t wte = 0, wpe = 0;
    std::vector<std::array<std::size_t, 12>> places(static_cast<std::size_t>(part.count));
    std::array<std::size_t, 2> last{};
    const bool borrows = lender != nullptr && part.has_head() && !part.has_embedding();
    if (part.has_embedding()) {
      wte = add<vocabulary_layout>("wte.weight", 0, {v, d}, std::array{v, d}, deviation);
      wpe = add<whole>("wpe.weight", 1, {config.context, d}, std::array<std::int64_t, 2>{config.context, d}, deviation);
    }
    for (int i = 0; i < part.count; ++i) {
      const int layer = part.first + i;
      const std::string at = "h." + std::to_string(layer) + ".";
      const int id = 2 + 12 * layer;
      auto& p = places[static_cast<std::size_t>(i)];
      using qkv_weight = typename Plan::qkv_weight;
      using qkv_bias = typename Plan::qkv_bias;
      using head_weight = typename Plan::head_weight;
      using column_weight = typename Plan::column_weight;
      using column_bias = typename Plan::column_bias;
      using row_weight = typename Plan::row_weight;
      const std::int64_t three = 3;
      p[0] = add<whole>(at + "ln_1.weight", id, {d}, std::array{d}, 0, 1);
      p[1] = add<whole>(at + "ln_1.bias", id + 1, {d}, std::array{d}, 0);
      p[2] = add<qkv_weight>(at + "attn.c_attn.weight", id + 2, {d, 3 * d}, std::array{d, three, h, e}, deviation);
      p[3] = add<qkv_bias>(at + "attn.c_attn.bias", id + 3, {3 * d}, std::array{three, h, e}, 0);
      p[4] = add<head_weight>(at + "attn.c_proj.weight", id + 4, {d, d}, std::array{h, e, d}, residual);
      p[5] = add<whole>(at + "attn.c_proj.bias", id + 5, {d}, std::array{d}, 0);
      p[6] = add<whole>(at + "ln_2.weight", id + 6, {d}, std::array{d}, 0, 1);
      p[7] = add<whole>(at + "ln_2.bias", id + 7, {d}, std::array{d}, 0);
      p[8] = add<column_weight>(at + "mlp.c_fc.weight", id + 8, {d, f}, std::array{d, f}, deviation);
      p[9] = add<column_bias>(at + "mlp.c_fc.bias", id + 9, {f}, std::array{f}, 0);
      p[10] = add<row_weight>(at + "mlp.c_proj.weight", id + 10, {f, d}, std::array{f, d}, residual);
      p[11] = add<whole>(at + "mlp.c_proj.bias", id + 11, {d}, std::array{d}, 0);
    }
    const int last_id = 2 + 12 * config.layers;
    if (part.has_head()) {
      last[0] = add<whole>("ln_f.weight", last_id, {d}, std::array{d}, 0, 1);
      last[1] = add<whole>("ln_f.bias", last_id + 1, {d}, std::array{d}, 0);
      if (!part.has_embedding() && !borrows) {
        tied_copy_ = true;
        wte = add<vocabulary_layout>("wte.weight", 0, {v, d}, std::array{v, d}, deviation);
      }
    }
    parameters.allocate();

    const vocabulary_layout split{mesh};
    const std::int64_t words = split.local_shape(make_shape(std::array{v, d}), rank).extent(0);
    const std::int64_t first_word = split.local_offset(make_shape(std::array{v, d}), rank)[0];
    if (part.has_embedding()) {
      embedding.wte = weights(wte, words, d);
      embedding.wte_gradient = gradients(wte, words, d);
      embedding.first_id = first_word;
      embedding.wpe = weights(wpe, config.context, d);
      embedding.wpe_gradient = gradients(wpe, config.context, d);
    }
    for (const auto& p : places) {
      const std::int64_t local_heads = parameters.table()[p[4]].local[0];
      const std::int64_t hidden = parameters.table()[p[9]].count;
      block<T, Plan> b;
      b.local = {d, local_heads, e, hidden};
      b.ln_1 = norm(p[0]);
      b.attn.heads = local_heads;
      b.attn.head_dim = e;
      b.attn.c_attn.at = linear(p[2], d, 3 * local_heads * e);
      b.attn.c_proj.at = linear(p[4], local_heads * e, d);
      b.ln_2 = norm(p[6]);
      b.ff.c_fc.at = linear(p[8], d, hidden);
      b.ff.c_proj.at = linear(p[10], hidden, d);
      blocks.push_back(b);
    }
    if (part.has_head()) {
      ln_f = norm(last[0]);
      head.first_id = first_word;
      if (borrows) {
        head.wte = lender->embedding.wte;
        own_gradient_ = buffer<T>(words * d);
        head.wte_gradient = as_matrix(std::span<T>(own_gradient_.data(), own_gradient_.size()), words, d);
      } else {
        head.wte = weights(wte, words, d);
        head.wte_gradient = gradients(wte, words, d);
      }
    }
    if (borrows)
      token_embedding_gradient = {own_gradient_.data(), own_gradient_.size()};
    else if (part.has_embedding() || part.has_head())
      token_embedding_gradient = parameters.gradient(wte);
  }

  /// Whether the head's weight belongs to another stage.
  bool borrows() const noexcept { return own_gradient_.size() > 0; }

  parameter_store<T> parameters{};
  vocabulary_embedding<T, Plan> embedding{};
  std::vector<block<T, Plan>> blocks{};
  layer_norm<T> ln_f{};
  tied_head<T, Plan> head{};
  std::span<T> token_embedding_gradient{};

 private:
  // `logical` is the published shape with dimensions split so that the layout can name heads.
  template <class Layout, std::size_t Rank>
  std::size_t add(std::string name, int id, std::vector<std::int64_t> shape,
                  const std::array<std::int64_t, Rank>& logical, double deviation, double mean = 0) {
    parameter p;
    p.name = std::move(name);
    p.id = id;
    p.shape = std::move(shape);
    p.initial_mean = mean;
    p.initial_deviation = deviation;
    p.tied_copy = tied_copy_;
    p.counted = trained_parameter<Layout>::value && !tied_copy_ && first_replica_ &&
                (Layout::template is_sharded_on<tp> || first_of_copies_);
    return parameters.add(std::move(p), logical, Layout{mesh_}, rank_);
  }
  matrix_view<const T> weights(std::size_t i, std::int64_t rows, std::int64_t columns) {
    return as_matrix(parameters.weight(i), rows, columns);
  }
  matrix_view<T> gradients(std::size_t i, std::int64_t rows, std::int64_t columns) {
    return as_matrix(parameters.gradient(i), rows, columns);
  }
  // A weight at `i` in the table and its bias right behind.
  weight_views<T> linear(std::size_t i, std::int64_t in, std::int64_t out) {
    return {weights(i, in, out), gradients(i, in, out), parameters.weight(i + 1), parameters.gradient(i + 1)};
  }
  layer_norm<T> norm(std::size_t i) {
    return {parameters.weight(i), parameters.gradient(i), parameters.weight(i + 1), parameters.gradient(i + 1),
            static_cast<T>(config_.epsilon)};
  }

  gpt2_config config_;
  [[no_unique_address]] mesh_type mesh_;
  int rank_;
  bool first_of_copies_ = true;
  bool tied_copy_ = false;
  bool first_replica_ = true;
  buffer<T> own_gradient_{};  ///< the head's, where another stage has the weight
};

}  // namespace heddle::inline v0::model
