// heddle/model/recompute.hpp: saved activations by name, and which of them are computed again instead of kept.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/model/block.hpp>
#include <heddle/model/head.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace heddle::inline v0::model {

/// What a transformer saves from forward to backward, besides the input of each block, which is always kept.
enum class activation {
  ln_1_out,  ///< with the statistics of its rows, as of the other norms
  attn_qkv,  ///< queries, keys and values
  attn_out,  ///< the heads' outputs, with the log-sum-exp of their scores; the scores themselves are never kept
  mid,       ///< the residual stream between attention and MLP
  ln_2_out,
  mlp_hidden,     ///< before the GELU
  mlp_activated,  ///< after it
  ln_f_out,       ///< from here on: behind the last block
  head_logits,
};
inline constexpr std::array<std::string_view, 9> activation_names{
    "ln_1.out", "attn.qkv", "attn.out", "mid", "ln_2.out", "mlp.hidden", "mlp.activated", "ln_f.out", "head.logits"};

/// Some of them.
struct activation_set {
  unsigned bits = 0;
  constexpr bool has(activation a) const noexcept { return (bits >> static_cast<unsigned>(a) & 1u) != 0; }
  constexpr bool any() const noexcept { return bits != 0; }
  friend constexpr activation_set operator|(activation_set a, activation_set b) noexcept { return {a.bits | b.bits}; }
  friend constexpr activation_set operator&(activation_set a, activation_set b) noexcept { return {a.bits & b.bits}; }
  friend constexpr bool operator==(activation_set, activation_set) = default;
};
inline constexpr activation_set block_activations{(1u << 7) - 1};  ///< of a block
inline constexpr activation_set end_activations{3u << 7};          ///< of what follows the last block

/// The activation of this name; none if there is no such name.
constexpr activation_set activation_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (activation_names[i] == name) return {1u << i};
  return {};
}

/// Which activations a stage drops after forward and computes again in backward.
struct recompute_plan {
  activation_set named{};  ///< in every block, and behind the last
  int every = 0;  ///< all of blocks k-1, 2k-1, ... of the model: of each of them only the input is kept; 0: none

  constexpr activation_set of_block(int layer) const noexcept {
    if (every > 0 && (layer + 1) % every == 0) return block_activations;
    return named & block_activations;
  }
  constexpr activation_set of_end() const noexcept { return named & end_activations; }
  constexpr bool any() const noexcept { return named.any() || every > 0; }
  friend constexpr bool operator==(const recompute_plan&, const recompute_plan&) = default;
};

/// `"none"`, `"full"` (all of every block), `"every 2"` and names, separated by commas: `"every 2,head.logits"`.
/// Errors: `config_error` naming what is not known and what would be.
inline recompute_plan parse_recompute(std::string_view text) {
  recompute_plan plan;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view one = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    if (one == "none") continue;
    constexpr std::string_view every = "every ";
    if (one == "full") {
      plan.every = 1;
    } else if (one.substr(0, every.size()) == every) {
      const char* const end = one.data() + one.size();
      const auto [last, error] = std::from_chars(one.data() + every.size(), end, plan.every);
      if (error != std::errc{} || last != end || plan.every < 1) {
        std::string message = "heddle: recompute \"";
        message += one;
        message += "\": every how many blocks? Write \"every 2\"";
        throw config_error(message);
      }
    } else {
      const activation_set known = activation_named(one);
      if (!known.any()) {
        std::string message = "heddle: recompute \"";
        message += one;
        message += "\" names no saved activation; there are none, full, every <k>";
        for (const std::string_view name : activation_names) (message += ", ") += name;
        throw config_error(message);
      }
      plan.named = plan.named | known;
    }
  }
  return plan;
}

/// In the same form.
inline std::string to_string(const recompute_plan& plan) {
  std::string text;
  const auto add = [&](std::string_view part) {
    if (!text.empty()) text += ',';
    text += part;
  };
  if (plan.every == 1) add("full");
  if (plan.every > 1) add("every " + std::to_string(plan.every));
  for (std::size_t i = 0; i < activation_names.size(); ++i)
    if (plan.named.has(static_cast<activation>(i))) add(activation_names[i]);
  return text.empty() ? "none" : text;
}

/// Elements per token that a block keeps from forward to backward when `again` is computed again: its input, and the
/// rest. Blocks of memory are whole cache lines, which is not counted here.
constexpr std::int64_t kept_elements(const block_extents& e, activation_set again) noexcept {
  const auto kept = [&](activation a, std::int64_t elements) { return again.has(a) ? 0 : elements; };
  return e.width + kept(activation::ln_1_out, e.width + 2) + kept(activation::attn_qkv, 3 * e.heads * e.head_dim) +
         kept(activation::attn_out, e.heads * (e.head_dim + 1)) + kept(activation::mid, e.width) +
         kept(activation::ln_2_out, e.width + 2) + kept(activation::mlp_hidden, e.hidden) +
         kept(activation::mlp_activated, e.hidden);
}

/// Elements per token of what is computed again in backward_input and needed until backward_weight: they wait with the
/// gradients. Everything else is used up at once.
constexpr std::int64_t recomputed_for_weights(const block_extents& e, activation_set again) noexcept {
  const auto waits = [&](activation a, std::int64_t elements) { return again.has(a) ? elements : 0; };
  return waits(activation::ln_1_out, e.width + 2) + waits(activation::attn_out, e.heads * e.head_dim) +
         waits(activation::mid, e.width) + waits(activation::ln_2_out, e.width + 2) +
         waits(activation::mlp_activated, e.hidden);
}

/// What the final norm and the head save.
template <class T, class Plan>
struct end_saved {
  std::span<T> x{};       ///< the residual stream after the last block
  std::span<T> normed{};  ///< ln_f's output
  typename layer_norm<T>::saved ln_f{};
  typename tied_head<T, Plan>::saved head{};
};

/// A piece of memory of a named activation.
template <class T>
struct activation_piece {
  activation what;
  bool for_weights;  ///< backward_weight needs it
  std::span<T>* at;
  std::int64_t elements;
};

template <class T, class Plan, class Saved = typename block<T, Plan>::saved>
std::array<activation_piece<T>, 12> memories(Saved& s, std::int64_t rows, const block_extents& e) noexcept {
  using a = activation;
  return {{{a::ln_1_out, true, &s.normed_1, rows * e.width},
           {a::ln_1_out, true, &s.ln_1.mean, rows},
           {a::ln_1_out, true, &s.ln_1.rstd, rows},
           {a::attn_qkv, false, &s.attn.qkv_memory, rows * 3 * e.heads * e.head_dim},
           {a::attn_out, true, &s.attn.out_memory, rows * e.heads * e.head_dim},
           {a::attn_out, false, &s.attn.lse_memory, rows * e.heads},
           {a::mid, true, &s.mid, rows * e.width},
           {a::ln_2_out, true, &s.normed_2, rows * e.width},
           {a::ln_2_out, true, &s.ln_2.mean, rows},
           {a::ln_2_out, true, &s.ln_2.rstd, rows},
           {a::mlp_hidden, false, &s.ff.hidden_memory, rows * e.hidden},
           {a::mlp_activated, true, &s.ff.activated_memory, rows * e.hidden}}};
}
template <class T, class Plan>
std::array<activation_piece<T>, 4> memories(end_saved<T, Plan>& s, std::int64_t rows, std::int64_t width,
                                            std::int64_t words) noexcept {
  return {{{activation::ln_f_out, true, &s.normed, rows * width},
           {activation::ln_f_out, true, &s.ln_f.mean, rows},
           {activation::ln_f_out, true, &s.ln_f.rstd, rows},
           {activation::head_logits, true, &s.head.logits_memory, rows * words}}};
}

/// Computes `again` of a block that has been forward once more, from its input and what was kept: the same bits, the
/// same messages. The output of the block is not computed. Over tp: one all_reduce if `mid` is among them.
template <class T, class Plan, class Context>
void recompute(const block<T, Plan>& b, Context& c, typename block<T, Plan>::saved& s, activation_set again) {
  const std::int64_t rows = s.extent.rows(), width = b.local.width;
  const auto x = as_matrix(s.x, rows, width);
  const auto mid = as_matrix(s.mid, rows, width);
  if (again.has(activation::ln_1_out)) b.ln_1.forward(c, s.ln_1, x, as_matrix(s.normed_1, rows, width));
  if (again.has(activation::attn_qkv)) b.attn.c_attn.forward(c, s.attn.input, s.attn.input.x, s.attn.qkv);
  if (again.has(activation::attn_out)) c.compute.attention(s.attn.qkv, s.attn.shape, s.attn.out, s.attn.lse);
  if (again.has(activation::mid)) {
    b.attn.c_proj.forward(c, s.attn.output, s.attn.out, mid);
    c.compute.add(x.elements(), mid.elements(), mid.elements());
  }
  if (again.has(activation::ln_2_out)) b.ln_2.forward(c, s.ln_2, mid, as_matrix(s.normed_2, rows, width));
  if (again.has(activation::mlp_hidden)) b.ff.c_fc.forward(c, s.ff.input, s.ff.input.x, s.ff.hidden);
  if (again.has(activation::mlp_activated)) c.compute.gelu(s.ff.hidden.elements(), s.ff.activated.elements());
}

/// What the settings of a stage's memory say is computed again.
template <class Settings>
constexpr recompute_plan recompute_plan_of(const Settings& s) noexcept {
  if constexpr (requires { s.again; })
    return s.again;
  else
    return {};
}

/// The part of a stage that recomputes. What is computed again lies in memory that all blocks and microbatches share,
/// with a split backward the part for backward_weight in memory of each microbatch that waits (`waiting`). Forward
/// writes into the shared memory, too: the block that was there last is not computed again.
template <class T, class Plan>
class recomputation {
 public:
  using block_saved = typename block<T, Plan>::saved;
  using end_type = end_saved<T, Plan>;

  /// Of a microbatch between backward_input and backward_weight.
  struct waiting {
    std::vector<block_saved> blocks{};
    end_type end{};
  };

  recomputation() = default;
  /// `first`: the stage's first block. `words`: of this rank's vocabulary; negative where there is no head.
  recomputation(const recompute_plan& plan, int first, const block_extents& extents, std::int64_t words)
      : plan_(plan), first_(first), extents_(extents), words_(words) {}

  const recompute_plan& plan() const noexcept { return plan_; }
  activation_set of_block(int layer) const noexcept { return plan_.of_block(first_ + layer); }
  activation_set of_end() const noexcept { return words_ < 0 ? activation_set{} : plan_.of_end(); }

  /// Memory that is shared: that of the blocks is there already, for the passes without backward.
  void share(const block_saved& blocks, carver<T>& memory, std::int64_t max_rows) {
    blocks_ = blocks;
    if (words_ < 0) return;
    for (const auto& m : memories(end_, max_rows, extents_.width, words_))
      if (of_end().has(m.what)) *m.at = memory.take(m.elements);
  }
  /// What block `layer` of the stage keeps comes from `memory`.
  void place(carver<T>& memory, block_saved& s, int layer, std::int64_t rows) const {
    const activation_set again = of_block(layer);
    if (!again.any()) return s.place(memory, rows, extents_);
    s.x = memory.take(rows * extents_.width);
    block_saved shared = blocks_;
    place(memory, memories<T, Plan>(s, rows, extents_), memories<T, Plan>(shared, rows, extents_), again);
  }
  void place(carver<T>& memory, end_type& s, std::int64_t rows) const {
    s.x = memory.take(rows * extents_.width);
    s.head.place(memory, rows, 0);
    end_type shared = end_;
    place(memory, memories(s, rows, extents_.width, words_), memories(shared, rows, extents_.width, words_), of_end());
  }
  void place(carver<T>& memory, waiting& w, int layers, std::int64_t rows) const {
    w.blocks.resize(static_cast<std::size_t>(layers));
    for (int l = 0; l < layers; ++l)
      for (const auto& m : memories<T, Plan>(w.blocks[static_cast<std::size_t>(l)], rows, extents_))
        if (m.for_weights && of_block(l).has(m.what)) *m.at = memory.take(m.elements);
    if (words_ < 0) return;
    for (const auto& m : memories(w.end, rows, extents_.width, words_))
      if (of_end().has(m.what)) *m.at = memory.take(m.elements);
  }
  /// Before a forward: what is computed again has been elsewhere since the last.
  void begin(end_type& s) noexcept { point_at(memories(s, 0, 0, 0), memories(end_, 0, 0, 0), of_end()); }

  /// The shared memory now belongs to this block, or this end.
  void wrote(const block_saved& s, int layer) noexcept {
    if (of_block(layer).any()) last_block_ = &s;
  }
  void wrote(const end_type& s) noexcept { last_end_ = &s; }
  /// A pass without backward used it.
  void overwritten() noexcept { last_block_ = nullptr; }

  /// Before backward_input of a block whose views are in order. `w`: where it waits for backward_weight; null if that
  /// follows at once.
  template <class Context>
  void restore(Context& c, const block<T, Plan>& b, block_saved& s, int layer, waiting* w) {
    const activation_set again = of_block(layer);
    if (!again.any()) return;
    const bool there = last_block_ == &s;
    last_block_ = nullptr;
    const std::int64_t rows = s.extent.rows();
    if (w != nullptr) {
      move_to(c, memories<T, Plan>(s, rows, extents_),
              memories<T, Plan>(w->blocks[static_cast<std::size_t>(layer)], rows, extents_), again, there);
      b.view(s, s.extent);
    }
    if (!there) recompute(b, c, s, again);
  }
  /// The same of what follows the last block.
  template <class Context>
  void restore(Context& c, const layer_norm<T>& ln_f, const tied_head<T, Plan>& head, end_type& s, extent_of_batch e,
               waiting* w) {
    const activation_set again = of_end();
    if (!again.any()) return;
    const bool there = last_end_ == &s;
    last_end_ = nullptr;
    const std::int64_t rows = e.rows();
    if (w != nullptr)
      move_to(c, memories(s, rows, extents_.width, words_), memories(w->end, rows, extents_.width, words_), again,
              there);
    const auto normed = as_matrix(s.normed, rows, extents_.width);
    s.head.h = normed;
    s.head.logits = as_matrix(s.head.logits_memory, rows, words_);
    if (there) return;
    if (again.has(activation::ln_f_out)) ln_f.forward(c, s.ln_f, as_matrix(s.x, rows, extents_.width), normed);
    if (again.has(activation::head_logits)) head.logits(c, s.head.h, s.head.logits);
  }

 private:
  template <std::size_t N>
  using pieces = std::array<activation_piece<T>, N>;

  template <std::size_t N>
  static void place(carver<T>& memory, const pieces<N>& of, const pieces<N>& shared, activation_set again) noexcept {
    for (std::size_t i = 0; i < N; ++i) *of[i].at = again.has(of[i].what) ? *shared[i].at : memory.take(of[i].elements);
  }
  template <std::size_t N>
  static void point_at(const pieces<N>& of, const pieces<N>& to, activation_set again) noexcept {
    for (std::size_t i = 0; i < N; ++i)
      if (again.has(of[i].what)) *of[i].at = *to[i].at;
  }
  // From the shared memory to that of one microbatch, with what is there already.
  template <class Context, std::size_t N>
  static void move_to(Context& c, const pieces<N>& of, const pieces<N>& to, activation_set again, bool there) {
    for (std::size_t i = 0; i < N; ++i) {
      if (!again.has(of[i].what) || !of[i].for_weights) continue;
      const auto n = static_cast<std::size_t>(of[i].elements);
      if (there && n > 0) c.compute.copy(std::span<const T>(of[i].at->first(n)), to[i].at->first(n));
      *of[i].at = *to[i].at;
    }
  }

  recompute_plan plan_{};
  int first_ = 0;
  block_extents extents_{};
  std::int64_t words_ = -1;
  block_saved blocks_{};  ///< where the shared memory is
  end_type end_{};
  const block_saved* last_block_ = nullptr;  ///< whose recomputed activations are in it
  const end_type* last_end_ = nullptr;
};

}  // namespace heddle::inline v0::model
