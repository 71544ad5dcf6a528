// heddle/model/falcon_drafter.hpp: the drafter of Falcon, which predicts token blocks.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/compute/relaxed_causal.hpp>
#include <heddle/compute/rotary_table.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/text.hpp>
#include <heddle/model/falcon_base.hpp>
#include <heddle/model/lstm_layer.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/tensor/view.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::model {

/// Dropout of one pass: an element is zero where its random number is below the rate, else divided by 1 - rate,
/// so that its mean stays. Numbers are those at the index of the element, row * width + column.
struct falcon_dropout {
  double rate = 0;
  counter_random random{0, 0};
};

/// Sizes of a drafter. `block`: tokens that it predicts at once. `context`: of the model. `epsilon`: of the norms; `theta`: of the rotary positions.
struct falcon_shape {
  std::int64_t width = 0, heads = 1, ffn = 0, vocabulary = 0;
  std::int64_t block = 2, context = 0;
  double epsilon = 1e-5, theta = 10000;
};

/// The semi-autoregressive drafter of Falcon. Row i of a text has the token after it and the feature at it, its
/// residual stream after the model's final norm, side by side; two LSTM layers, a layer of
/// attention with the relaxed causal mask and an MLP make of it the feature of row i + block, from which the model's head gives the token at i + block + 1. With
/// block = 1 it drafts token by token. Embedding, head and final norm are those of the model and stay as they are; all else is trained.
/// Weights are whole, on one rank, in the memory of the host. Dropout between the LSTM layers is for training (`forward`); drafting has none.
/// Shapes: tokens [rows], features [rows, width]. Source: Falcon, arXiv:2412.12639.
template <class T, class Backend>
class falcon_drafter {
 public:
  using scalar = T;
  enum part : std::size_t {
    input_1,
    recurrent_1,
    bias_1,
    input_2,
    recurrent_2,
    bias_2,
    norm_1,
    query,
    key,
    value,
    out,
    norm_2,
    gate,
    up,
    down,
    parts
  };
  static constexpr std::array<std::string_view, parts> names{
      "lstm.weight_ih_l0",       "lstm.weight_hh_l0",       "lstm.bias_l0",
      "lstm.weight_ih_l1",       "lstm.weight_hh_l1",       "lstm.bias_l1",
      "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
      "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
      "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};

  /// Weights begin as zeros. The backend must outlive it. Errors: `config_error` for sizes that are not positive, and a width that is not an even number for each head.
  falcon_drafter(Backend& backend, const falcon_shape& shape)
      : backend_(&backend),
        shape_(checked(shape)),
        first_(backend, 2 * shape.width, shape.width),
        second_(backend, shape.width, shape.width) {
    std::int64_t total = 0;
    for (std::size_t p = 0; p < parts; ++p) {
      at_[p] = total;
      total += extent(p)[0] * extent(p)[1];
    }
    weights_.resize(size(total));
    gradients_.resize(size(total));
    embedding_.resize(size(shape.vocabulary * shape.width));
    head_.resize(size(shape.vocabulary * shape.width));
    final_norm_.assign(size(shape.width), T(1));
    const auto frequencies = compute::rotary_frequencies(shape.width / shape.heads, shape.theta);
    const std::int64_t positions = 2 * shape.context + 1;  // drafts may lie beyond the context
    for (std::int64_t p = 0; p < positions; ++p)
      for (const double f : frequencies) {
        cos_.push_back(static_cast<T>(std::cos(static_cast<double>(p) * f)));
        sin_.push_back(static_cast<T>(std::sin(static_cast<double>(p) * f)));
      }
  }

  const falcon_shape& shape() const noexcept { return shape_; }
  std::int64_t vocabulary() const noexcept { return shape_.vocabulary; }
  /// All that is trained, one tensor behind the other, and its gradients.
  std::span<T> weights() noexcept { return weights_; }
  std::span<T> gradients() noexcept { return gradients_; }
  /// One tensor of `weights()`, and its rows and columns.
  std::span<T> weights(std::size_t p) { return at(weights_, p); }
  std::array<std::int64_t, 2> extent(std::size_t p) const {
    const std::int64_t d = shape_.width, f = shape_.ffn;
    switch (p) {
      case input_1:
        return {4 * d, 2 * d};
      case recurrent_1:
      case input_2:
      case recurrent_2:
        return {4 * d, d};
      case bias_1:
      case bias_2:
        return {1, 4 * d};
      case norm_1:
      case norm_2:
        return {1, d};
      case gate:
      case up:
        return {f, d};
      case down:
        return {d, f};
      default:
        return {d, d};
    }
  }
  /// Norms and biases, whose one row is a vector.
  static constexpr bool is_vector(std::size_t p) noexcept {
    return p == bias_1 || p == bias_2 || p == norm_1 || p == norm_2;
  }
  /// The model's own. Shapes: embedding and head [vocabulary, width], norm [width].
  std::span<T> embedding() noexcept { return embedding_; }
  std::span<T> head() noexcept { return head_; }
  std::span<T> final_norm() noexcept { return final_norm_; }

  /// Norms of ones, biases of zeros but ones of the forget gates, other weights normal with this deviation.
  void initialize(std::uint64_t seed, double deviation) {
    for (std::size_t p = 0; p < parts; ++p) {
      const std::span<T> w = weights(p);
      const counter_random random(seed, p);
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<T>(deviation * random.normal(i));
      if (p == norm_1 || p == norm_2) std::fill(w.begin(), w.end(), T(1));
      if (p == bias_1 || p == bias_2) {
        std::fill(w.begin(), w.end(), T(0));
        std::fill_n(w.begin() + shape_.width, shape_.width, T(1));
      }
    }
  }
  /// Takes embedding, head (the embedding where it is the head) and final norm of what a rank has of the model;
  /// where ranks have parts, one after the other is to be taken from, and until all of them were
  /// the drafter refuses to be used (`require_whole`). Across processes, and where one rank only has a drafter: `take(gather_falcon_base(stage, world))`.
  /// Returns the number of elements. Errors: `config_error` for other sizes, or weights that are not here.
  template <class Stage>
    requires requires(Stage& stage) { stage.parameters(); }
  std::int64_t take(Stage& stage) {
    detail::require_weights_here(stage, "falcon_drafter::take");
    std::int64_t taken = 0;
    const auto from = [&](std::size_t which, std::vector<T>& to) {
      std::int64_t found = 0;
      const auto in_table = [&](const std::vector<parameter>& table, auto weights) {
        for (const parameter& p : table)
          if (p.name == detail::falcon_base_names[which]) {
            require_count(which, p.global_count());
            for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
              std::copy_n(weights.data() + p.offset + local, length, to.data() + global);
              taken_[which].add(global, length, std::ssize(to));
              found += length;
            });
          }
      };
      in_table(stage.parameters(), stage.weights());
      in_table(stage.frozen_parameters(), stage.frozen_weights());
      taken += found;
      return found;
    };
    taken_[0].begin(std::ssize(embedding_));
    taken_[2].begin(std::ssize(final_norm_));
    from(0, embedding_);
    // A stage without the head leaves one that came from another rank.
    if (from(1, head_) > 0)
      own_head_ = true;
    else if (!own_head_)
      head_ = embedding_;
    from(2, final_norm_);
    return taken;
  }
  /// Takes them whole, from what `gather_falcon_base` has on rank 0. Errors: `config_error` for other sizes.
  void take(falcon_base<T> base) {
    require_count(0, std::ssize(base.embedding));
    if (!base.head.empty()) require_count(1, std::ssize(base.head));
    require_count(2, std::ssize(base.final_norm));
    own_head_ = !base.head.empty();
    embedding_ = std::move(base.embedding);
    head_ = own_head_ ? std::move(base.head) : embedding_;
    final_norm_ = std::move(base.final_norm);
    for (detail::falcon_parts_taken& t : taken_) t.left = 0;
  }
  /// Errors: `config_error` where `take` had parts of the model's embedding, head or final norm, and not all of them.
  void require_whole() const {
    for (std::size_t i = 0; i < taken_.size(); ++i)
      if (taken_[i].left > 0) [[unlikely]]
        throw config_error("heddle: falcon_drafter: of '" + std::string(detail::falcon_base_names[i]) + "' " +
                           std::to_string(taken_[i].left) + " of " + std::to_string(count_of(i)) +
                           " elements were not taken: take from the stages of all ranks, one after the other, or "
                           "take(gather_falcon_base(stage, world))");
  }

  /// Errors: `config_error` for a token that the vocabulary does not have; `who`: says so.
  void require_tokens(std::span<const std::int32_t> tokens, std::string_view who) const {
    for (const std::int32_t t : tokens)
      if (t < 0 || t >= shape_.vocabulary)
        throw config_error("heddle: " + std::string(who) + ": tokens should be from 0 to " +
                           std::to_string(shape_.vocabulary - 1) + ", got " + std::to_string(t));
  }
  /// Features of rows of the residual stream: the model's final norm of them. Shapes: streams and features [rows, width].
  void features_of(std::span<const T> streams, std::span<T> features) {
    require_whole();
    const std::int64_t rows = std::ssize(streams) / shape_.width;
    deviations_.resize(size(rows));
    compute::run<compute::ops::rms_norm>(*backend_, in(streams.data(), rows, shape_.width),
                                         std::span<const T>(final_norm_), epsilon(),
                                         to(features.data(), rows, shape_.width), std::span<T>(deviations_));
  }
  /// The model's head. Shapes: features [rows, width], logits [rows, vocabulary].
  void logits_of(std::span<const T> features, std::span<T> logits) {
    require_whole();
    const std::int64_t rows = std::ssize(features) / shape_.width;
    compute::matmul<compute::transpose::no, compute::transpose::yes>(*backend_, in(features.data(), rows, shape_.width),
                                                                     in(head_.data(), shape_.vocabulary, shape_.width),
                                                                     to(logits.data(), rows, shape_.vocabulary), T(0));
  }
  /// Back through the head. Shapes: d_logits [rows, vocabulary], d_features [rows, width], to which it adds.
  void logits_backward(std::span<const T> d_logits, std::span<T> d_features) {
    const std::int64_t rows = std::ssize(d_features) / shape_.width;
    compute::matmul<compute::transpose::no, compute::transpose::no>(
        *backend_, in(d_logits.data(), rows, shape_.vocabulary), in(head_.data(), shape_.vocabulary, shape_.width),
        to(d_features.data(), rows, shape_.width), T(1));
  }

  // ---- whole texts, for training --------------------------------------------------------------------------------
  /// Features that the rows of `sequences` texts of `rows` rows each predict, valid until the next call; what `backward` needs is kept.
  /// `next`: of each row the token after it. `dropout`: on outputs of the first LSTM layer, as PyTorch's LSTM has it; `backward` has the same mask.
  /// Errors: `layout_error` for other sizes; `config_error` for tokens that the vocabulary does not have, and for a rate that is not from 0 to below 1.
  std::span<const T> forward(std::span<const std::int32_t> next, std::span<const T> features, std::int64_t sequences,
                             std::int64_t rows, const falcon_dropout& dropout = {}) {
    if (!(dropout.rate >= 0 && dropout.rate < 1))
      throw config_error("heddle: falcon_drafter: dropout should have a rate from 0 to below 1, got " +
                         number_text(dropout.rate));
    const std::int64_t n = sequences * rows;
    if (std::ssize(next) != n || std::ssize(features) != n * shape_.width || rows > shape_.context)
      throw layout_error("heddle: falcon_drafter: " + std::to_string(sequences) + " texts of " + std::to_string(rows) +
                         " rows should have as many tokens, " + std::to_string(n * shape_.width) +
                         " elements of features and rows within the context of " + std::to_string(shape_.context) +
                         ", got " + std::to_string(next.size()) + " and " + std::to_string(features.size()));
    sequences_ = sequences;
    rows_ = rows;
    join(next, features);
    lstm_1_ = {};
    lstm_2_ = {};
    first_.forward(lstm_weights(input_1), joined_.data(), sequences, rows, lstm_1_);
    // The layer's own outputs stay whole for its recurrence and `backward`.
    mask_.assign(dropout.rate > 0 ? lstm_1_.outputs.size() : 0, T(0));
    between_ = lstm_1_.outputs;
    const T kept = static_cast<T>(1 / (1 - dropout.rate));
    for (std::size_t i = 0; i < mask_.size(); ++i) {
      if (dropout.random.uniform(i) >= dropout.rate) mask_[i] = kept;
      between_[i] *= mask_[i];
    }
    second_.forward(lstm_weights(input_2), between_.data(), sequences, rows, lstm_2_);
    positions_.clear();
    for (std::int64_t i = 0; i < n; ++i) positions_.push_back(static_cast<std::int32_t>(i % rows));
    slices_ = compute::relaxed_causal_slices(sequences, rows, shape_.block);
    keys_.resize(size(n * shape_.width));
    values_.resize(size(n * shape_.width));
    keys_of(lstm_2_.outputs, keys_.data(), values_.data());
    attend(lstm_2_.outputs, keys_, values_);
    return features_;
  }
  /// After `forward`: adds to the gradients of the weights. Shapes: d_features [sequences * rows, width].
  void backward(std::span<const T> d_features) {
    const std::int64_t n = sequences_ * rows_, d = shape_.width, f = shape_.ffn;
    std::vector<T> d_hidden(size(n * f)), d_gate(size(n * f)), d_up(size(n * f)), d_normed(size(n * d)),
        d_y(d_features.begin(), d_features.end());
    product_backward(down, d_features.data(), hidden_.data(), n, d_hidden.data(), T(0));
    compute::run<compute::ops::gated_backward<compute::silu>>(*backend_, std::span<const T>(gates_),
                                                              std::span<const T>(ups_), std::span<const T>(d_hidden),
                                                              std::span<T>(d_gate), std::span<T>(d_up));
    product_backward(gate, d_gate.data(), normed_2_.data(), n, d_normed.data(), T(0));
    product_backward(up, d_up.data(), normed_2_.data(), n, d_normed.data(), T(1));
    norm_backward(norm_2, d_normed, attended_, deviations_2_, d_y);
    std::vector<T> d_mixed(size(n * d)), d_q(size(n * d)), d_k(size(n * d)), d_v(size(n * d)), d_x(d_y);
    product_backward(out, d_y.data(), mixed_.data(), n, d_mixed.data(), T(0));
    compute::run<compute::ops::attention_backward>(
        *backend_, heads(d_mixed.data(), n), heads(queries_.data(), n), heads(keys_.data(), n),
        heads(values_.data(), n), heads(mixed_.data(), n), std::span<const T>(sums_),
        std::span<const compute::attention_slice>(slices_), scale(), heads(d_q.data(), n), heads(d_k.data(), n),
        heads(d_v.data(), n), compute::key_pages{});
    for (std::vector<T>* x : {&d_q, &d_k})
      compute::run<compute::ops::rotary_backward<compute::rotary_pairs::halves>>(
          *backend_, heads(x->data(), n), std::span<const std::int32_t>(positions_), table(cos_), table(sin_),
          heads(x->data(), n));
    product_backward(query, d_q.data(), normed_1_.data(), n, d_normed.data(), T(0));
    product_backward(key, d_k.data(), normed_1_.data(), n, d_normed.data(), T(1));
    product_backward(value, d_v.data(), normed_1_.data(), n, d_normed.data(), T(1));
    norm_backward(norm_1, d_normed, lstm_2_.outputs, deviations_1_, d_x);
    std::vector<T> d_first(size(n * d));
    second_.backward(lstm_weights(input_2), lstm_gradients(input_2), between_.data(), sequences_, rows_, lstm_2_,
                     d_x.data(), d_first.data());
    for (std::size_t i = 0; i < mask_.size(); ++i) d_first[i] *= mask_[i];
    first_.backward(lstm_weights(input_1), lstm_gradients(input_1), joined_.data(), sequences_, rows_, lstm_1_,
                    d_first.data(), nullptr);
  }

  // ---- one text that grows, for decoding ------------------------------------------------------------------------
  /// What the drafter keeps of a text: states of the LSTMs after its last row, keys and values of all rows, and the last rows that attention reads.
  struct prefix {
    std::int64_t rows = 0;
    std::array<std::vector<T>, 4> states{};  ///< cells and outputs of the first layer, then of the second
    std::vector<T> keys{}, values{};
    std::vector<T> recent{};  ///< of at most `block` rows
  };
  /// A block that was drafted: `features` [block, width], and the states after its own tokens; of the first one, those of the text.
  struct drafted_block {
    std::int64_t parent = -1;
    std::int64_t first_key = 0;
    std::array<std::vector<T>, 4> states{};
    std::vector<T> features{};
    std::vector<T> logits{};  ///< [block, vocabulary]
  };

  /// Appends rows to a text. Shapes: next [n], features [n, width]. Errors: as `forward`, and `layout_error` for a text that comes to lie beyond the positions that there are, 2 context + 1.
  void append(prefix& p, std::span<const std::int32_t> next, std::span<const T> features) {
    const std::int64_t n = std::ssize(next), d = shape_.width;
    if (n == 0) return;
    if (p.rows + n > 2 * shape_.context + 1)
      throw layout_error("heddle: falcon_drafter: a text should have at most " +
                         std::to_string(2 * shape_.context + 1) + " rows, got " + std::to_string(p.rows) + " and " +
                         std::to_string(n) + " more");
    run_lstm(p.states, next, features, 1, n);
    const std::vector<T>& x = lstm_2_.outputs;
    grow_keys(p, p.rows, x, n, [&](std::int64_t i) { return p.rows + i; });
    p.rows += n;
    p.recent.insert(p.recent.end(), x.begin(), x.end());
    const std::int64_t spare = std::ssize(p.recent) - (std::min)(shape_.block, p.rows) * d;
    p.recent.erase(p.recent.begin(), p.recent.begin() + spare);
    p.states = states_after(0, n);
  }
  /// The first block of drafts: what the last `block` rows of the text predict. Errors: `layout_error` for a text of fewer rows.
  std::vector<drafted_block> begin_drafts(prefix& p) {
    if (p.rows < shape_.block)
      throw layout_error("heddle: falcon_drafter: a text should have at least the " + std::to_string(shape_.block) +
                         " rows of a block, got " + std::to_string(p.rows));
    positions_.clear();
    for (std::int64_t i = p.rows - shape_.block; i < p.rows; ++i) positions_.push_back(static_cast<std::int32_t>(i));
    slices_ = {{0, shape_.block, 0, p.rows, compute::slice_mask::full}};
    normalise(p.recent);
    attend(p.recent, p.keys, p.values);
    std::vector<drafted_block> blocks(1);
    blocks[0].states = p.states;
    keep(blocks[0], 0);
    return blocks;
  }
  /// Drafts behind blocks that were drafted, all in one pass: `tokens` has `block` tokens for each of `parents`, those that stand where that block's features do. Appends a block for each.
  /// A row sees the text, all blocks that lead to its own, and its own. Errors: as `append`, and `layout_error` for parents that are not there.
  void draft(prefix& p, std::vector<drafted_block>& blocks, std::span<const std::int64_t> parents,
             std::span<const std::int32_t> tokens) {
    const std::int64_t lanes = std::ssize(parents), k = shape_.block, d = shape_.width, n = lanes * k;
    if (std::ssize(tokens) != n)
      throw layout_error("heddle: falcon_drafter: " + std::to_string(lanes) + " blocks should have " +
                         std::to_string(n) + " tokens, got " + std::to_string(tokens.size()));
    std::array<std::vector<T>, 4> states;
    std::vector<T> features;
    for (const std::int64_t b : parents) {
      if (b < 0 || b >= std::ssize(blocks))
        throw layout_error("heddle: falcon_drafter: parents should be from 0 to " +
                           std::to_string(std::ssize(blocks) - 1) + ", got " + std::to_string(b));
      const drafted_block& from = blocks[size(b)];
      for (std::size_t s = 0; s < 4; ++s)
        states[s].insert(states[s].end(), from.states[s].begin(), from.states[s].end());
      features.insert(features.end(), from.features.begin(), from.features.end());
    }
    run_lstm(states, tokens, features, lanes, k);
    const std::vector<T> x = lstm_2_.outputs;
    const std::int64_t begin = std::ssize(p.keys) / d;
    const std::size_t first = blocks.size();
    slices_.clear();
    for (std::int64_t l = 0; l < lanes; ++l) {
      drafted_block& b = blocks.emplace_back();
      b.parent = parents[size(l)];
      b.first_key = begin + l * k;
      b.states = states_after(l, k);
      slices_.push_back({l * k, (l + 1) * k, 0, p.rows, compute::slice_mask::full});
      for (auto a = static_cast<std::int64_t>(blocks.size()) - 1; a > 0; a = blocks[size(a)].parent)
        slices_.push_back(
            {l * k, (l + 1) * k, blocks[size(a)].first_key, blocks[size(a)].first_key + k, compute::slice_mask::full});
    }
    grow_keys(p, begin, x, n, [&](std::int64_t i) {
      std::int64_t depth = -1;
      for (auto a = static_cast<std::int64_t>(first) + i / k; a > 0; a = blocks[size(a)].parent) ++depth;
      return p.rows + depth * k + i % k;
    });
    attend(x, p.keys, p.values);
    for (std::int64_t l = 0; l < lanes; ++l) keep(blocks[first + size(l)], l);
  }
  /// Forgets keys and values of drafts.
  void end_drafts(prefix& p) const {
    p.keys.resize(size(p.rows * shape_.width));
    p.values.resize(size(p.rows * shape_.width));
  }

 private:
  using lstm = lstm_layer<T, Backend>;
  static std::size_t size(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  std::int64_t count_of(std::size_t which) const noexcept {
    return which == 2 ? shape_.width : shape_.vocabulary * shape_.width;
  }
  void require_count(std::size_t which, std::int64_t count) const {
    if (count != count_of(which))
      throw config_error("heddle: falcon_drafter: '" + std::string(detail::falcon_base_names[which]) +
                         "' should have " + std::to_string(count_of(which)) + " elements, got " +
                         std::to_string(count));
  }
  static const falcon_shape& checked(const falcon_shape& s) {
    if (s.width < 1 || s.heads < 1 || s.ffn < 1 || s.vocabulary < 1 || s.block < 1 || s.context < 1 ||
        s.width % (2 * s.heads) != 0)
      throw config_error(
          "heddle: falcon_drafter: sizes should be at least 1 and the width an even number for each head, got width " +
          std::to_string(s.width) + ", heads " + std::to_string(s.heads) + ", ffn " + std::to_string(s.ffn) +
          ", vocabulary " + std::to_string(s.vocabulary) + ", block " + std::to_string(s.block) + " and context " +
          std::to_string(s.context));
    return s;
  }
  T epsilon() const noexcept { return static_cast<T>(shape_.epsilon); }
  T scale() const noexcept { return static_cast<T>(1 / std::sqrt(static_cast<double>(shape_.width / shape_.heads))); }
  std::span<T> at(std::vector<T>& all, std::size_t p) {
    return std::span<T>(all).subspan(size(at_[p]), size(extent(p)[0] * extent(p)[1]));
  }
  typename lstm::weights lstm_weights(std::size_t p) {
    return {at(weights_, p), at(weights_, p + 1), at(weights_, p + 2)};
  }
  typename lstm::weights lstm_gradients(std::size_t p) {
    return {at(gradients_, p), at(gradients_, p + 1), at(gradients_, p + 2)};
  }
  static matrix_view<const T> in(const T* x, std::int64_t rows, std::int64_t columns) {
    return {x, dynamic_shape<2>(rows, columns)};
  }
  static matrix_view<T> to(T* x, std::int64_t rows, std::int64_t columns) {
    return {x, dynamic_shape<2>(rows, columns)};
  }
  template <class U>
  compute::head_rows<U> heads(U* x, std::int64_t rows) const {
    return {x, rows, shape_.heads, shape_.width / shape_.heads, shape_.width};
  }
  matrix_view<const T> table(const std::vector<T>& x) const {
    return in(x.data(), 2 * shape_.context + 1, shape_.width / shape_.heads / 2);
  }
  // y = x W', of n rows.
  void product(std::size_t p, const T* x, std::int64_t n, T* y) {
    const auto [rows, columns] = extent(p);
    compute::matmul<compute::transpose::no, compute::transpose::yes>(
        *backend_, in(x, n, columns), in(at(weights_, p).data(), rows, columns), to(y, n, rows), T(0));
  }
  void product_backward(std::size_t p, const T* dy, const T* x, std::int64_t n, T* dx, T beta) {
    const auto [rows, columns] = extent(p);
    compute::matmul<compute::transpose::yes, compute::transpose::no>(*backend_, in(dy, n, rows), in(x, n, columns),
                                                                     to(at(gradients_, p).data(), rows, columns), T(1));
    compute::matmul<compute::transpose::no, compute::transpose::no>(
        *backend_, in(dy, n, rows), in(at(weights_, p).data(), rows, columns), to(dx, n, columns), beta);
  }
  void norm_backward(std::size_t p, const std::vector<T>& dy, const std::vector<T>& x, const std::vector<T>& deviations,
                     std::vector<T>& dx) {
    const std::int64_t n = std::ssize(deviations), d = shape_.width;
    compute::run<compute::ops::rms_norm_backward_input>(*backend_, in(dy.data(), n, d), in(x.data(), n, d),
                                                        std::span<const T>(at(weights_, p)),
                                                        std::span<const T>(deviations), to(dx.data(), n, d));
    compute::run<compute::ops::rms_norm_backward_weight>(*backend_, in(dy.data(), n, d), in(x.data(), n, d),
                                                         std::span<const T>(deviations), at(gradients_, p));
  }

  void join(std::span<const std::int32_t> next, std::span<const T> features) {
    const std::int64_t d = shape_.width;
    if (std::ssize(features) != std::ssize(next) * d)
      throw layout_error("heddle: falcon_drafter: " + std::to_string(next.size()) + " rows should have " +
                         std::to_string(std::ssize(next) * d) + " elements of features, got " +
                         std::to_string(features.size()));
    require_whole();
    require_tokens(next, "falcon_drafter");
    joined_.resize(next.size() * size(2 * d));
    for (std::size_t i = 0; i < next.size(); ++i) {
      T* const row = joined_.data() + i * size(2 * d);
      std::copy_n(embedding_.begin() + next[i] * d, d, row);
      std::copy_n(features.begin() + static_cast<std::int64_t>(i) * d, d, row + d);
    }
  }
  void run_lstm(const std::array<std::vector<T>, 4>& states, std::span<const std::int32_t> next,
                std::span<const T> features, std::int64_t lanes, std::int64_t steps) {
    join(next, features);
    lstm_1_ = {{}, {}, {}, states[0], states[1]};
    lstm_2_ = {{}, {}, {}, states[2], states[3]};
    first_.forward(lstm_weights(input_1), joined_.data(), lanes, steps, lstm_1_);
    second_.forward(lstm_weights(input_2), lstm_1_.outputs.data(), lanes, steps, lstm_2_);
  }
  std::array<std::vector<T>, 4> states_after(std::int64_t lane, std::int64_t steps) const {
    const std::int64_t from = (lane * steps + steps - 1) * shape_.width;
    const auto row = [&](const std::vector<T>& x) {
      return std::vector<T>(x.begin() + from, x.begin() + from + shape_.width);
    };
    return {row(lstm_1_.cells), row(lstm_1_.outputs), row(lstm_2_.cells), row(lstm_2_.outputs)};
  }
  void normalise(const std::vector<T>& x) {
    normed_1_.resize(x.size());
    const std::int64_t n = std::ssize(x) / shape_.width;
    deviations_1_.resize(size(n));
    compute::run<compute::ops::rms_norm>(*backend_, in(x.data(), n, shape_.width),
                                         std::span<const T>(at(weights_, norm_1)), epsilon(),
                                         to(normed_1_.data(), n, shape_.width), std::span<T>(deviations_1_));
  }
  // Keys and values of rows x, at `positions_`.
  void keys_of(const std::vector<T>& x, T* keys, T* values) {
    const std::int64_t n = std::ssize(x) / shape_.width;
    normalise(x);
    product(key, normed_1_.data(), n, keys);
    product(value, normed_1_.data(), n, values);
    turn(keys, n);
  }
  void turn(T* x, std::int64_t n) {
    compute::run<compute::ops::rotary<compute::rotary_pairs::halves>>(*backend_, heads<const T>(x, n),
                                                                      std::span<const std::int32_t>(positions_),
                                                                      table(cos_), table(sin_), heads(x, n));
  }
  template <class Position>
  void grow_keys(prefix& p, std::int64_t begin, const std::vector<T>& x, std::int64_t n, Position&& position) {
    positions_.clear();
    for (std::int64_t i = 0; i < n; ++i) positions_.push_back(static_cast<std::int32_t>(position(i)));
    for (std::vector<T>* v : {&p.keys, &p.values}) v->resize(size((begin + n) * shape_.width));
    keys_of(x, p.keys.data() + begin * shape_.width, p.values.data() + begin * shape_.width);
  }
  // The features that rows x give, with `normed_1_`, `positions_` and `slices_` of them.
  void attend(const std::vector<T>& x, const std::vector<T>& keys, const std::vector<T>& values) {
    const std::int64_t d = shape_.width, n = std::ssize(x) / d, of_keys = std::ssize(keys) / d;
    for (std::vector<T>* v : {&queries_, &mixed_, &attended_, &normed_2_, &features_}) v->resize(x.size());
    for (std::vector<T>* v : {&gates_, &ups_, &hidden_}) v->resize(size(n * shape_.ffn));
    sums_.resize(size(n * shape_.heads));
    deviations_2_.resize(size(n));
    product(query, normed_1_.data(), n, queries_.data());
    turn(queries_.data(), n);
    compute::run<compute::ops::attention>(*backend_, heads<const T>(queries_.data(), n), heads(keys.data(), of_keys),
                                          heads(values.data(), of_keys),
                                          std::span<const compute::attention_slice>(slices_), scale(),
                                          heads(mixed_.data(), n), std::span<T>(sums_), compute::key_pages{});
    product(out, mixed_.data(), n, attended_.data());
    compute::run<compute::ops::add>(*backend_, std::span<const T>(attended_), std::span<const T>(x),
                                    std::span<T>(attended_));
    compute::run<compute::ops::rms_norm>(*backend_, in(attended_.data(), n, d),
                                         std::span<const T>(at(weights_, norm_2)), epsilon(),
                                         to(normed_2_.data(), n, d), std::span<T>(deviations_2_));
    product(gate, normed_2_.data(), n, gates_.data());
    product(up, normed_2_.data(), n, ups_.data());
    compute::run<compute::ops::gated<compute::silu>>(*backend_, std::span<const T>(gates_), std::span<const T>(ups_),
                                                     std::span<T>(hidden_));
    product(down, hidden_.data(), n, features_.data());
    compute::run<compute::ops::add>(*backend_, std::span<const T>(features_), std::span<const T>(attended_),
                                    std::span<T>(features_));
  }
  void keep(drafted_block& b, std::int64_t lane) {
    const std::int64_t n = shape_.block * shape_.width;
    b.features.assign(features_.begin() + lane * n, features_.begin() + (lane + 1) * n);
    b.logits.resize(size(shape_.block * shape_.vocabulary));
    logits_of(b.features, b.logits);
  }

  Backend* backend_;
  falcon_shape shape_;
  lstm first_, second_;
  std::array<std::int64_t, parts> at_{};
  std::vector<T> weights_{}, gradients_{}, embedding_{}, head_{}, final_norm_{}, cos_{}, sin_{}, deviations_{};
  bool own_head_ = false;  // `take` found a head that is not the embedding
  std::array<detail::falcon_parts_taken, 3> taken_{};
  std::int64_t sequences_ = 0, rows_ = 0;
  typename lstm::activations lstm_1_{}, lstm_2_{};
  std::vector<std::int32_t> positions_{};
  std::vector<compute::attention_slice> slices_{};
  std::vector<T> mask_{}, between_{};  // of dropout, empty without; what the second LSTM layer reads
  std::vector<T> joined_{}, normed_1_{}, deviations_1_{}, queries_{}, keys_{}, values_{}, mixed_{}, sums_{},
      attended_{}, normed_2_{}, deviations_2_{}, gates_{}, ups_{}, hidden_{}, features_{};
};

}  // namespace heddle::inline v0::model
