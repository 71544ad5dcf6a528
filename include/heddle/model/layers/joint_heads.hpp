// heddle/model/layers/joint_heads.hpp: a language head and Medusa's, trained together.
#pragma once

#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/ends.hpp>
#include <heddle/model/layers/medusa_head.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle::inline v0::model::layers {

struct d_shared_normed {};  ///< gradient of what all heads read
struct d_one_normed {};     ///< the part of one head in `d_shared_normed`

/// What several heads read behind one norm: y = x. Shapes: x, y [rows, width].
struct no_norm : leaf {
  const char* name = "";
  std::int64_t width = 0;
  activation_set role{};  ///< what recomputation calls its output

  constexpr no_norm(std::int64_t elements, activation_set kept_as) : width(elements), role(kept_as) {}
  static constexpr list<> parameters() { return {}; }
  static constexpr list<> activations() { return {}; }
  using needs = compute::facet_list<compute::elementwise_facet>;
  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    b.give(y, [&](auto v) { compute::run<compute::ops::copy>(b.compute(), elements_of(x), elements_of(v)); });
    return made<typename B::layouts::template edge<dims<dim::width>>>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view /*x*/, typename B::const_view dy, typename B::view dx,
                      bool add) const {
    if (add)
      compute::run<compute::ops::add>(b.compute(), typename B::const_row(elements_of(dx)), elements_of(dy),
                                      elements_of(dx));
    else
      compute::run<compute::ops::copy>(b.compute(), elements_of(dy), elements_of(dx));
    return made<dual<typename B::layouts::template edge<dims<dim::width>>>>{};
  }
  template <class B>
  void backward_weight(const B&, typename B::const_view, typename B::const_view) const {}
};

/// Weights of the losses of heads: `first` decay^k for head k, from 1 on. Source: Cai et al. 2024, arXiv:2401.10774, section 2.2.
struct medusa_weights {
  static constexpr double first = 0.2, decay = 0.8;
};

/// loss = that of the model's head + sum over k = 1, ..., K of first decay^k times that of head k, whose target is k tokens further on; the last k targets of a sample are ignored by it. All read the
/// final norm of x. Inference uses the model's head alone. `Weights`: a type with the constants `first` and `decay`, as `medusa_weights`.
/// Shapes and Source: as `language_head` and `medusa_block`; Cai et al. 2024, arXiv:2401.10774, section 2.2.2 (joint training).
template <class Norm, int K, class Weights = medusa_weights>
struct joint_heads {
  static_assert(K >= 1 && K <= 8, "heddle: joint_heads<Norm, K>: K is the number of heads of Medusa, 1 to 8");
  static constexpr bool tied = false;
  static constexpr bool takes_classes = true;
  using main_layer = language_head<no_norm, false>;
  using head_layer = language_head<medusa_block<no_norm>, false>;
  using table = typename main_layer::table;

  const char* name = "";
  Norm norm;
  main_layer main;
  std::array<head_layer, K> heads;
  std::int64_t vocabulary, width;

  constexpr explicit joint_heads(const language_head<Norm, false>& of)
      : joint_heads(of, std::make_index_sequence<static_cast<std::size_t>(K)>{}) {}

  static constexpr list<> parameters() { return {}; }
  constexpr auto children() const { return children_of_heads(std::make_index_sequence<static_cast<std::size_t>(K)>{}); }
  constexpr auto activations() const {
    using stream = dims<dim::width>;
    return list(activation<normed, life::until_weight, stream>{{width}, norm.role},
                activation<d_shared_normed, life::deferred, stream>{{width}},
                activation<d_one_normed, life::scratch, stream>{{width}});
  }
  using needs = compute::facet_list<compute::elementwise_facet>;
  /// What the loss of head k counts, from 1 on.
  static constexpr double weight_of(int k) noexcept {
    double w = Weights::first;
    for (int i = 0; i < k; ++i) w *= Weights::decay;
    return w;
  }

  /// Final norm and logits of all heads: what backward needs.
  template <class B>
  void project(const B& b, typename B::const_view x) const {
    read(b, x);
    b.children().each([&](auto i, const auto& head) {
      if constexpr (i > 0) head.layer().project(head, b[normed{}]);
    });
  }
  template <class B>
  typename B::loss_type forward(const B& b, typename B::const_view x, typename B::token_ids targets) const {
    static_assert(B::on_host, "heddle: joint_heads shift targets in the host's memory");
    read(b, x);
    auto all = b.children();
    double loss = all.template get<1>().forward(b[normed{}], targets);
    each_head(b, all, targets, [&](const auto& head, double share, auto shifted) {
      loss += share * head.forward(b[normed{}], shifted);
    });
    return loss;
  }
  constexpr std::int64_t outputs() const { return vocabulary; }
  template <class B>
  void predict(const B& b, typename B::const_view x, typename B::row all) const {
    read(b, x);
    const auto heads_of = b.children();
    const auto& head = heads_of.template get<1>();
    head.layer().predict(head, b[normed{}], all);
  }
  template <class B>
  void predict_rows(const B& b, typename B::const_view x, typename B::view all, typename B::row room) const {
    read(b, x);
    const auto heads_of = b.children();
    const auto& head = heads_of.template get<1>();
    head.layer().predict_rows(head, b[normed{}], all, room);
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::token_ids targets, typename B::scalar scale,
                      typename B::view dx) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto all = b.children();
    detail::require_settled<main_layer, dual<stream>>(
        all.template get<1>().backward_input(b[normed{}], targets, scale, b[d_shared_normed{}]));
    each_head(b, all, targets, [&](const auto& head, double share, auto shifted) {
      detail::require_settled<head_layer, dual<stream>>(
          head.backward_input(b[normed{}], shifted, static_cast<typename B::scalar>(share) * scale, b[d_one_normed{}]));
      compute::run<compute::ops::add>(b.compute(), typename B::const_row(b.vector(d_shared_normed{})),
                                      b.vector(d_one_normed{}), b.vector(d_shared_normed{}));
    });
    detail::require_settled<Norm, dual<stream>>(
        all.template get<0>().backward_input(x, b[d_shared_normed{}], dx, false));
    return made<dual<stream>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view x) const {
    b.children().each([&](auto i, const auto& child) {
      if constexpr (i == 0)
        child.backward_weight(x, b[d_shared_normed{}]);
      else
        child.backward_weight(b[normed{}]);
    });
  }

 private:
  static constexpr const char* square_names[] = {
      "medusa_head.0.0.linear", "medusa_head.1.0.linear", "medusa_head.2.0.linear", "medusa_head.3.0.linear",
      "medusa_head.4.0.linear", "medusa_head.5.0.linear", "medusa_head.6.0.linear", "medusa_head.7.0.linear"};
  static constexpr const char* word_names[] = {
      "medusa_head.0.1.weight", "medusa_head.1.1.weight", "medusa_head.2.1.weight", "medusa_head.3.1.weight",
      "medusa_head.4.1.weight", "medusa_head.5.1.weight", "medusa_head.6.1.weight", "medusa_head.7.1.weight"};
  template <std::size_t... Is>
  constexpr joint_heads(const language_head<Norm, false>& of, std::index_sequence<Is...>)
      : norm(of.norm),
        main(no_norm(of.width, of.norm.role), of.vocabulary, of.weight_name, of.deviation),
        heads{head_layer(medusa_block<no_norm>(no_norm(of.width, of.norm.role), square_names[Is]), of.vocabulary,
                         word_names[Is])...},
        vocabulary(of.vocabulary),
        width(of.width) {}
  template <std::size_t... Is>
  constexpr auto children_of_heads(std::index_sequence<Is...>) const {
    return list(norm, main, heads[Is]...);
  }
  template <class B>
  void read(const B& b, typename B::const_view x) const {
    using stream = typename B::layouts::template edge<dims<dim::width>>;
    auto all = b.children();
    detail::require_settled<Norm, stream>(all.template get<0>().forward(x, b.edge(normed{})));
  }
  // Calls f(head, weight of its loss, its targets).
  template <class B, class Children, class F>
  static void each_head(const B& b, const Children& all, typename B::token_ids targets, F&& f) {
    detail::require_whole_samples<std::remove_cvref_t<decltype(b.layer())>, B>();
    const std::int64_t n = b.run().extent.sequence;
    std::vector<std::int32_t> shifted(static_cast<std::size_t>(targets.size()));
    all.each([&](auto i, const auto& head) {
      if constexpr (i >= 2) {
        constexpr std::int64_t k = static_cast<std::int64_t>(i) - 1;
        for (std::int64_t t = 0; t < static_cast<std::int64_t>(shifted.size()); ++t)
          shifted[static_cast<std::size_t>(t)] = t % n + k < n ? targets[static_cast<std::size_t>(t + k)] : -100;
        f(head, weight_of(static_cast<int>(k)), typename B::token_ids(shifted));
      }
    });
  }
};

}  // namespace heddle::inline v0::model::layers
