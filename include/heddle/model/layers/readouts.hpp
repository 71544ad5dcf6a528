// heddle/model/layers/readouts.hpp: last layers of pairs (x, y): squared error, mean head.
#pragma once

#include <heddle/model/layers/ends.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace heddle::inline v0::model::layers {

struct predicted {};   ///< activation: f(x), which is compared with y
struct row_mean {};    ///< activation: the mean over the positions of each sample
struct d_row_mean {};  ///< gradient of `row_mean`

namespace detail {
template <bool Ok, class Readout, class Edge>
inline constexpr bool prediction_is_whole = Ok;
}  // namespace detail

/// loss = sum over samples and outputs of (f(x) - y)^2, with a linear f.
/// Shapes: x [rows, width]; f(x), y [rows, outputs].
template <class Readout>
struct squared_error {
  static constexpr bool tied = false;
  static constexpr bool takes_classes = false;
  const char* name = "";
  Readout readout;
  std::int64_t width;

  constexpr explicit squared_error(Readout f) : readout(f), width(f.in[0]) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(readout); }
  constexpr auto activations() const {
    return list(activation<predicted, life::until_weight, typename Readout::out_dims>{readout.out});
  }
  using needs = compute::facet_list<compute::squared_error_facet>;

  template <class Layouts>
  struct laid : Readout::template laid<Layouts> {
    using y_edge = typename Layouts::template edge<typename Readout::out_dims>;
    static_assert(
        detail::prediction_is_whole<std::is_same_v<y_edge, typename Layouts::template edge<dims<>>>, Readout, y_edge>,
        "heddle: squared_error compares whole rows of outputs: leave their dimension out of the sharding");
  };

  template <class B>
  void project(const B& b, typename B::const_view x) const {
    using l = laid<typename B::layouts>;
    auto [f] = b.children();
    detail::require_settled<Readout, typename l::y_edge>(f.forward(x, b.edge(predicted{})));
  }
  /// How many numbers `predict` makes of a row.
  constexpr std::int64_t outputs() const {
    std::int64_t n = 1;
    for (const std::int64_t extent : readout.out) n *= extent;
    return n;
  }
  /// f(x) of one row.
  template <class B>
  void predict(const B& b, typename B::const_view x, typename B::row all) const {
    project(b, x);
    compute::run<compute::ops::copy>(b.compute(), typename B::const_row(b.vector(predicted{})), all);
  }
  /// The same number on all ranks that share the rows.
  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::const_row targets) const {
    project(b, x);
    return b.add_loss(
        [&](auto sum) { compute::run<compute::ops::squared_error>(b.compute(), b.vector(predicted{}), targets, sum); });
  }
  /// Turns the kept prediction into its gradient times `scale`.
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_row targets, typename B::scalar scale,
                      typename B::view dx) const {
    using l = laid<typename B::layouts>;
    auto [f] = b.children();
    compute::run<compute::ops::squared_error_backward>(b.compute(), b.vector(predicted{}), targets, scale);
    f.backward_input(x, b[predicted{}], dx);
    b.template redistribute_in_place<typename l::dx_made, dual<typename l::x_edge>>(dx);
    return made<dual<typename l::x_edge>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x) const {
    auto [f] = b.children();
    f.backward_weight(x, b[predicted{}]);
  }
};

namespace detail {
// The vocabulary of a head that has one, which may be split.
template <class Head>
struct words_of_head {
  constexpr explicit words_of_head(const Head&) {}
};
template <class Head>
  requires requires(const Head& head) { head.vocabulary; }
struct words_of_head<Head> {
  std::int64_t vocabulary;
  constexpr explicit words_of_head(const Head& head) : vocabulary(head.vocabulary) {}
};
}  // namespace detail

/// A head on the mean of each sample's rows, such as the pixels of an image: one target for each sample, a class
/// (`language_head`) or numbers (`squared_error`). What the head keeps has memory for as many rows as the samples have.
/// Shapes: x [samples * rows, width]; the head's x [samples, width].
template <class Head>
struct pooled : detail::words_of_head<Head> {
  static_assert(!Head::tied, "heddle: pooled takes a head with a weight of its own");
  static constexpr bool tied = false;
  static constexpr bool takes_classes = Head::takes_classes;
  static constexpr bool takes_means = true;
  const char* name = "";
  Head head;

  constexpr explicit pooled(Head of) : detail::words_of_head<Head>(of), head(of) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return list(head); }
  constexpr auto activations() const {
    return list(activation<row_mean, life::until_weight, dims<dim::width>>{{head.width}},
                activation<d_row_mean, life::scratch, dims<dim::width>>{{head.width}});
  }
  using needs = compute::facet_list<compute::image_facet>;

  /// The head computes once for each sample: of what its own count for each row, the rest is taken back.
  constexpr double training_flops(std::int64_t rows) const {
    return layers::training_flops(head, 1) / static_cast<double>(rows) - layers::training_flops(head, rows);
  }

  template <class B>
  void project(const B& b, typename B::const_view x) const {
    average(b, x);
    auto run = of_samples(b);
    auto [h] = b.children(run);
    h.layer().project(h, per_sample(b, row_mean{}));
  }
  constexpr std::int64_t outputs() const { return head.outputs(); }
  /// What the head makes of the mean of one sample's rows.
  template <class B>
  void predict(const B& b, typename B::const_view x, typename B::row all) const {
    average(b, x);
    auto run = of_samples(b);
    auto [h] = b.children(run);
    h.layer().predict(h, per_sample(b, row_mean{}), all);
  }
  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, const auto& targets) const {
    average(b, x);
    auto run = of_samples(b);
    auto [h] = b.children(run);
    return h.forward(per_sample(b, row_mean{}), targets);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view /*x*/, const auto& targets, typename B::scalar scale,
                      typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto run = of_samples(b);
    auto [h] = b.children(run);
    detail::require_settled<Head, dual<stream>>(
        h.backward_input(per_sample(b, row_mean{}), targets, scale, per_sample(b, d_row_mean{})));
    compute::run<compute::ops::mean_of_rows_backward>(b.compute(), per_sample(b, d_row_mean{}), b.run().extent.sequence,
                                                      dx);
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view /*x*/) const {
    auto run = of_samples(b);
    auto [h] = b.children(run);
    h.backward_weight(per_sample(b, row_mean{}));
  }

 private:
  template <class B>
  static void average(const B& b, typename B::const_view x) {
    b.make(row_mean{}, [&](auto) {
      compute::run<compute::ops::mean_of_rows>(b.compute(), x, b.run().extent.sequence, per_sample(b, row_mean{}));
    });
  }
  // The head sees a row for each sample.
  template <class B>
  static auto of_samples(const B& b) {
    auto run = b.run();
    run.extent.sequence = 1;
    return run;
  }
  template <class B, class Tag>
  static typename B::view per_sample(const B& b, Tag tag) {
    const auto all = b[tag];
    return {all.address(), dynamic_shape<2>(b.run().extent.samples, all.extent(1))};
  }
};

/// A network on pairs: `in` makes the residual stream from x, then `count` equal blocks, then the loss.
template <class In, class Block, class Out>
constexpr auto network(In in, const char* block_name, std::int64_t count, Block block, Out out) {
  return language_model<In, Block, Out>{in, block_name, count, block, out};
}

}  // namespace heddle::inline v0::model::layers
