// heddle/model/layers/ends.hpp: ends of a model: embedding; final norm, logits and loss.
#pragma once

#include <heddle/core/split.hpp>
#include <heddle/layout/operations.hpp>
#include <heddle/model/layers/block_kinds.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/moving_rows.hpp>
#include <heddle/tensor/box_kernels.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/runs.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::model::layers {

struct tokens_table {};     ///< parameter: the embedding of tokens, [vocabulary, width]
struct positions_table {};  ///< parameter: the embedding of positions, [context, width]

namespace detail {
template <bool Ok, class How>
inline constexpr bool rows_of_words_are_whole = Ok;
// Tokens and targets are given to every rank, which looks up its part of the vocabulary in all of them.
template <class Layouts>
constexpr void require_rows_of_words() {
  static_assert(
      rows_of_words_are_whole<!Layouts::template splits_rows<dims<dim::vocabulary>>, typename Layouts::how>,
      "heddle: embedding and head compute their words of whole sequences: the axis that splits dim::sequence must "
      "split dim::vocabulary, too");
}

// Calls f(rows, positions, sequence) for all rows of the residual stream at once; where a rank has a part of them, for the rest of
// the sequence in which its part begins, the whole sequences behind it, and the beginning of the last one.
template <class B, class T, class P, class Space, class F>
void each_sequence(const B& b, matrix_view<T, Space> x, matrix_view<P, Space> positions, F&& f) {
  const std::int64_t sequence = b.run().extent.sequence;
  if constexpr (!B::layouts::template splits_rows<dims<dim::width>>) {
    f(x, positions, sequence);
  } else {
    const std::int64_t first = b.template own_rows<dims<dim::width>>().first, rows = x.extent(0), width = x.extent(1);
    for (std::int64_t at = 0; at < rows;) {
      const std::int64_t from = (first + at) % sequence;
      const std::int64_t whole = from == 0 ? (rows - at) / sequence * sequence : 0;
      const std::int64_t count = whole > 0 ? whole : (std::min)(sequence - from, rows - at);
      const std::int64_t length = whole > 0 ? sequence : count;
      f(matrix_view<T, Space>(x.address() + at * width, dynamic_shape<2>(count, width)),
        matrix_view<P, Space>(positions.address() + from * width, dynamic_shape<2>(length, width)), length);
      at += count;
    }
  }
}
}  // namespace detail

/// x[b, s] = table[token(b, s)] (+ positions[s]). This rank holds the rows of its part of the vocabulary and looks up what it
/// has; the rest is zero, and the sum over the axis that splits the vocabulary is the embedding.
/// Shapes: tokens [samples, sequence], x [rows, width], table [vocabulary, width], positions [context, width].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
/// `Multiplied`: x is `multiplier` times as much.
template <bool LearnedPositions, bool Multiplied = false>
struct embedding {
  const char* name;            ///< of the layer; the tables' names follow
  const char* tokens_name;     ///< as in "wte.weight"
  const char* positions_name;  ///< as in "wpe.weight"
  std::int64_t vocabulary, width, context;
  double deviation = 0;
  double multiplier = 1;

  using table = parameter<tokens_table, dims<dim::vocabulary>, dims<dim::width>>;

  constexpr auto parameters() const {
    const table words{tokens_name, {vocabulary, width}, deviation};
    if constexpr (LearnedPositions)
      return list(words, parameter<positions_table, dims<dim::positions>, dims<dim::width>>{
                             positions_name, {context, width}, deviation});
    else
      return list(words);
  }
  constexpr auto activations() const {
    return list(gathered_rows<whole_out, life::scratch, dims<dim::width>, dims<dim::vocabulary>>{{{width}}});
  }
  static constexpr list<> children() { return {}; }
  using needs =
      std::conditional_t<Multiplied, compute::facet_list<compute::embedding_facet, compute::elementwise_facet>,
                         compute::facet_list<compute::embedding_facet>>;
  using needs_cached =
      std::conditional_t<LearnedPositions, compute::facet_list<compute::embedding_facet, compute::cache_facet>,
                         compute::facet_list<compute::embedding_facet>>;

  template <class Layouts>
  struct laid {
    using weights = typename Layouts::template parameter<typename table::own>;
    using one_hot = typename Layouts::template edge<dims<dim::vocabulary>>;
    using stream = typename Layouts::template edge<dims<dim::width>>;
    using made = propagate<"bv,vd->bd", one_hot, weights>;
    static_assert(std::is_same_v<propagate<"bv,bd->vd", one_hot, dual<made>>, dual<weights>>,
                  "heddle: the gradient of the token embedding must be the dual of its layout");
  };
  template <class B>
  auto forward(const B& b, typename B::token_ids tokens, typename B::view x) const {
    const auto left = look_up(b, tokens, x);
    if constexpr (LearnedPositions && B::has_context)
      compute::run<compute::ops::add_rows>(b.compute(), x, b[positions_table{}], b.run().positions);
    else if constexpr (LearnedPositions)
      detail::each_sequence(b, x, b[positions_table{}], [&](auto rows, auto positions, std::int64_t sequence) {
        compute::run<compute::ops::add_positions>(b.compute(), rows, positions, sequence);
      });
    return left;
  }
  /// The same for rows that continue sequences: each has a position of its own.
  template <class B>
  auto forward_cached(const B& b, typename B::token_ids tokens, typename B::view x) const {
    const auto left = look_up(b, tokens, x);
    if constexpr (LearnedPositions)
      compute::run<compute::ops::add_rows>(b.compute(), x, b[positions_table{}], b.run().positions);
    return left;
  }
  template <class B>
  void backward_weight(const B& b, typename B::token_ids tokens, typename B::const_view dx) const
    requires(!Multiplied)
  {
    using l = laid<typename B::layouts>;
    const auto d = b.template gathered<dual<typename l::stream>, dual<typename l::made>>(whole_out{}, dx);
    compute::run<compute::ops::embedding_backward>(b.compute(), tokens, d, b.run().first_word,
                                                   b.gradient(tokens_table{}));
    if constexpr (LearnedPositions && B::has_context)
      compute::run<compute::ops::embedding_backward>(b.compute(), b.run().positions, dx, 0,
                                                     b.gradient(positions_table{}));
    else if constexpr (LearnedPositions)
      detail::each_sequence(
          b, dx, b.gradient(positions_table{}), [&](auto rows, auto positions, std::int64_t sequence) {
            compute::run<compute::ops::add_positions_backward>(b.compute(), rows, sequence, positions);
          });
  }
  /// Multiplied: the gradient of x becomes that of the rows that were looked up.
  template <class B>
  void backward_weight(const B& b, typename B::token_ids tokens, typename B::view dx) const
    requires Multiplied
  {
    compute::run<compute::ops::scale>(b.compute(), elements_of(dx), static_cast<typename B::sum>(multiplier));
    embedding<LearnedPositions>{name, tokens_name, positions_name, vocabulary, width, context}.backward_weight(
        b, tokens, typename B::const_view(dx));
  }

 private:
  template <class B>
  auto look_up(const B& b, typename B::token_ids tokens, typename B::view x) const {
    using l = laid<typename B::layouts>;
    detail::require_rows_of_words<typename B::layouts>();
    const auto sum = b.template room<typename l::made, typename l::stream>(whole_out{}, x);
    compute::run<compute::ops::embedding>(b.compute(), tokens, b[tokens_table{}], b.run().first_word, sum);
    b.template redistribute_in_place<typename l::made, typename l::stream>(sum, x);
    if constexpr (Multiplied)
      compute::run<compute::ops::scale>(b.compute(), elements_of(x), static_cast<typename B::sum>(multiplier));
    return made<typename l::stream>{};
  }
};

struct logits {};                           ///< activation: the logits of this rank's part of the vocabulary
struct greatest : statistic {};             ///< activation: the greatest logit of each row, over the whole vocabulary
struct sum_of_exponentials : statistic {};  ///< activation: the sum of exp(logit - greatest) of each row
struct picked : statistic {};               ///< activation: the logit of each row's target

namespace detail {
inline constexpr activation_set kept_logits = activation_named("head.logits");
}  // namespace detail

/// loss = sum over targets of -log softmax(norm(x) W')[target], with the token embedding as W (`Tied`) or a weight of its own.
/// This rank computes the logits of its own words; over the axis that splits the vocabulary travel three numbers per token
/// (greatest logit, sum of exponentials, the target's logit) and in backward_input the gradient of norm(x). Negative targets are
/// ignored.
/// Shapes: x [rows, width], W [vocabulary, width], logits [rows, vocabulary].
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3 (parallel cross-entropy).
/// `Chosen`: with `Tied`, `is_tied` says at run time which of the two it is (`tied_by_config`). `Capped`: logits z are
/// `logit_cap` tanh(z / `logit_cap`) (Gemma-2).
template <class Norm, bool Tied, bool Chosen = false, bool Capped = false>
struct language_head {
  static constexpr bool tied = Tied;  ///< or may be, where that is `Chosen`
  static constexpr bool takes_classes = true;
  /// Numbers of each row among the targets. A sample's ids are the first `sequence` of them.
  static constexpr int numbers_of_row = 1;
  const char* name = "";
  Norm norm;
  const char* weight_name;  ///< as in "lm_head.weight"
  std::int64_t vocabulary, width;
  double deviation = 0;
  bool is_tied = Tied;
  double logit_cap = 0;  ///< `Capped`: of logits

  using table = parameter<weight, dims<dim::vocabulary>, dims<dim::width>>;
  /// What a tied head has for a weight.
  using tied_table = typename embedding<false>::table;
  template <class Tag>
  using of_row = activation<Tag, life::until_input, dims<>, dims<dim::vocabulary>>;

  /// Tied: `weight_name` is not used.
  constexpr language_head(Norm final_norm, std::int64_t words, const char* of_weight = "", double initial_deviation = 0)
      : norm(final_norm),
        weight_name(of_weight),
        vocabulary(words),
        width(final_norm.width),
        deviation(initial_deviation) {}

  constexpr auto parameters() const {
    if constexpr (Tied && !Chosen)
      return list<>{};
    else
      return list(table{weight_name, {is_tied ? 0 : vocabulary, width}, deviation});
  }
  constexpr auto children() const { return list(norm); }
  constexpr auto activations() const {
    return list(activation<normed, life::until_weight, dims<dim::width>>{{width}, norm.role},
                activation<logits, life::until_weight, dims<dim::vocabulary>>{{vocabulary}, detail::kept_logits},
                of_row<greatest>{}, of_row<sum_of_exponentials>{}, of_row<picked>{},
                activation<d_normed, life::deferred, dims<dim::width>>{{width}},
                gathered_rows<whole_in, life::scratch, dims<dim::width>, dims<dim::vocabulary>>{{{width}}});
  }

  using needs = std::conditional_t<
      Capped,
      compute::facet_list<compute::product_facet, compute::cross_entropy_facet, compute::loss_facet,
                          compute::soft_cap_facet, compute::capped_cross_entropy_facet>,
      compute::facet_list<compute::product_facet, compute::cross_entropy_facet, compute::loss_facet>>;

  /// Of the logits.
  constexpr double training_flops(std::int64_t /*sequence*/) const {
    return 6.0 * static_cast<double>(vocabulary) * static_cast<double>(width);
  }

  template <class Layouts>
  struct laid : product_layouts<Layouts, dims<dim::width>, dims<dim::vocabulary>,
                                typename Layouts::template parameter<typename table::own>, true> {
    using columns = typename Layouts::template edge<dims<dim::vocabulary>>;
    template <class Op>
    using over_words = propagate_through<op::reduce<Op, 1>, columns>;
  };

  /// The logits of this rank's words.
  template <class B>
  void make_logits(const B& b, typename B::const_view h, typename B::view out) const {
    compute::matmul<transpose::no, transpose::yes>(b.compute(), h, words(b), out, typename B::scalar(0));
    if constexpr (Capped)
      compute::run<compute::ops::soft_cap>(b.compute(), typename B::const_row(elements_of(out)),
                                           static_cast<typename B::sum>(logit_cap), elements_of(out));
  }
  /// Final norm and logits: what backward needs.
  template <class B>
  void project(const B& b, typename B::const_view x) const {
    using l = laid<typename B::layouts>;
    detail::require_rows_of_words<typename B::layouts>();
    auto [n] = b.children();
    detail::require_settled<Norm, typename l::x_edge>(n.forward(x, b.edge(normed{})));
    b.make(logits{}, [&](auto v) {
      use_gathered<typename l::x_edge, typename l::x_taken>(
          b, whole_in{}, b[normed{}], true, [&](auto rows, row_range at) { make_logits(b, rows, rows_of(v, at)); });
    });
  }
  /// The loss, summed over the targets that are not ignored: the same number on all ranks that share the vocabulary.
  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    project(b, x);
    sum_up_rows(b, targets);
    return b.add_loss([&](auto sum) {
      compute::run<compute::ops::cross_entropy_loss>(b.compute(), b.vector(greatest{}), b.vector(sum_of_exponentials{}),
                                                     b.vector(picked{}), targets, sum);
    });
  }
  /// The log-probability of each row's target, 0 where it is ignored: the same on all ranks that share the vocabulary. Waits for the queue.
  /// Shapes: `out` [rows] or more, on the host.
  template <class B>
  void target_log_probabilities(const B& b, typename B::const_view x, typename B::token_ids targets,
                                std::span<double> out) const {
    project(b, x);
    sum_up_rows(b, targets);
    read_log_probabilities<1>(b, targets, out);
  }
  /// How many numbers `predict` makes of a row.
  constexpr std::int64_t outputs() const { return vocabulary; }
  /// The logits of one row over the whole vocabulary, on every rank that has a part of it.
  template <class B>
  void predict(const B& b, typename B::const_view x, typename B::row all) const {
    project(b, x);
    const typename B::const_row mine = b.vector(logits{});
    gather_along(b, mine, all, vocabulary_axes<B>{});
  }
  /// The logits of several rows over the whole vocabulary, on the first rank of those that have a part of it. `room` is for the
  /// parts as they come (on a device on every rank); it is not used where the vocabulary is not split. Nothing is written where `all` is empty, as on ranks that
  /// have the same rows along another axis.
  /// Shapes: x [rows, width], where an axis splits the sequence this rank's of them; all [rows, vocabulary] (empty on the other ranks), room
  /// [rows * vocabulary].
  template <class B>
  void predict_rows(const B& b, typename B::const_view x, typename B::view all, typename B::row room) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n] = b.children();
    detail::require_settled<Norm, stream>(n.forward(x, b[normed{}]));
    gather_rows(b, all, room, vocabulary_axes<B>{});
  }
  /// Turns the kept logits into their gradient times `scale`.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::token_ids targets, typename B::sum scale,
                      typename B::view dx) const {
    if constexpr (Capped)
      compute::run<compute::ops::capped_cross_entropy_backward>(
          b.compute(), b[logits{}], b.vector(greatest{}), b.vector(sum_of_exponentials{}), targets, b.run().first_word,
          scale, static_cast<typename B::sum>(logit_cap));
    else
      compute::run<compute::ops::cross_entropy_backward>(b.compute(), b[logits{}], b.vector(greatest{}),
                                                         b.vector(sum_of_exponentials{}), targets, b.run().first_word,
                                                         scale);
    return backward_of_logits(b, x, dx);
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x) const {
    using l = laid<typename B::layouts>;
    auto [n] = b.children();
    use_gathered<typename l::x_edge, typename l::x_taken>(
        b, whole_in{}, b[normed{}], true, [&](auto rows, row_range at) {
          compute::matmul<transpose::yes, transpose::no>(b.compute(), typename B::const_view(rows_of(b[logits{}], at)),
                                                         rows, words_gradient(b), typename B::scalar(1));
        });
    n.backward_weight(x, b[d_normed{}]);
  }

 protected:
  /// What follows from the gradient of the logits, which lies where the kept logits were: the gradient of x.
  template <class B>
  auto backward_of_logits(const B& b, typename B::const_view x, typename B::view dx) const {
    using l = laid<typename B::layouts>;
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto [n] = b.children();
    make_scattered<typename l::dx_made, dual<typename l::x_edge>>(
        b, whole_in{}, b[d_normed{}], [&](auto sum, row_range at) {
          compute::matmul<transpose::no, transpose::no>(b.compute(), typename B::const_view(rows_of(b[logits{}], at)),
                                                        words(b), sum, typename B::scalar(0));
        });
    detail::require_settled<Norm, dual<stream>>(n.backward_input(x, b[d_normed{}], dx, false));
    return made<dual<stream>>{};
  }
  template <class B>
  typename B::const_view words(const B& b) const {
    if constexpr (Chosen)
      return is_tied ? b.run().tied : typename B::const_view(b[weight{}]);
    else if constexpr (Tied)
      return b.run().tied;
    else
      return b[weight{}];
  }
  template <class B>
  typename B::sum_view words_gradient(const B& b) const {
    if constexpr (Chosen)
      return is_tied ? b.run().tied_gradient : typename B::sum_view(b.gradient(weight{}));
    else if constexpr (Tied)
      return b.run().tied_gradient;
    else
      return b.gradient(weight{});
  }

  /// Of each row the greatest logit, the sum of exponentials and the target's logit, over the whole vocabulary: in one pass over logits where this rank has all
  /// of them, but on the host, whose vectors take two. `numbers`: so many has a row among the targets, of which the ids of a sample come first.
  template <int Numbers = 1, class B>
  void sum_up_rows(const B& b, typename B::token_ids targets) const {
    using greatest_made = typename laid<typename B::layouts>::template over_words<maximum>;
    using sum_made = typename laid<typename B::layouts>::template over_words<plus>;
    using whole = typename B::layouts::template edge<dims<>, dims<dim::vocabulary>>;
    using sum = typename B::sum;
    auto& k = b.compute();
    const auto m = b.vector(greatest{}), exponentials = b.vector(sum_of_exponentials{}), of_target = b.vector(picked{});
    if constexpr (takes_all_at_once<B>) {
      if (settles_alone<greatest_made, whole>(b.run().world)) {
        compute::run<compute::ops::fill>(k, m, -(std::numeric_limits<sum>::infinity)());
        compute::run<compute::ops::fill>(k, exponentials, sum(0));
        compute::run<compute::ops::fill>(k, of_target, sum(0));
        if constexpr (Numbers == 1)
          compute::run<compute::ops::add_to_softmax>(k, b[logits{}], targets, b.run().first_word, m, exponentials,
                                                     of_target);
        else
          each_sample<Numbers>(b, targets, [&](typename B::token_ids ids, row_range at) {
            compute::run<compute::ops::add_to_softmax>(k, rows_of(b[logits{}], at), ids, b.run().first_word,
                                                       part_of_row<B>(m, at), part_of_row<B>(exponentials, at),
                                                       part_of_row<B>(of_target, at));
          });
        return;
      }
    }
    compute::run<compute::ops::row_max>(k, b[logits{}], m);
    b.template redistribute_in_place<greatest_made, whole>(b[greatest{}]);
    compute::run<compute::ops::row_sum_exp>(k, b[logits{}], m, exponentials);
    b.template redistribute_in_place<sum_made, whole>(b[sum_of_exponentials{}]);
    if constexpr (Numbers == 1)
      compute::run<compute::ops::pick_target>(k, b[logits{}], targets, b.run().first_word, of_target);
    else
      each_sample<Numbers>(b, targets, [&](typename B::token_ids ids, row_range at) {
        compute::run<compute::ops::pick_target>(k, rows_of(b[logits{}], at), ids, b.run().first_word,
                                                part_of_row<B>(of_target, at));
      });
    b.template redistribute_in_place<sum_made, whole>(b[picked{}]);
  }
  /// `f(ids, rows)` for the ids of each sample, behind which lie the rest of its `Numbers` numbers for each row.
  template <int Numbers, class B, class F>
  static void each_sample(const B& b, typename B::token_ids targets, F&& f) {
    const extent_of_batch e = b.run().extent;
    for (std::int64_t i = 0; i < e.samples; ++i)
      f(typename B::token_ids(row_at<typename B::space>(first_element(targets) + i * Numbers * e.sequence, e.sequence)),
        row_range{i * e.sequence, e.sequence});
  }
  /// Of each row the log-probability of its target, 0 where it is ignored, on the host, once `sum_up_rows` has run. Waits for the queue.
  template <int Numbers, class B>
  static void read_log_probabilities(const B& b, typename B::token_ids targets, std::span<double> out) {
    const auto m = on_host_of(b, b.vector(greatest{})), sum = on_host_of(b, b.vector(sum_of_exponentials{})),
               of_target = on_host_of(b, b.vector(picked{}));
    const auto ids = on_host_of(b, targets);
    const auto n = static_cast<std::size_t>(b.run().extent.sequence);
    for (std::size_t i = 0; i < static_cast<std::size_t>(b.rows()); ++i)
      out[i] = ids[i / n * n * Numbers + i % n] < 0 ? 0
                                                    : static_cast<double>(of_target[i]) - static_cast<double>(m[i]) -
                                                          std::log(static_cast<double>(sum[i]));
  }
  /// A row where the host can read it: the row itself on the host, elsewhere a copy.
  template <class B, class Row>
  static auto on_host_of(const B& b, const Row& row) {
    if constexpr (B::on_host) {
      return row;
    } else {
      std::vector<std::remove_cvref_t<decltype(*first_element(row))>> copy(
          static_cast<std::size_t>(element_count(row)));
      b.queue().copy(row, std::span(copy));
      b.queue().wait();
      return copy;
    }
  }
  template <class B>
  static typename B::sum_row part_of_row(typename B::sum_row all, row_range at) {
    return row_at<typename B::space>(first_element(all) + at.first, at.count);
  }

 private:
  template <class B>
  using kernels_of = std::remove_cvref_t<decltype(std::declval<const B&>().compute())>;
  // A backend on paper calls what the one does that it stands for (`like`).
  template <class Kernels>
  static constexpr bool works_on_host() {
    if constexpr (requires { typename Kernels::like; })
      return std::is_same_v<space_of<typename Kernels::like>, host_memory>;
    else
      return std::is_same_v<space_of<Kernels>, host_memory>;
  }
  template <class B>
  static constexpr bool takes_all_at_once =
      !works_on_host<kernels_of<B>>() &&
      compute::chunked_cross_entropy_facet::offered<kernels_of<B>, typename B::scalar>;
  template <class B>
  using vocabulary_axes =
      typename model::detail::sharding_rules<typename B::layouts::how>::template axes_of<typename B::layouts::mesh_type,
                                                                                         dim::vocabulary>;
  // Of each rank that shares the vocabulary, in the order of their group, its words: cut over one axis after the other, as layouts cut.
  template <class... Axes, class B>
  std::vector<row_range> words_of_ranks(const B& b) const {
    std::vector<row_range> parts{{0, vocabulary}};
    for (const int ranks : {b.run().world.mesh().template extent_or_one<Axes>()...}) {
      std::vector<row_range> finer;
      for (const row_range whole : parts)
        for (int r = 0; r < ranks; ++r) {
          const balanced_split cut{whole.count, ranks};
          finer.push_back({whole.first + cut.offset(r), cut.size(r)});
        }
      parts = std::move(finer);
    }
    return parts;
  }

  template <class B>
  void gather_rows(const B& b, typename B::view all, typename B::row, type_list<>) const {
    if (all.extent(0) > 0) make_logits(b, b[normed{}], all);
  }
  // Each rank's part is [rows, words]; the parts come one behind the other.
  template <class B, class... Axes>
  void gather_rows(const B& b, typename B::view all, typename B::row room, type_list<Axes...>) const {
    auto&& group = b.run().world.template along_if<Axes...>();
    if (group.size() == 1) return gather_rows(b, all, room, type_list<>{});
    using l = laid<typename B::layouts>;
    make_logits(b, b.template gathered<typename l::x_edge, typename l::x_taken>(whole_in{}, b[normed{}]), b[logits{}]);
    const std::int64_t rows = b.rows();
    const std::vector<row_range> words = words_of_ranks<Axes...>(b);
    std::vector<std::int64_t> counts;
    for (const row_range own : words) counts.push_back(rows * own.count);
    const bool is_first = group.rank() == 0;
    const typename B::const_row mine = b.vector(logits{});
    if constexpr (!heddle::v0::detail::kernels_run_on_host<typename B::space>()) {
      all_gather_v(b.queue(), group, mine, room, std::span<const std::int64_t>(counts));
      if (is_first && all.extent(0) > 0) put_beside(b, typename B::const_row(room), all, words);
      detail::keep_until_done<decltype(b.run().world.template along_if<Axes...>())>(b.queue());
    } else {
      if constexpr (!B::on_host) b.queue().wait();
      const auto on_host = [](const auto& row) { return std::span(first_element(row), element_count(row)); };
      group.gather_v(on_host(mine), on_host(is_first ? room : typename B::row{}), std::span<const std::int64_t>(counts),
                     0);
      if (!is_first || all.extent(0) == 0) return;
      const auto* part = on_host(room).data();
      for (const row_range own : words)
        for (std::int64_t r = 0; r < rows; ++r, part += own.count)
          std::copy_n(part, own.count, all.address() + r * vocabulary + own.first);
    }
  }
  // The same of parts in the memory of a device: one kernel copies all of them.
  template <class B>
  static void put_beside(const B& b, typename B::const_row parts, typename B::view all,
                         const std::vector<row_range>& ranks) {
    using T = typename B::scalar;
    const std::int64_t rows = all.extent(0), words = all.extent(1);
    heddle::v0::detail::box_copies<T, typename B::space, 2> copies(b.queue(), parts, elements_of(all));
    for (const row_range own : ranks) {
      heddle::v0::detail::memory_overlap<2> box;
      box.along[0].push_back({0, 0, rows});
      box.along[1].push_back({0, own.first, own.count});
      if (own.count > 0) copies.unpack(box, rows * own.first, {rows, words});
    }
    copies.launch();
  }
  template <class B>
  void gather_along(const B& b, typename B::const_row mine, typename B::row all, type_list<>) const {
    compute::run<compute::ops::copy>(b.compute(), mine, all);
  }
  template <class B, class... Axes>
  void gather_along(const B& b, typename B::const_row mine, typename B::row all, type_list<Axes...>) const {
    auto&& group = b.run().world.template along_if<Axes...>();
    if (group.size() == 1) return compute::run<compute::ops::copy>(b.compute(), mine, all);
    std::vector<std::int64_t> counts;
    for (const row_range own : words_of_ranks<Axes...>(b)) counts.push_back(own.count);
    if constexpr (B::on_host) {
      group.all_gather_v(mine, all, std::span<const std::int64_t>(counts));
    } else {
      all_gather_v(b.queue(), group, mine, all, std::span<const std::int64_t>(counts));
      detail::keep_until_done<decltype(b.run().world.template along_if<Axes...>())>(b.queue());
    }
  }
};

/// A decoder-only language model: embedding, `count` blocks, final norm with head and loss. All blocks are equal, or those of the layers
/// `others` are of a second kind, `other`, as the leading blocks without experts of DeepSeek-V3.
template <class In, class Block, class Out, class Other = no_block>
struct language_model {
  In in;
  const char* block_name;  ///< what names of blocks begin with, as in "h."
  std::int64_t count;
  Block block;
  Out out;
  [[no_unique_address]] Other other{};
  other_layers others{};

  /// Whether there may be blocks of the second kind.
  static constexpr bool two_kinds = !std::is_same_v<Other, no_block>;
  /// Calls `f` with the block of a layer.
  template <class F>
  constexpr decltype(auto) with_block(std::int64_t layer, F&& f) const {
    return with_kind<two_kinds>(others, layer, block, other, f);
  }
  /// Layers with the second kind of block.
  constexpr std::int64_t count_others() const {
    std::int64_t n = 0;
    if constexpr (two_kinds)
      for (std::int64_t l = 0; l < count; ++l) n += others.has(l);
    return n;
  }
};
template <class In, class Block, class Out>
language_model(In, const char*, std::int64_t, Block, Out) -> language_model<In, Block, Out>;
template <class In, class Block, class Out, class Other>
language_model(In, const char*, std::int64_t, Block, Out, Other, other_layers) -> language_model<In, Block, Out, Other>;

/// The same model with another head.
template <class In, class Block, class Out, class Other, class Head>
constexpr auto with_head(const language_model<In, Block, Out, Other>& m, const Head& head) {
  return language_model<In, Block, Head, Other>{m.in, m.block_name, m.count, m.block, head, m.other, m.others};
}

/// Trained numbers of all blocks and both ends.
template <class In, class Block, class Out, class Other>
constexpr std::int64_t count_parameters(const language_model<In, Block, Out, Other>& m) {
  const std::int64_t n = m.count_others();
  return count_parameters(m.in) + (m.count - n) * count_parameters(m.block) + n * count_parameters(m.other) +
         count_parameters(m.out);
}

/// Floating-point operations of one training step per token, in sequences of `sequence` tokens.
template <class In, class Block, class Out, class Other>
constexpr double training_flops(const language_model<In, Block, Out, Other>& m, std::int64_t sequence) {
  const std::int64_t n = m.count_others();
  return training_flops(m.in, sequence) + static_cast<double>(m.count - n) * training_flops(m.block, sequence) +
         static_cast<double>(n) * training_flops(m.other, sequence) + training_flops(m.out, sequence);
}

}  // namespace heddle::inline v0::model::layers
