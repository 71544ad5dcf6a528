// heddle/model/layers/chunked_head.hpp: a language head whose logits come chunk by chunk.
#pragma once

#include <heddle/compute/chunked_cross_entropy.hpp>
#include <heddle/model/layers/ends.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace heddle::inline v0::model::layers {

struct words_of_chunk {};     ///< the dimension of logits that are there at a time; nothing splits it
struct greatest_of_part {};   ///< activation: the greatest logit of each row, over this rank's words
struct d_gathered_normed {};  ///< the gradient of the rows that all ranks' normed rows make together

/// A `language_head` whose logits a rank makes for at most `Words` of its words at a time, in memory that all microbatches share: from forward to backward two numbers of
/// each row are kept, and `backward_input` makes the logits again. Losses and gradients are those of
/// `language_head`, up to rounding. Over the axis that splits the vocabulary travel the same three numbers
/// of each row.
/// Shapes: as `language_head`; logits [rows, Words].
/// Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3; Wijmans et al. 2024, arXiv:2411.09009 (logits not kept); Shoeybi
/// et al. 2019, arXiv:1909.08053, section 3 (split vocabulary).
template <class Norm, bool Tied, int Words>
struct chunked_head : language_head<Norm, Tied> {
  static constexpr int words_at_a_time = Words;
  using whole_head = language_head<Norm, Tied>;

  constexpr explicit chunked_head(const whole_head& of) : whole_head(of) {}

  constexpr auto activations() const {
    using row_of_words = dims<dim::vocabulary>;
    using stream = dims<dim::width>;
    const std::int64_t width = this->width, most = (std::min)(std::int64_t{Words}, this->vocabulary);
    return list(activation<normed, life::until_weight, stream>{{width}, this->norm.role},
                activation<greatest, life::until_input, dims<>, row_of_words>{},
                activation<sum_of_exponentials, life::until_input, dims<>, row_of_words>{},
                activation<picked, life::scratch, dims<>, row_of_words>{},
                activation<greatest_of_part, life::scratch, dims<>, row_of_words>{},
                activation<logits, life::scratch, dims<words_of_chunk>, row_of_words>{{most}},
                activation<d_normed, life::deferred, stream>{{width}},
                gathered_rows<whole_in, life::scratch, stream, row_of_words>{{{width}}},
                gathered_rows<d_gathered_normed, life::scratch, stream, row_of_words>{{{width}}});
  }

  using needs = compute::facet_list<compute::product_facet, compute::elementwise_facet, compute::cross_entropy_facet,
                                    compute::chunked_cross_entropy_facet, compute::loss_facet>;

  /// Final norm.
  template <class B>
  void project(const B& b, typename B::const_view x) const {
    using l = typename whole_head::template laid<typename B::layouts>;
    detail::require_rows_of_words<typename B::layouts>();
    auto [n] = b.children();
    detail::require_settled<Norm, typename l::x_edge>(n.forward(x, b.edge(normed{})));
  }
  /// As that of `language_head`.
  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    sum_up_words(b, x, targets);
    return b.add_loss([&](auto to) {
      compute::run<compute::ops::cross_entropy_loss>(b.compute(), b.vector(greatest{}), b.vector(sum_of_exponentials{}),
                                                     b.vector(picked{}), targets, to);
    });
  }
  /// As that of `language_head`.
  template <class B>
  void target_log_probabilities(const B& b, typename B::const_view x, typename B::token_ids targets,
                                std::span<double> out) const {
    sum_up_words(b, x, targets);
    whole_head::template read_log_probabilities<1>(b, targets, out);
  }
  /// Adds to the gradient of the words, too, which is made of the same logits: weights must be here for them, which `backward_weight` may
  /// not count on.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::token_ids targets, typename B::scalar scale,
                      typename B::view dx) const {
    using T = typename B::scalar;
    using l = laid_in<B>;
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    const typename B::const_view normed_rows = all_rows(b);
    make_scattered<typename l::dx_made, dual<typename l::x_edge>>(
        b, d_gathered_normed{}, b[d_normed{}], [&](auto sum, row_range at) {
          const typename B::const_view rows = rows_of(normed_rows, at);
          const auto of_rows = row_at<typename B::space>(first_element(targets) + at.first, at.count);
          const auto m = part_of<B>(b.vector(greatest{}), at),
                     exponentials = part_of<B>(b.vector(sum_of_exponentials{}), at);
          if constexpr (trains_words<B>)
            compute::chunked_cross_entropy_backward<T>(b.compute(), rows, this->words(b), of_rows, b.run().first_word,
                                                       m, exponentials, scale, b.vector(logits{}), sum,
                                                       this->words_gradient(b));
          else
            compute::chunked_cross_entropy_backward_input<T>(b.compute(), rows, this->words(b), of_rows,
                                                             b.run().first_word, m, exponentials, scale,
                                                             b.vector(logits{}), sum);
        });
    auto [n] = b.children();
    detail::require_settled<Norm, dual<stream>>(n.backward_input(x, b[d_normed{}], dx, false));
    return made<dual<stream>>{};
  }
  /// Of the norm.
  template <class B>
  void backward_weight(const B& b, typename B::const_view x) const {
    auto [n] = b.children();
    n.backward_weight(x, b[d_normed{}]);
  }

  /// As that of `language_head`: each rank makes its words' logits in their place, and their sum with the zeros of the others is all.
  template <class B>
  void predict(const B& b, typename B::const_view x, typename B::row all) const {
    using sum_made = typename laid_in<B>::template over_words<plus>;
    using whole = typename B::layouts::template edge<dims<>, dims<dim::vocabulary>>;
    const std::int64_t count = this->words(b).extent(0);
    project(b, x);
    const auto rows = all_rows(b);
    if constexpr (!std::is_same_v<sum_made, whole>)
      compute::run<compute::ops::fill>(b.compute(), all, typename B::scalar(0));
    this->make_logits(b, rows, as_rows<B>(part_of<B>(all, {b.run().first_word, count}), rows.extent(0)));
    b.template redistribute_in_place<sum_made, whole>(as_rows<B>(all, rows.extent(0)));
  }

 private:
  // Final norm, then of each row the greatest logit, the sum of exponentials and the target's logit.
  template <class B>
  void sum_up_words(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    using l = typename whole_head::template laid<typename B::layouts>;
    using greatest_made = typename l::template over_words<maximum>;
    using sum_made = typename l::template over_words<plus>;
    using whole = typename B::layouts::template edge<dims<>, dims<dim::vocabulary>>;
    project(b, x);
    auto& k = b.compute();
    const auto m = b.vector(greatest{}), sum = b.vector(sum_of_exponentials{}), of_target = b.vector(picked{});
    compute::chunked_cross_entropy<typename B::scalar>(k, all_rows(b), this->words(b), targets, b.run().first_word,
                                                       b.vector(logits{}), m, sum, of_target);
    if constexpr (!std::is_same_v<greatest_made, whole>) {
      compute::run<compute::ops::copy>(k, typename B::const_row(m), b.vector(greatest_of_part{}));
      b.template redistribute_in_place<greatest_made, whole>(b[greatest{}]);
      compute::run<compute::ops::rescale_softmax>(k, b.vector(greatest_of_part{}), m, sum);
    }
    b.template redistribute_in_place<sum_made, whole>(b[sum_of_exponentials{}]);
    b.template redistribute_in_place<sum_made, whole>(b[picked{}]);
  }
  template <class B>
  static constexpr bool trains_words = [] {
    using trained = typename std::remove_cvref_t<decltype(std::declval<const B&>().run())>::trained;
    return trained::template trains<
        std::conditional_t<Tied, typename whole_head::tied_table, typename whole_head::table>>;
  }();
  template <class B>
  using laid_in = typename whole_head::template laid<typename B::layouts>;
  // The normed rows of all ranks that share the vocabulary.
  template <class B>
  static typename B::const_view all_rows(const B& b) {
    return b.template gathered<typename laid_in<B>::x_edge, typename laid_in<B>::x_taken>(whole_in{}, b[normed{}]);
  }
  template <class B>
  static typename B::row part_of(typename B::row x, row_range at) {
    return row_at<typename B::space>(first_element(x) + at.first, at.count);
  }
  template <class B>
  static typename B::view as_rows(typename B::row x, std::int64_t rows) {
    const auto n = static_cast<std::int64_t>(element_count(x));
    return {first_element(x), dynamic_shape<2>(rows, n / rows)};
  }
};

}  // namespace heddle::inline v0::model::layers
