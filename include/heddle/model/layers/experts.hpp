// heddle/model/layers/experts.hpp: a mixture of experts: a router, and gated MLPs.
#pragma once

#include <heddle/core/monoid.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/model/layers/combinators.hpp>
#include <heddle/model/layers/expert_exchange.hpp>
#include <heddle/model/layers/expert_layouts.hpp>
#include <heddle/model/layers/expert_nodes.hpp>
#include <heddle/model/layers/expert_policies.hpp>
#include <heddle/model/layers/expert_router.hpp>
#include <heddle/model/layers/expert_tensors.hpp>
#include <heddle/model/layers/feed_forward.hpp>
#include <heddle/model/layers/moving_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::model::layers {

/// y = sum over the `chosen` experts e of a token of w_e down_e(A(gate_e(x)) * up_e(x)), with w_e what `Rule` makes of a router's
/// logits. `Rule`: `compute::softmax_of_chosen` as Mixtral has it, `softmax_of_all`, `softmax_choice` as Qwen3-MoE, or
/// `grouped_scores` as DeepSeek-V3. `Limit`:
/// `dropless`, no token is dropped whatever the router chooses, or `capacity`. `Dispatch`: `send_choices`, `gather_rows` or
/// `send_to_nodes<Axes...>`, for axes that rows travel along. `Biases`: `no_biases` or `with_biases`; the bias of `down` is whole on each rank
/// that holds a part of the expert, and the first of them adds it.
///
/// An axis that splits `dim::ffn` splits each expert; y is a sum over it. One that splits `dim::experts` gives its ranks other experts: if
/// they have the same samples y is a sum over it, too; if it splits samples as well, rows travel to the ranks of their experts and back
/// (all-to-all, two forward and two in backward_input, and one of counts forward), and gradients of experts are whole where they are.
/// If an axis splits samples and `dim::ffn`, a row travels to each rank along it, and its outputs are summed where it comes from. An axis that
/// splits sequences is like one that splits samples: each rank routes its own rows.
/// Ranks may have no expert, and experts no token. The gradient of the choices' weights is summed before the router's backward,
/// which every rank then does alike.
///
/// `balance` is the weight of a term of the loss that is least where experts are chosen alike: of T rows, with c_e the choices of expert e and p
/// the softmax of their logits, balance * experts / (chosen T^2) * sum over e of c_e (sum of p_e), which is `balance` where all are. Each
/// rank and microbatch has a term of its own rows, weighted by the number of these; ranks that share documents have one of all their rows. Gradients have it, the loss that is reported does not;
/// `compute().expert_balance` gives the sum.
///
/// Memory: `chosen` routed rows for each row; where rows travel between n ranks room for n times as many, as all may choose the experts of one
/// rank, unless these have a capacity. `send_to_nodes` has room between m nodes for a row to and from each of them, 2m rows for each row, too.
/// Which experts a row chooses is computed again from the logits in each verb, and not kept.
/// Where rows travel between ranks in memory that the host does not use, each verb waits for the queue once: the host learns how many there are.
/// Where many rows travel to small experts they stay in the order in which they come, rank by rank, and experts multiply those of each rank apart.
/// Shapes: x, y [rows, width]; gate, up [routed rows, ffn].
/// Source: Shazeer et al. 2017, arXiv:1701.06538; Jiang et al. 2024, arXiv:2401.04088 (Mixtral); Liu et al. 2025, arXiv:2504.14960;
/// Fedus et al. 2021, arXiv:2101.03961 (balance).
template <class Rule = compute::softmax_of_chosen, class Activation = compute::silu, class Limit = dropless,
          class Dispatch = send_choices, class Biases = no_biases>
struct experts {
  using router_layer = expert_router<Rule>;
  using stream_dims = dims<dim::width>;
  using units = dims<dim::ffn>;

  static constexpr bool routes_rows = true;

  const char* name;
  router_layer router;
  std::int64_t count, chosen, width, ffn;
  double deviation;
  double balance = 0;
  const char *gate_name = "experts.*.w1.weight", *down_name = "experts.*.w2.weight", *up_name = "experts.*.w3.weight";
  [[no_unique_address]] Limit limit;
  [[no_unique_address]] Biases biases{};

  /// `experts_of`: how many there are; `each`: how many of them a token takes. Weights begin as N(0, initial_deviation).
  constexpr experts(const char* called, const char* router_name, std::int64_t experts_of, std::int64_t each,
                    std::int64_t stream, std::int64_t hidden_units, double initial_deviation = 0, Limit most = {})
      : name(called),
        router(router_name, {stream}, {experts_of}, initial_deviation),
        count(experts_of),
        chosen(each),
        width(stream),
        ffn(hidden_units),
        deviation(initial_deviation),
        limit(most) {}

  constexpr auto parameters() const {
    using into = dims<dim::experts, dim::ffn>;
    using out_of = dims<dim::experts, dim::width>;
    const parameter<gate_weights, into, dims<dim::width>> to_gate{gate_name, {count, ffn, width}, deviation};
    const parameter<down_weights, out_of, dims<dim::ffn>> down{down_name, {count, width, ffn}, deviation};
    const parameter<up_weights, into, dims<dim::width>> to_up{up_name, {count, ffn, width}, deviation};
    if constexpr (Biases::has)
      return list(to_gate, down, to_up, parameter<gate_bias, into>{biases.gate, {count, ffn}},
                  parameter<down_bias, out_of>{biases.down, {count, width}},
                  parameter<up_bias, into>{biases.up, {count, ffn}});
    else
      return list(to_gate, down, to_up);
  }
  constexpr auto children() const { return list(router); }
  constexpr auto activations() const {
    const std::int64_t k = chosen;
    constexpr auto kept = detail::kept_hidden;
    constexpr bool all = Dispatch::gathers;
    constexpr bool nodes = Dispatch::inside::size > 0;
    const std::int64_t s = all ? 0 : 1, g = all ? 1 : 0;
    const routed_rows here{k, 0, k}, own{k, s * k, g * k}, come{0, 0, s * k}, once{0, s, 0}, gathered{0, 0, g};
    const routed_limit most{count, k, limit.factor};
    return list(
        activation<scores, life::until_weight, dims<dim::candidates>>{{count}},
        activation<choice_weights, life::scratch, dims<dim::choices>>{{k}},
        routed<expert_counts, life::until_weight, dims<dim::experts>, dim::experts, dim::ffn>{
            {count}, {}, {}, s * elements_per_count},
        routed<gathered_choices, life::until_weight, dims<dim::choices>, dim::experts, dim::ffn>{
            {k}, {0, 0, 2 * g}, {}, (nodes ? 2 : g) * elements_per_count},
        routed<gathered_in, life::until_weight, stream_dims, dim::experts, dim::ffn>{{width}, gathered, kept},
        routed<gathered_weights, life::until_input, dims<dim::choices>, dim::experts, dim::ffn>{{k}, gathered},
        routed<routed_in, life::until_weight, stream_dims, dim::experts, dim::ffn>{{width}, come, kept, 0, most},
        routed<gate, life::until_input, units, dim::experts, dim::ffn>{{ffn}, here, kept, 0, most},
        routed<up, life::until_input, units, dim::experts, dim::ffn>{{ffn}, here, kept, 0, most},
        routed<activated, life::until_weight, units, dim::experts, dim::ffn>{
            {ffn}, here, detail::kept_activated, 0, most},
        routed<routed_out, life::until_input, stream_dims, dim::experts, dim::ffn>{{width}, own, kept, 0, most},
        activation<d_scores, life::deferred, dims<dim::candidates>>{{count}},
        activation<d_choice_weights, life::scratch, dims<dim::choices>>{{k}},
        routed<d_routed_out, life::deferred, stream_dims, dim::experts, dim::ffn>{{width}, here, {}, 0, most},
        routed<d_gate, life::deferred, units, dim::experts, dim::ffn>{{ffn}, here, {}, 0, most},
        routed<d_up, life::deferred, units, dim::experts, dim::ffn>{{ffn}, here, {}, 0, most},
        routed<d_activated, life::scratch, units, dim::experts, dim::ffn>{{ffn}, here, {}, 0, most},
        routed<moved, life::scratch, stream_dims, dim::experts, dim::ffn>{{width}, own, {}, 0, most},
        routed<by_expert, life::scratch, stream_dims, dim::experts, dim::ffn>{{width}, here, {}, 0, most},
        routed<as_received, life::scratch, stream_dims, dim::experts, dim::ffn, typename Dispatch::inside>{
            {nodes ? (std::max)(width, k) : width}, nodes ? routed_rows{0, 0, 2} : come, {}, 0, most},
        routed<copied_weights, life::scratch, dims<dim::choices>, dim::experts, dim::ffn>{{k}, once},
        routed<d_copied_weights, life::scratch, dims<dim::choices>, dim::experts, dim::ffn>{{k}, all ? gathered : once},
        routed<gathered_out, life::scratch, stream_dims, dim::experts, dim::ffn>{{width}, gathered},
        routed<ones_of_rows, life::scratch, dims<dim::choices>, dim::experts, dim::ffn>{
            {1}, Biases::has ? here : routed_rows{}, {}, 0, most});
  }
  template <compute::facet... More>
  using needs_and = compute::facet_list<compute::routing_facet, compute::expert_balance_facet,
                                        compute::grouped_product_facet, compute::gated_facet<Activation>, More...>;
  template <compute::facet... More>
  using with_fills =
      std::conditional_t<Biases::has, needs_and<compute::elementwise_facet, More...>, needs_and<More...>>;
  using needs = std::conditional_t<Limit::drops, with_fills<compute::choice_limit_facet>, with_fills<>>;
  template <class Layouts>
  using laid = detail::experts_laid<Layouts>;
  /// The host must know how many rows travel. Otherwise offsets of experts stay where they are computed.
  template <class Layouts, class Space>
  static constexpr bool routes_on_host = laid<Layouts>::exchanges || router_layer::template counts_on_host<Space>;

  /// Two for each weight of the chosen experts forward, four backward; the router counts its own.
  constexpr double training_flops(std::int64_t /*sequence*/) const {
    return 18.0 * static_cast<double>(chosen) * static_cast<double>(width) * static_cast<double>(ffn);
  }
  /// Choices of at most `rows` rows, and experts, once for each rank that holds a part of an expert.
  template <class Layouts, class Mesh>
  constexpr routing_extents routing_of(const Mesh& mesh, std::int64_t rows) const {
    const std::int64_t copies =
        detail::copies_of_rows(mesh, typename detail::copies_travel<laid<Layouts>, Dispatch>::over{});
    const std::int64_t choices = rows * chosen * copies,
                       senders = detail::senders_of_rows<laid<Layouts>, Dispatch>(mesh);
    return {choices, count * copies, rows * chosen * senders, count * senders};
  }

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    using l = laid<typename B::layouts>;
    auto [score] = b.children();
    score.forward(x, b.edge(scores{}));
    const auto at = route(b, b.makes(expert_counts{}));
    if constexpr (gathers<B>) b.make(gathered_in{}, [&](auto v) { gather(b, x, detail::first_rows(v, at.all)); });
    const auto in = b.makes(gate{}) || b.makes(up{}) ? moved_in(b, at, x) : inputs(b, at);
    fill_ones(b, at);
    const auto product = [&](auto tag, auto weights, auto bias) {
      b.make(tag, [&](auto v) {
        const auto to = detail::first_rows(v, at.rows);
        multiply<transpose::yes>(b, at, in, into(b, at, b[weights]), to, begin_with(b, at, bias, to));
      });
    };
    product(gate{}, gate_weights{}, gate_bias{});
    product(up{}, up_weights{}, up_bias{});
    b.make(activated{}, [&](auto v) {
      compute::run<compute::ops::gated<Activation>>(b.compute(), elements(b, at, gate{}), elements(b, at, up{}),
                                                    elements_of(detail::first_rows(v, at.rows)));
    });
    b.make(routed_out{}, [&](auto v) {
      const auto to = [&] {
        if constexpr (sends<B>)
          return detail::first_rows(b[by_expert{}], at.rows);
        else
          return detail::first_rows(v, at.rows);
      }();
      typename B::sum begun = 0;
      if (adds_down_bias(b, typename laid<typename B::layouts>::units_over{}))
        begun = begin_with(b, at, down_bias{}, to);
      multiply<transpose::yes>(b, at, rows_of(b, at, activated{}), out_of(b, at, b[down_weights{}]), to, begun);
      if constexpr (sends<B>) come_back(b, to, detail::first_rows(v, at.choices));
    });
    b.give(y, [&](auto v) {
      const auto all = of_all(b, at, v);
      compute::run<compute::ops::unpermute>(b.compute(), detail::first_rows(b[routed_out{}], at.choices), at.places,
                                            weights_of(b, at), all);
      if constexpr (gathers<B>) sum(b, all, v);
      b.template redistribute_in_place<typename l::out::made, typename l::out::y>(v);
    });
    return made<typename l::out::y>{};
  }

  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    using l = laid<typename B::layouts>;
    auto [score] = b.children();
    const auto at = route(b, false);
    const auto d_weights = b[d_choice_weights{}];
    const auto d_out = rows_of(b, at, d_routed_out{});
    {
      const auto d = [&] {
        if constexpr (sends<B>)
          return detail::first_rows(b[moved{}], at.choices);
        else
          return d_out;
      }();
      const typename B::const_view d_all = [&] {
        if constexpr (gathers<B>) {
          const auto all = detail::first_rows(b[gathered_out{}], at.all);
          gather(b, dy, all);
          return typename B::const_view(all);
        } else {
          return dy;
        }
      }();
      compute::run<compute::ops::unpermute_backward>(b.compute(), d_all,
                                                     detail::first_rows(b[routed_out{}], at.choices), at.places,
                                                     weights_of(b, at), d, d_weights_of(b, at));
      sum_copies(b, at, d_weights);
      if constexpr (sends<B>) go(b, d, d_out);
    }
    // What the weights of choices do to y is as much a sum as y is.
    b.template redistribute_in_place<typename l::out::made, typename l::out::y>(d_weights);
    const auto d_act = rows_of(b, at, d_activated{});
    multiply<transpose::no>(b, at, d_out, out_of(b, at, b[down_weights{}]), d_act);
    compute::run<compute::ops::gated_backward<Activation>>(b.compute(), elements(b, at, gate{}), elements(b, at, up{}),
                                                           elements_of(d_act), elements(b, at, d_gate{}),
                                                           elements(b, at, d_up{}));
    const auto d_in = rows_of(b, at, by_expert{});
    multiply<transpose::no>(b, at, rows_of(b, at, d_gate{}), into(b, at, b[gate_weights{}]), d_in);
    multiply<transpose::no>(b, at, rows_of(b, at, d_up{}), into(b, at, b[up_weights{}]), d_in, 1);
    if constexpr (sends<B>) {
      const auto d = detail::first_rows(b[moved{}], at.choices);
      come_back(b, d_in, d);
      compute::run<compute::ops::permute_backward>(b.compute(), d, at.places, dx);
    } else {
      const auto all = of_all(b, at, dx);
      compute::run<compute::ops::permute_backward>(b.compute(), d_in, at.places, all);
      if constexpr (gathers<B>) sum(b, all, dx);
    }
    b.template redistribute_in_place<typename l::in::dx_made, dual<typename l::in::x_edge>>(dx);
    score.layer().choose_backward(score, b[scores{}], at.ids, b[choice_weights{}], d_weights, b[d_scores{}]);
    if (balance > 0) add_balance(b, at.ids);
    using routed_dx = typename router_layer::template laid<typename B::layouts>::dx_made;
    detail::require_settled<router_layer, dual<typename l::in::x_edge>>(made<routed_dx>{});
    score.backward_input(x, b[d_scores{}], dx, true);
    return made<dual<typename l::in::x_edge>>{};
  }

  template <class B>
  void backward_weight(const B& b, typename B::const_view x, typename B::const_view /*dy*/) const {
    auto [score] = b.children();
    const auto at = route(b, false);
    [[maybe_unused]] const auto in = sends<B> ? inputs(b, at) : moved_in(b, at, x);
    [[maybe_unused]] const auto d_out = rows_of(b, at, d_routed_out{});
    if constexpr (B::template trains<down_weights>)
      add_products(b, at, d_out, rows_of(b, at, activated{}), out_of(b, at, b.gradient(down_weights{})));
    if constexpr (B::template trains<gate_weights>)
      add_products(b, at, rows_of(b, at, d_gate{}), in, into(b, at, b.gradient(gate_weights{})));
    if constexpr (B::template trains<up_weights>)
      add_products(b, at, rows_of(b, at, d_up{}), in, into(b, at, b.gradient(up_weights{})));
    if constexpr (Biases::has) {
      fill_ones(b, at);
      add_to_bias(b, at, gate_bias{}, rows_of(b, at, d_gate{}));
      add_to_bias(b, at, up_bias{}, rows_of(b, at, d_up{}));
      // Where a row travels to each rank with a part of an expert, gradients are summed over these ranks.
      if (adds_down_bias(b, typename laid<typename B::layouts>::copied_over{})) add_to_bias(b, at, down_bias{}, d_out);
    }
    score.backward_weight(x, b[d_scores{}]);
  }

 private:
  // The gradient of the term that is least where experts are chosen alike.
  template <class B, class Ids>
  void add_balance(const B& b, const Ids& ids) const {
    if constexpr (B::has_context) {  // of the rows of all ranks that share documents
      using sum = typename B::sum;
      std::vector<sum> all(static_cast<std::size_t>(count) + 1);
      all.back() = static_cast<sum>(own_rows(b));
      for (const std::int32_t e : ids.elements())
        if (e >= 0) ++all[static_cast<std::size_t>(e)];
      [&]<class... Axes>(type_list<Axes...>) {
        (b.run().world.template along_if<Axes>().all_reduce(std::span(all), plus{}), ...);
      }(typename B::layouts::context_axes{});
      if (own_rows(b) > 0)
        compute::run<compute::ops::counted_balance_backward>(
            b.compute(), b[scores{}], std::span<const sum>(all).first(static_cast<std::size_t>(count)),
            balance_scale(b, static_cast<double>(all.back())), b[d_scores{}]);
    } else if (const std::int64_t rows = own_rows(b); rows > 0) {
      compute::run<compute::ops::expert_balance_backward>(b.compute(), b[scores{}], ids,
                                                          balance_scale(b, static_cast<double>(rows)), b[d_scores{}]);
    }
  }
  // A microbatch counts as its rows do in the step's loss.
  template <class B>
  typename B::sum balance_scale(const B& b, double rows) const {
    const double alike = static_cast<double>(chosen) * rows;
    return static_cast<typename B::sum>(balance * static_cast<double>(count) / alike) * b.run().loss_scale;
  }
  // Whether rows go to other ranks; `route` refuses to gather them elsewhere than on the host.
  template <class B>
  static constexpr bool travels = laid<typename B::layouts>::exchanges && (B::on_host || !Dispatch::gathers);
  template <class B>
  static constexpr bool gathers = travels<B> && Dispatch::gathers;
  template <class B>
  static constexpr bool sends = travels<B> && !Dispatch::gathers;
  template <class B>
  static constexpr bool by_nodes = travels<B> && Dispatch::inside::size > 0;
  // The axes between nodes, and those inside one, where rows are gathered.
  template <class B>
  using gathers_over = detail::dispatch_axes<typename B::layouts, typename laid<typename B::layouts>::exchange,
                                             typename Dispatch::inside>;
  template <class B>
  using axes_between = typename gathers_over<B>::between;
  template <class B>
  using axes_inside = typename gathers_over<B>::inside;
  // Where rows are, in one verb.
  template <class Space>
  struct routes {
    matrix_view<const std::int32_t, Space> ids, places;
    row_view<const std::int32_t, Space> sources;
    row_view<const std::int64_t, Space> offsets;  // of this rank's experts, among `rows`
    std::int64_t own = 0;                         // experts of this rank
    std::int64_t choices = 0;                     // of this rank's rows: those that are in `sources`
    std::int64_t rows = 0;                        // of this rank's experts
    std::int64_t copies = 1;                      // of each choice: ranks that hold parts of its expert
    std::int64_t all = 0;                         // of all ranks, where these are gathered
  };
  // Which experts each row takes, from its scores. `asks`: whether the other ranks are asked what they send; else it is known.
  template <class B>
  auto route(const B& b, [[maybe_unused]] bool asks) const {
    using l = laid<typename B::layouts>;
    constexpr bool counted = travels<B> || !l::exchanges;
    static_assert(detail::rows_are_gathered_on_the_host<counted, typename l::exchange, typename B::space>,
                  "heddle: experts with gather_rows or send_to_nodes gather rows in the host's memory only: where "
                  "tensors lie elsewhere take send_choices, or split experts over an axis that splits no samples or "
                  "sequences");
    static_assert(
        detail::axes_inside_a_node<gathers_over<B>::fit, typename Dispatch::inside, typename B::layouts::how>,
        "heddle: send_to_nodes<Axes...> names the axes inside a node: some, not all, of those that rows travel along, "
        "each of which splits samples or sequences and dim::experts or dim::ffn");
    routing_memory<typename B::space>& memory = *b.run().routing;
    const std::int64_t rows = own_rows(b);
    const auto& ranks_of = b.run().world.mesh();
    const std::int64_t copies = gathers<B> ? 1 : detail::copies_of_rows(ranks_of, typename l::copied_over{});
    memory.reserve(b.queue(), routing_of<typename B::layouts>(ranks_of, rows));
    const auto ids = memory.ids(rows, chosen), places = memory.places(rows, chosen * copies);
    const auto sources = memory.sources(rows * chosen * copies);
    const auto [score] = b.children();
    score.layer().choose(score, b[scores{}], ids, b[choice_weights{}]);
    const auto kept = [&] {
      if constexpr (Limit::drops) {
        const auto some = memory.kept(rows, chosen);
        compute::run<compute::ops::limit_choices<typename Limit::keep>>(
            b.compute(), ids, b[choice_weights{}], count, routed_limit{count, chosen, limit.factor}.of(rows), some);
        return some;
      } else {
        return ids;
      }
    }();
    const expert_range mine = detail::own_experts<typename B::layouts>(b.run().world, count);
    if constexpr (gathers<B>) {
      exchange_tables& t = memory.exchange();
      auto& ranks = group(b, axes_inside<B>{});
      if constexpr (by_nodes<B>) {
        detail::find_nodes<typename B::layouts>(t.nodes, b.run().world, count, axes_between<B>{}, axes_inside<B>{});
        detail::choose_nodes(b.compute(), t.nodes, kept);
      }
      if (asks) {
        if constexpr (by_nodes<B>)
          detail::choices_to_nodes(group(b, axes_between<B>{}), ranks, t, kept);
        else
          detail::gather_choices(ranks, t, kept.elements(), rows, chosen);
        detail::keep_choices(t, b[gathered_choices{}]);
        if constexpr (by_nodes<B>) detail::keep_arrived(t, b[gathered_choices{}]);
        gather(b, b[choice_weights{}], detail::first_rows(b[gathered_weights{}], t.rows_received()));
      } else {
        detail::read_choices<typename B::scalar>(t, b[gathered_choices{}], ranks.size(), chosen);
        if constexpr (by_nodes<B>) detail::read_arrived<typename B::scalar>(t, b[gathered_choices{}]);
      }
      const std::int64_t all = t.rows_received();
      t.order.resize(t.choices.size());
      t.back.resize(t.choices.size());
      t.offsets.resize(static_cast<std::size_t>(mine.count) + 1);
      const matrix_view<std::int32_t> to{t.back.data(), dynamic_shape<2>(all, chosen)};
      compute::run<compute::ops::route>(b.compute(), matrix_view<const std::int32_t>(t.choices.data(), to.shape()),
                                        mine.first, std::span(t.offsets), std::span(t.order), to);
      const std::int64_t used = t.offsets.back();
      return routes<typename B::space>{
          ids, to, std::span(t.order).first(static_cast<std::size_t>(used)), t.offsets, mine.count, used, used, 1, all};
    } else if constexpr (travels<B>) {
      exchange_tables& t = memory.exchange();
      auto& found = memory.exchange_routes();
      detail::find_members<typename B::layouts>(t, b.run().world, count, copies, typename l::exchange{});
      const auto to_ranks = memory.offsets(static_cast<std::int64_t>(t.wanted.size()));
      compute::run<compute::ops::route>(b.compute(), found.numbers_of(b.queue(), t, kept), 0, to_ranks, sources,
                                        places);
      found.count(b.queue(), group(b), t, to_ranks, asks, b[expert_counts{}], mine.count);
      const auto offsets = found.arrange(b.queue(), t, mine.count, 2 * b[gate{}].extent(1));
      return routes<typename B::space>{
          ids, places, memory.sources(t.rows_sent()), offsets, mine.count, t.rows_sent(), t.rows_received(), copies, 0};
    } else {
      const auto offsets = memory.offsets(mine.count);
      compute::run<compute::ops::route>(b.compute(), kept, mine.first, offsets, sources, places);
      std::int64_t used = (std::min)(rows * chosen, b[moved{}].extent(0));  // the most that there may be
      if constexpr (B::on_host) used = offsets.back();                      // just as many as there are
      if constexpr (requires { B::space::routes_evenly; }) {
        const balanced_split even{rows * chosen, count};
        used = (std::min)(used, even.offset(mine.first + mine.count) - even.offset(mine.first));
      }
      return routes<typename B::space>{ids, places, memory.sources(used), offsets, mine.count, used, used};
    }
  }

  template <class B>
  static std::int64_t own_rows(const B& b) {
    return b.template own_rows<stream_dims>().count;
  }
  // The weights of choices as rows are moved by them: once for each rank that holds a part of the expert. Made from those of
  // the rule; their gradients are summed.
  template <class B, class Routes, class Tag>
  static auto copied(const B& b, const Routes& at, Tag tag) {
    return matrix_view<typename B::scalar, typename B::space>(b[tag].address(), at.places.shape());
  }
  template <class B, class Routes>
  static typename B::const_view weights_of(const B& b, const Routes& at) {
    if constexpr (gathers<B>) return detail::first_rows(b[gathered_weights{}], at.all);
    if constexpr (sends<B>)
      if (at.copies > 1) {
        const auto to = copied(b, at, copied_weights{});
        detail::copy_each<typename B::scalar, typename B::space>(b.queue(), b[choice_weights{}], at.copies, to);
        return to;
      }
    return b[choice_weights{}];
  }
  template <class B, class Routes>
  static typename B::view d_weights_of(const B& b, const Routes& at) {
    if constexpr (gathers<B>) return detail::first_rows(b[d_copied_weights{}], at.all);
    if constexpr (sends<B>)
      if (at.copies > 1) return copied(b, at, d_copied_weights{});
    return b[d_choice_weights{}];
  }
  template <class B, class Routes>
  static void sum_copies([[maybe_unused]] const B& b, [[maybe_unused]] const Routes& at,
                         [[maybe_unused]] typename B::view d_weights) {
    if constexpr (gathers<B>) sum(b, detail::first_rows(b[d_copied_weights{}], at.all), d_weights);
    if constexpr (sends<B>)
      if (at.copies > 1)
        detail::sum_each<typename B::scalar, typename B::space>(b.queue(), copied(b, at, d_copied_weights{}), at.copies,
                                                                d_weights);
  }

  template <class B, class Routes, class Tag>
  static auto rows_of(const B& b, const Routes& at, Tag tag) {
    return detail::first_rows(b[tag], at.rows);
  }
  template <class B, class Routes, class Tag>
  static auto elements(const B& b, const Routes& at, Tag tag) {
    return elements_of(rows_of(b, at, tag));
  }
  // Where the experts' inputs lie.
  template <class B, class Routes>
  static auto inputs(const B& b, const Routes& at) {
    if constexpr (sends<B>)
      return rows_of(b, at, routed_in{});
    else
      return rows_of(b, at, moved{});
  }
  // The same, with the rows of x moved there.
  template <class B, class Routes>
  auto moved_in(const B& b, const Routes& at, typename B::const_view x) const {
    const auto own = detail::first_rows(b[moved{}], at.choices);
    if constexpr (gathers<B>)
      compute::run<compute::ops::permute>(b.compute(), detail::first_rows(b[gathered_in{}], at.all), at.sources, own);
    else if constexpr (sends<B>)
      b.make(routed_in{}, [&](auto v) {
        compute::run<compute::ops::permute>(b.compute(), x, at.sources, own);
        go(b, own, detail::first_rows(v, at.rows));
      });
    else
      compute::run<compute::ops::permute>(b.compute(), x, at.sources, own);
    return inputs(b, at);
  }

  // ---- products of rows and their experts' weights ------------------------------------------------------------------
  // f(rows, their offsets) for rows that lie by expert: all of them, or those of each rank where they stay as they come.
  template <class B, class Routes, class F>
  static void each_run([[maybe_unused]] const B& b, const Routes& at, F&& f) {
    if constexpr (sends<B> && B::on_host) {
      if (const exchange_tables& t = b.run().routing->exchange(); t.by_member) {
        row_range rows;
        for (std::size_t m = 0, n = t.offsets.size(); m < t.received.size(); ++m, rows.first += rows.count) {
          rows.count = t.received[m];
          f(rows, row_view<const std::int64_t, typename B::space>(t.member_offsets).subspan(m * n, n));
        }
        return;
      }
    }
    f(row_range{0, at.rows}, at.offsets);
  }
  template <transpose TB, class B, class Routes, class W>
  static void multiply(const B& b, const Routes& at, typename B::const_view x, W w, typename B::view y,
                       typename B::sum beta = 0) {
    each_run(b, at, [&](row_range rows, auto offsets) {
      compute::grouped_matmul<TB>(b.compute(), layers::rows_of(x, rows), offsets, w, layers::rows_of(y, rows), beta);
    });
  }
  template <class B, class Routes, class W>
  static void add_products(const B& b, const Routes& at, typename B::const_view x, typename B::const_view dy, W dw) {
    each_run(b, at, [&](row_range rows, auto offsets) {
      compute::run<compute::ops::grouped_matmul_backward_weight>(
          b.compute(), layers::rows_of(x, rows), layers::rows_of(dy, rows), offsets, dw, typename B::sum(1));
    });
  }

  // ---- biases, as products of a column of ones with rows of one matrix for each expert -----------------------------
  template <class B, class Routes>
  static void fill_ones([[maybe_unused]] const B& b, [[maybe_unused]] const Routes& at) {
    if constexpr (Biases::has)
      compute::run<compute::ops::fill>(b.compute(), elements(b, at, ones_of_rows{}), typename B::sum(1));
  }
  template <class B, class Routes, class T>
  static auto rows_of_biases(const Routes& at, matrix_view<T, typename B::space> m, std::int64_t columns) {
    return view<T, dynamic_shape<3>, typename B::space>(m.address(), dynamic_shape<3>(at.own, 1, columns));
  }
  // Each row of y is the bias of its expert, and what else is made there is added: with the factor that this gives.
  template <class B, class Routes, class Tag>
  static typename B::sum begin_with([[maybe_unused]] const B& b, [[maybe_unused]] const Routes& at,
                                    [[maybe_unused]] Tag tag, [[maybe_unused]] typename B::view y) {
    if constexpr (Biases::has)
      multiply<transpose::no>(b, at, rows_of(b, at, ones_of_rows{}), rows_of_biases<B>(at, b[tag], y.extent(1)), y);
    return Biases::has ? 1 : 0;
  }
  template <class B, class Routes, class Tag>
  static void add_to_bias(const B& b, const Routes& at, Tag tag, typename B::const_view dy) {
    if constexpr (B::template trains<Tag>)
      add_products(b, at, rows_of(b, at, ones_of_rows{}), dy, rows_of_biases<B>(at, b.gradient(tag), dy.extent(1)));
  }
  // Whether this rank is the first along the axes `Over`.
  template <class B, class Over>
  static bool adds_down_bias([[maybe_unused]] const B& b, [[maybe_unused]] Over over) {
    if constexpr (Biases::has)
      return detail::is_first_along<typename B::layouts>(b.run().world, over);
    else
      return false;
  }

  // ---- weights, expert by expert ------------------------------------------------------------------------------------
  template <class B, class Routes, class T>
  static auto into(const B& b, const Routes& at, matrix_view<T, typename B::space> m) {
    return view<T, dynamic_shape<3>, typename B::space>(m.address(),
                                                        dynamic_shape<3>(at.own, b[gate{}].extent(1), m.extent(1)));
  }
  template <class B, class Routes, class T>
  auto out_of(const B&, const Routes& at, matrix_view<T, typename B::space> m) const {
    return view<T, dynamic_shape<3>, typename B::space>(m.address(), dynamic_shape<3>(at.own, width, m.extent(1)));
  }

  // ---- between ranks ------------------------------------------------------------------------------------------------
  template <class B, class... Tags>
  static auto& group(const B& b, type_list<Tags...>) {
    return b.run().world.template along_if<Tags...>();
  }
  template <class B>
  static auto& group(const B& b) {
    return group(b, typename laid<typename B::layouts>::exchange{});
  }
  // Rows of all ranks, or of those that send some to this rank's node, and back their sums.
  template <class B>
  static void gather(const B& b, typename B::const_view from, typename B::view to) {
    between_ranks(
        b, from, to, [](auto&&... of) { detail::to_nodes(of...); }, [](auto&&... of) { detail::gather_rows(of...); });
  }
  template <class B>
  static void sum(const B& b, typename B::const_view from, typename B::view to) {
    between_ranks(
        b, from, to, [](auto&&... of) { detail::sums_from_nodes(of...); },
        [](auto&&... of) { detail::sum_rows(of...); });
  }
  // by_nodes_of(backend, group between nodes, group inside one, tables, room, from, to): where rows travel in two steps;
  // of_ranks(group, tables, elements of from, elements of to, width): where they travel in one.
  template <class B, class ByNodes, class OfRanks>
  static void between_ranks(const B& b, typename B::const_view from, typename B::view to,
                            [[maybe_unused]] ByNodes by_nodes_of, [[maybe_unused]] OfRanks of_ranks) {
    exchange_tables& t = b.run().routing->exchange();
    if constexpr (by_nodes<B>)
      by_nodes_of(b.compute(), group(b, axes_between<B>{}), group(b, axes_inside<B>{}), t, b[as_received{}].address(),
                  from, to);
    else
      of_ranks(group(b), t, elements_of(from), elements_of(to), to.extent(1));
  }
  // Where to make rows of all ranks, where these are gathered, of which `own` are this rank's.
  template <class B, class Routes>
  static typename B::view of_all(const B& b, [[maybe_unused]] const Routes& at, [[maybe_unused]] typename B::view own) {
    if constexpr (gathers<B>)
      return detail::first_rows(b[gathered_out{}], at.all);
    else
      return own;
  }
  // Rows of this rank's choices to where their experts are, where they lie by expert.
  template <class B>
  static void go(const B& b, typename B::const_view from, typename B::view to) {
    exchange_tables& t = b.run().routing->exchange();
    const auto came = t.stays() ? to : detail::first_rows(b[as_received{}], to.extent(0));
    detail::send_rows<typename B::scalar, typename B::space>(b.queue(), group(b), t, from, t.sent, came, t.received);
    if (!t.stays())
      compute::run<compute::ops::permute>(b.compute(), came, b.run().routing->exchange_routes().order(t), to);
  }
  // And back.
  template <class B>
  static void come_back(const B& b, typename B::const_view from, typename B::view to) {
    exchange_tables& t = b.run().routing->exchange();
    typename B::const_view leaves = from;
    if (!t.stays()) {
      const auto by_rank = detail::first_rows(b[as_received{}], from.extent(0));
      compute::run<compute::ops::permute>(b.compute(), from, b.run().routing->exchange_routes().back(t), by_rank);
      leaves = by_rank;
    }
    detail::send_rows<typename B::scalar, typename B::space>(b.queue(), group(b), t, leaves, t.received, to, t.sent);
  }
};

}  // namespace heddle::inline v0::model::layers
