// tests/model/experts_test.cpp: the mixture of experts on any mesh equals one written from the definition, in double.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/folded_sharding.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/model/parameter_buckets.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

using namespace model_test;
namespace ly = heddle::model::layers;
using hd::dp, hd::ep, hd::tp;

namespace {

using backend = hd::compute::host<>;
using numbers = std::vector<double>;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<tp>>;
using same_samples = md::megatron_with_experts<>;
using other_samples = md::expert_parallel<>;
// Attention over tp and experts over ep and tp: two ways to use the same ranks. Those along tp have the same samples, those along ep others.
using folded = hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::samples, ep>,
                            hd::dim::split<hd::dim::heads, tp>, hd::dim::split<hd::dim::experts, ep>,
                            hd::dim::split<hd::dim::experts, tp>>;

// Attention over tp and dp, experts over etp (parts of each expert), ep (other experts) and edp (the same experts): an axis for each pair, so
// that every folding is a mesh of one type.
struct etp {};
struct edp {};
using attention_mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using expert_mesh = hd::mesh<hd::axis<edp>, hd::axis<ep>, hd::axis<etp>>;
using folded_mesh = hd::folded_mesh<attention_mesh, expert_mesh>;
using tp_etp = hd::both<tp, etp>;
using tp_ep = hd::both<tp, ep>;
using tp_edp = hd::both<tp, edp>;
using any_folding =
    md::folded_sharding<hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::heads, tp>,
                                     hd::dim::split<hd::dim::experts, ep>, hd::dim::split<hd::dim::ffn, etp>>,
                        attention_mesh, expert_mesh>;
// The same with rows of each sample split over the axis `Rows`, one of those of tp, as between attention and MLPs under sequence parallelism.
template <class Rows, class How = any_folding>
struct and_sequences;
template <class Rows, class... S>
struct and_sequences<Rows, hd::sharding<S...>> {
  using type = hd::sharding<S..., hd::dim::split<hd::dim::sequence, Rows>>;
};
template <class Rows>
using folding_of_sequences = typename and_sequences<Rows>::type;

// Experts and samples over nodes and over ep inside them, and parts of experts over tp.
struct node {};
using node_mesh = hd::mesh<hd::axis<dp>, hd::axis<node>, hd::axis<ep>, hd::axis<tp>>;
using over_nodes = hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::samples, node>,
                                hd::dim::split<hd::dim::samples, ep>, hd::dim::split<hd::dim::experts, node>,
                                hd::dim::split<hd::dim::experts, ep>, hd::dim::split<hd::dim::ffn, tp>>;

// What enters a layer and comes out of it, whole.
struct problem {
  std::int64_t rows, experts, chosen, width, ffn;
  double factor = 0;  // of the capacity; 0: none
  bool by_weight = true;
  double balance = 0;
  numbers x, dy, router, w1, w2, w3;
  numbers router_bias{}, b1{}, b2{}, b3{};  // empty: none, and units are not clamped
};
struct answer {
  numbers y, dx, router, w1, w2, w3;
  numbers router_bias{}, b1{}, b2{}, b3{};
};

problem random_problem(std::int64_t rows, std::int64_t experts, std::int64_t chosen, std::uint64_t seed) {
  problem p{rows, experts, chosen, 5, 7, 0, true, 0, {}, {}, {}, {}, {}, {}};
  const auto draw = [&](std::int64_t n, double scale = 0.7) { return random_vector(n, ++seed, scale); };
  p.x = draw(rows * p.width, 1.0);
  p.dy = draw(rows * p.width, 1.0);
  p.router = draw(experts * p.width);
  p.w1 = draw(experts * p.ffn * p.width);
  p.w2 = draw(experts * p.width * p.ffn);
  p.w3 = draw(experts * p.ffn * p.width);
  return p;
}
// The same with biases of the router and in experts, and units like those of GPT-OSS, some of which are beyond their limits.
problem biased_problem(std::int64_t rows, std::int64_t experts, std::int64_t chosen, std::uint64_t seed) {
  problem p = random_problem(rows, experts, chosen, seed);
  for (double& w : p.w1) w *= 4;
  for (double& w : p.w3) w *= 4;
  p.router_bias = random_vector(experts, seed + 50, 0.7);
  p.b1 = random_vector(experts * p.ffn, seed + 51, 3.0);
  p.b2 = random_vector(experts * p.width, seed + 52, 1.0);
  p.b3 = random_vector(experts * p.ffn, seed + 53, 3.0);
  return p;
}
// Every token prefers this expert by far.
void prefer(problem& p, std::int64_t expert) {
  for (std::int64_t r = 0; r < p.rows; ++r)
    p.x[static_cast<std::size_t>(r * p.width)] = 4 + 0.1 * static_cast<double>(r);
  for (std::int64_t e = 0; e < p.experts; ++e)
    p.router[static_cast<std::size_t>(e * p.width)] = e == expert ? 3.0 : -3.0;
}

// The experts of a row, best first, and their weights.
struct chosen_experts {
  std::vector<std::size_t> order;
  numbers weight;
  std::vector<bool> kept;
};
std::vector<chosen_experts> choose(const problem& p) {
  std::vector<chosen_experts> all;
  const auto w = static_cast<std::size_t>(p.width);
  for (std::size_t r = 0; r < static_cast<std::size_t>(p.rows); ++r) {
    numbers logits(static_cast<std::size_t>(p.experts), 0.0);
    if (!p.router_bias.empty()) logits = p.router_bias;
    for (std::size_t e = 0; e < logits.size(); ++e)
      for (std::size_t d = 0; d < w; ++d) logits[e] += p.router[e * w + d] * p.x[r * w + d];
    chosen_experts c;
    c.order.resize(logits.size());
    std::iota(c.order.begin(), c.order.end(), std::size_t{0});
    std::stable_sort(c.order.begin(), c.order.end(),
                     [&](std::size_t i, std::size_t j) { return logits[i] > logits[j]; });
    c.order.resize(static_cast<std::size_t>(p.chosen));
    double sum = 0;
    for (const std::size_t e : c.order) sum += std::exp(logits[e]);
    for (const std::size_t e : c.order) c.weight.push_back(std::exp(logits[e]) / sum);
    c.kept.assign(c.order.size(), true);
    all.push_back(std::move(c));
  }
  return all;
}
// An expert keeps ceil(factor rows chosen / experts) choices of each run of rows: a choice stays if fewer are preferred to it.
std::int64_t drop(const problem& p, std::vector<chosen_experts>& all, const std::vector<std::int64_t>& runs) {
  std::int64_t dropped = 0;
  std::size_t begin = 0;
  for (const std::int64_t run : runs) {
    const std::size_t end = begin + static_cast<std::size_t>(run);
    const auto most = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(run * p.chosen) / static_cast<double>(p.experts) * p.factor));
    for (std::size_t r = begin; r < end; ++r)
      for (std::size_t j = 0; j < all[r].order.size(); ++j) {
        std::int64_t before = 0;
        for (std::size_t q = begin; q < end; ++q)
          for (std::size_t i = 0; i < all[q].order.size(); ++i) {
            if (q == r || all[q].order[i] != all[r].order[j]) continue;
            before += p.by_weight && all[q].weight[i] != all[r].weight[j] ? all[q].weight[i] > all[r].weight[j] : q < r;
          }
        all[r].kept[j] = before < most;
        dropped += !all[r].kept[j];
      }
    begin = end;
  }
  return dropped;
}

// Token by token and expert by expert, from the definition.
answer by_definition(const problem& p, const std::vector<chosen_experts>& choices) {
  answer a;
  const auto w = static_cast<std::size_t>(p.width), f = static_cast<std::size_t>(p.ffn);
  a.y.assign(p.x.size(), 0);
  a.dx.assign(p.x.size(), 0);
  a.router.assign(p.router.size(), 0);
  a.w1.assign(p.w1.size(), 0);
  a.w2.assign(p.w2.size(), 0);
  a.w3.assign(p.w3.size(), 0);
  const bool biased = !p.b1.empty();
  for (const auto [to, from] : {std::pair(&a.router_bias, &p.router_bias), std::pair(&a.b1, &p.b1),
                                std::pair(&a.b2, &p.b2), std::pair(&a.b3, &p.b3)})
    to->assign(from->size(), 0);
  for (std::size_t r = 0; r < static_cast<std::size_t>(p.rows); ++r) {
    const double *x = p.x.data() + r * w, *dy = p.dy.data() + r * w;
    const auto& order = choices[r].order;
    const numbers& weight = choices[r].weight;
    numbers slope;
    for (std::size_t j = 0; j < order.size(); ++j) {
      const std::size_t e = order[j];
      const double v = weight[j];
      if (!choices[r].kept[j]) {
        slope.push_back(0);
        continue;
      }
      numbers g(f, 0.0), u(f, 0.0), h(f), out(w, 0.0), dh(f, 0.0);
      for (std::size_t i = 0; i < f; ++i)
        for (std::size_t d = 0; d < w; ++d) {
          g[i] += p.w1[(e * f + i) * w + d] * x[d];
          u[i] += p.w3[(e * f + i) * w + d] * x[d];
        }
      // m alpha-sigmoid(m) (c + 1) with m and c the clamped gate and up, and its derivatives.
      numbers of_gate(f, 0.0), of_up(f, 0.0);
      const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
      for (std::size_t i = 0; i < f; ++i) {
        if (biased) {
          g[i] += p.b1[e * f + i], u[i] += p.b3[e * f + i];
          const double m = (std::min)(g[i], 7.0), c = (std::max)(-7.0, (std::min)(u[i], 7.0)), s = sigmoid(1.702 * m);
          h[i] = m * s * (c + 1);
          of_gate[i] = g[i] > 7 ? 0.0 : (c + 1) * (s + 1.702 * m * s * (1 - s));
          of_up[i] = std::abs(u[i]) > 7 ? 0.0 : m * s;
        } else {
          const double s = sigmoid(g[i]);
          h[i] = g[i] * s * u[i];
          of_gate[i] = u[i] * s * (1 + g[i] * (1 - s));
          of_up[i] = g[i] * s;
        }
      }
      double along = 0;
      for (std::size_t d = 0; d < w; ++d) {
        for (std::size_t i = 0; i < f; ++i) out[d] += p.w2[(e * w + d) * f + i] * h[i];
        if (biased) out[d] += p.b2[e * w + d], a.b2[e * w + d] += v * dy[d];
        a.y[r * w + d] += v * out[d];
        along += dy[d] * out[d];
        for (std::size_t i = 0; i < f; ++i) {
          a.w2[(e * w + d) * f + i] += v * dy[d] * h[i];
          dh[i] += v * dy[d] * p.w2[(e * w + d) * f + i];
        }
      }
      slope.push_back(along);
      for (std::size_t i = 0; i < f; ++i) {
        const double dg = dh[i] * of_gate[i], du = dh[i] * of_up[i];
        if (biased) a.b1[e * f + i] += dg, a.b3[e * f + i] += du;
        for (std::size_t d = 0; d < w; ++d) {
          a.w1[(e * f + i) * w + d] += dg * x[d];
          a.w3[(e * f + i) * w + d] += du * x[d];
          a.dx[r * w + d] += dg * p.w1[(e * f + i) * w + d] + du * p.w3[(e * f + i) * w + d];
        }
      }
    }
    double mean = 0;
    for (std::size_t j = 0; j < order.size(); ++j) mean += weight[j] * slope[j];
    for (std::size_t j = 0; biased && j < order.size(); ++j) a.router_bias[order[j]] += weight[j] * (slope[j] - mean);
    for (std::size_t j = 0; j < order.size(); ++j)
      for (std::size_t d = 0; d < w; ++d) {
        const double z = weight[j] * (slope[j] - mean);
        a.router[order[j] * w + d] += z * x[d];
        a.dx[r * w + d] += z * p.router[order[j] * w + d];
      }
  }
  return a;
}

constexpr double loss_scale = 0.25;

// The term for an even choice of experts, of each run of rows on its own.
void add_balance(const problem& p, const std::vector<chosen_experts>& choices, const std::vector<std::int64_t>& runs,
                 answer& a) {
  const auto w = static_cast<std::size_t>(p.width), n = static_cast<std::size_t>(p.experts);
  std::size_t begin = 0;
  for (const std::int64_t run : runs) {
    const std::size_t end = begin + static_cast<std::size_t>(run);
    numbers count(n, 0.0);
    for (std::size_t r = begin; r < end; ++r)
      for (const std::size_t e : choices[r].order) ++count[e];
    for (std::size_t r = begin; r < end; ++r) {
      numbers q(n, 0.0);
      double sum = 0;
      for (std::size_t e = 0; e < n; ++e) {
        for (std::size_t d = 0; d < w; ++d) q[e] += p.router[e * w + d] * p.x[r * w + d];
        sum += q[e] = std::exp(q[e]);
      }
      // With term = balance E / (k T^2) sum_e c_e sum_t q_te, and T loss_scale of the loss for T rows.
      const double scale = p.balance * static_cast<double>(n) / static_cast<double>(p.chosen * run * run) *
                           (static_cast<double>(run) * loss_scale);
      for (std::size_t e = 0; e < n; ++e) {
        double z = 0;  // through every probability
        for (std::size_t i = 0; i < n; ++i) z += scale * count[i] * q[i] / sum * ((i == e ? 1.0 : 0.0) - q[e] / sum);
        for (std::size_t d = 0; d < w; ++d) {
          a.router[e * w + d] += z * p.x[r * w + d];
          a.dx[r * w + d] += z * p.router[e * w + d];
        }
      }
    }
    begin = end;
  }
}

struct found {
  answer all;
  std::vector<std::string> problems;
  std::int64_t calls = 0, bytes = 0;         // of all_to_all_v where rows travel, on all ranks
  std::int64_t gathered = 0, scattered = 0;  // bytes where rows are gathered, as calls are given them
  std::array<std::int64_t, 2> between{}, inside_gathered{}, inside_scattered{};  // by nodes, forward and backward
  std::int64_t scratch = 0;                                                      // elements, of all ranks
  std::int64_t dropped = 0;                                                      // choices, by the definition
};

// The rows of a rank's samples, and those of them that are its own.
struct rows_of_rank {
  md::row_range samples, own;
};
template <class How, class Mesh>
rows_of_rank rows_on(const Mesh& mesh, int world_rank, std::int64_t rows) {
  using stage_mesh = md::stage_mesh<Mesh, hd::pp, How>;
  const auto own_mesh = md::make_stage_mesh<stage_mesh>(mesh);
  const int rank = md::rank_in_stage_mesh<stage_mesh>(mesh, world_rank);
  const typename md::detail::samples_layout_of<stage_mesh, How>::type at{own_mesh};
  const auto whole = hd::dynamic_shape<1>(rows);
  const md::row_range all{at.local_offset(whole, rank)[0], at.local_shape(whole, rank).extent(0)};
  const auto own = md::rows_on_rank<md::layouts<stage_mesh, How>, md::dims<hd::dim::width>>(own_mesh, rank, all.count);
  return {all, {all.first + own.first, own.count}};
}
// Rows of each rank among those that have other rows, in the order of the rows.
template <class How, class Mesh>
std::vector<std::int64_t> runs_of(const Mesh& mesh, std::int64_t rows) {
  std::map<std::int64_t, std::int64_t> found;  // by the first row
  for (int r = 0; r < mesh.size(); ++r)
    if (const auto own = rows_on<How>(mesh, r, rows).own; own.count > 0) found[own.first] = own.count;
  std::vector<std::int64_t> runs;
  for (const auto& [first, n] : found) runs.push_back(n);
  return runs;
}
// The ranks among which rows travel.
template <class World, class... Tags>
auto& group_along(World& world, hd::type_list<Tags...>) {
  return world.template along_if<Tags...>();
}

using memories = std::vector<ly::routing_memory<hd::host_memory>>;

// A row is a sample. `again`: forward runs once more for what recomputation drops. `kept`: the memory of each rank from an earlier call.
template <class How, class Limit, class Dispatch, class Biases, class Mesh>
found on_mesh(const Mesh& mesh, const problem& p, bool again, memories* kept) {
  found f;
  f.all.y.assign(p.x.size(), 0);
  f.all.dx.assign(p.x.size(), 0);
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using world_type = std::remove_reference_t<decltype(world)>;
    using stage_mesh = md::stage_mesh<Mesh, hd::pp, How>;
    using layouts = md::layouts<stage_mesh, How>;
    using rule = hd::compute::softmax_of_chosen;
    using layer_type =
        std::conditional_t<Biases::has,
                           ly::experts<ly::with_bias<rule>, hd::compute::clamped_swiglu, Limit, Dispatch, Biases>,
                           ly::experts<rule, hd::compute::silu, Limit, Dispatch>>;
    using run_type = ly::layer_run<double, layouts, backend, world_type>;
    const stage_mesh own_mesh = md::make_stage_mesh<stage_mesh>(world.mesh());
    const int rank = md::rank_in_stage_mesh<stage_mesh>(world.mesh(), world.rank());
    // This rank's rows, and room for the most that a rank has.
    const rows_of_rank has = rows_on<How>(mesh, world.rank(), p.rows);
    const std::int64_t first = has.own.first, rows = has.own.count;
    std::int64_t most = 0;
    for (int r = 0; r < mesh.size(); ++r) most = (std::max)(most, rows_on<How>(mesh, r, p.rows).samples.count);

    Limit limit;
    if constexpr (Limit::drops) limit.factor = p.factor;
    layer_type layer("moe", "gate", p.experts, p.chosen, p.width, p.ffn, 0, limit);
    layer.balance = p.balance;
    ly::placed<layer_type> at(layer);
    const ly::placer<double, layouts> place(own_mesh, rank);
    md::parameter_store<double> store;
    int id = 0;
    place.add_parameters(at, store, "", id, true);
    store.allocate();
    const std::map<std::string, const numbers*> given{
        {"moe.gate.weight", &p.router},          {"moe.experts.*.w1.weight", &p.w1},
        {"moe.experts.*.w2.weight", &p.w2},      {"moe.experts.*.w3.weight", &p.w3},
        {"moe.gate.bias", &p.router_bias},       {"moe.experts.*.gate_proj.bias", &p.b1},
        {"moe.experts.*.down_proj.bias", &p.b2}, {"moe.experts.*.up_proj.bias", &p.b3}};
    for (const md::parameter& one : store.table())
      md::for_each_run(one, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
        std::copy_n(given.at(one.name)->begin() + global, n, store.weights().begin() + one.offset + local);
      });
    ly::arena_sizes sizes;
    md::own_activations own;
    place.place_activations(at, sizes, most, {}, true, own);
    const auto empty = [](std::int64_t n) { return numbers(static_cast<std::size_t>(n), std::nan("")); };
    const auto v = static_cast<std::size_t>(again);
    numbers saved = empty(sizes.saved[v]), waiting = empty(sizes.waiting[v]), shared = empty(sizes.shared),
            deferred = empty(sizes.deferred), scratch = empty(sizes.scratch);
    backend kernels{1};
    ly::routing_memory<hd::host_memory> own_routing;
    ly::routing_memory<hd::host_memory>& routing =
        kept == nullptr ? own_routing : (*kept)[static_cast<std::size_t>(world.rank())];
    run_type run{kernels, world};
    run.extent = {has.samples.count, 1};
    run.loss_scale = loss_scale;
    run.weights[0] = store.weights().data();
    run.gradients[0] = store.gradients().data();
    for (std::size_t k = 1; k < ly::most_buckets; ++k) {
      run.weights[k] = run.weights[0];
      run.gradients[k] = run.gradients[0];
    }
    run.saved = saved.data();
    run.waiting = waiting.data();
    run.shared = shared.data();
    run.deferred = deferred.data();
    run.scratch = scratch.data();
    run.routing = &routing;
    run.drops = again ? ly::dropping::all : ly::dropping::named;
    const ly::call<layer_type, run_type> b(at, run);
    numbers x(p.x.begin() + first * p.width, p.x.begin() + (first + rows) * p.width);
    numbers dy(p.dy.begin() + first * p.width, p.dy.begin() + (first + rows) * p.width);
    numbers y = empty(rows * p.width), dx = empty(rows * p.width);
    y.reserve(y.size() + 1);  // an address without rows, too, as stages give: a view without one is not wanted
    dx.reserve(dx.size() + 1);
    const auto matrix = [&](numbers& m) { return md::as_matrix(std::span(m), rows, p.width); };
    const auto seen = [&](const numbers& m) { return md::as_matrix(std::span(m), rows, p.width); };
    const auto wipe = [](numbers& m) { std::fill(m.begin(), m.end(), std::nan("")); };
    using exchange = typename layouts::template exchange_axes<hd::dim::experts, hd::dim::ffn>;
    auto& group = group_along(world, exchange{});
    using axes_between = typename md::detail::axes_without<exchange, typename Dispatch::inside>::type;
    auto &between = group_along(world, axes_between{}), &inside = group_along(world, typename Dispatch::inside{});
    const auto calls = [&] { return between.counters()[hd::comm_operation::all_to_all_v].calls; };
    const auto counted = [&] {
      return std::array{between.counters()[hd::comm_operation::all_to_all_v].bytes,
                        inside.counters()[hd::comm_operation::all_gather_v].bytes,
                        inside.counters()[hd::comm_operation::reduce_scatter_v].bytes};
    };
    const auto at_first = counted();
    b.forward(seen(x), matrix(y));
    const std::int64_t bytes = group.counters()[hd::comm_operation::all_to_all_v].bytes, forward_calls = calls();
    const std::int64_t gathered = group.counters()[hd::comm_operation::all_gather_v].bytes;
    const std::int64_t scattered = group.counters()[hd::comm_operation::reduce_scatter_v].bytes;
    const auto after_forward = counted();
    wipe(scratch);
    if (again) {
      wipe(shared);
      run.waits = true;
      run.replays = true;
      b.forward(seen(x), hd::matrix_view<double>{});
      run.replays = false;
      wipe(scratch);
    }
    const std::int64_t before = calls();
    const auto before_backward = counted();
    b.backward_input(seen(x), seen(dy), matrix(dx));
    const auto after_backward = counted();
    const std::int64_t backward_calls = calls() - before;
    wipe(scratch);
    if (again) wipe(shared);
    const std::int64_t all_before = group.counters().collectives();
    b.backward_weight(seen(x), seen(dy));
    const std::int64_t later = group.counters().collectives() - all_before;

    const std::lock_guard lock(mutex);
    const auto expect = [&](bool ok, const std::string& what) {
      if (!ok) f.problems.push_back("rank " + std::to_string(world.rank()) + ": " + what);
    };
    constexpr bool by_nodes = Dispatch::inside::size > 0;
    const bool travels = axes_between::size > 0 && between.size() > 1 && (by_nodes || !Dispatch::gathers);
    for (std::size_t v = 0; by_nodes && v < 2; ++v) {
      const auto &from = v == 0 ? at_first : before_backward, &to = v == 0 ? after_forward : after_backward;
      f.between[v] += to[0] - from[0];
      f.inside_gathered[v] += to[1] - from[1];
      f.inside_scattered[v] += to[2] - from[2];
    }
    f.gathered += gathered;
    f.scattered += scattered;
    // Counts, rows and sums; by nodes choices and weights, too, and backward their gradients.
    expect(forward_calls == (!travels ? 0 : by_nodes ? 5 : 3), "all-to-alls of forward");
    expect(backward_calls == (!travels ? 0 : by_nodes ? 3 : 2), "all-to-alls of backward_input");
    expect(later == 0, "backward_weight communicates");
    f.calls += forward_calls;
    f.scratch += sizes.scratch;
    f.bytes += bytes;
    for (std::size_t i = 0; i < y.size(); ++i) {
      // The same on every rank that has the row.
      double& to = f.all.y[static_cast<std::size_t>(first * p.width) + i];
      expect(to == 0 || to == y[i], "y differs between ranks");
      to = y[i];
      double& d = f.all.dx[static_cast<std::size_t>(first * p.width) + i];
      expect(d == 0 || d == dx[i], "dx differs between ranks");
      d = dx[i];
    }
    for (const md::parameter& one : store.table()) {
      if (!one.counted) continue;
      numbers& to = one.name.find("w1") != std::string::npos   ? f.all.w1
                    : one.name.find("w2") != std::string::npos ? f.all.w2
                    : one.name.find("w3") != std::string::npos ? f.all.w3
                    : one.name == "moe.gate.bias"              ? f.all.router_bias
                    : one.name.ends_with("gate_proj.bias")     ? f.all.b1
                    : one.name.ends_with("down_proj.bias")     ? f.all.b2
                    : one.name.ends_with("up_proj.bias")       ? f.all.b3
                                                               : f.all.router;
      to.resize(static_cast<std::size_t>(one.global_count()), 0.0);
      md::for_each_run(one, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i)
          to[static_cast<std::size_t>(global + i)] +=
              store.gradients()[static_cast<std::size_t>(one.offset + local + i)];
      });
    }
  });
  return f;
}

template <class How, class Limit = ly::dropless, class Dispatch = ly::send_choices, class Biases = ly::no_biases,
          class Mesh>
found check(const Mesh& mesh, const problem& p, bool again = false, memories* kept = nullptr) {
  auto choices = choose(p);
  std::int64_t dropped = 0;
  if constexpr (Limit::drops) dropped = drop(p, choices, runs_of<How>(mesh, p.rows));
  answer expected = by_definition(p, choices);
  if (p.balance > 0) add_balance(p, choices, runs_of<How>(mesh, p.rows), expected);
  found got = on_mesh<How, Limit, Dispatch, Biases>(mesh, p, again, kept);
  got.dropped = dropped;
  INFO("mesh " << to_string(mesh) << ", rows " << p.rows << ", experts " << p.experts << ", chosen " << p.chosen
               << ", again " << again);
  for (const std::string& problem : got.problems) FAIL_CHECK(problem);
  CHECK(relative_error(got.all.y, expected.y) < 1e-10);
  CHECK(relative_error(got.all.dx, expected.dx) < 1e-10);
  CHECK(relative_error(got.all.router, expected.router) < 1e-10);
  CHECK(relative_error(got.all.w1, expected.w1) < 1e-10);
  CHECK(relative_error(got.all.w2, expected.w2) < 1e-10);
  CHECK(relative_error(got.all.w3, expected.w3) < 1e-10);
  if (Biases::has) {
    CHECK(relative_error(got.all.router_bias, expected.router_bias) < 1e-10);
    CHECK(relative_error(got.all.b1, expected.b1) < 1e-10);
    CHECK(relative_error(got.all.b2, expected.b2) < 1e-10);
    CHECK(relative_error(got.all.b3, expected.b3) < 1e-10);
  }
  return got;
}

// Every mesh of the issue: one rank, experts over two and three, units over two, both, and other samples beside them.
const std::vector<mesh_type> meshes{mesh_type(1, 1, 1), mesh_type(1, 2, 1), mesh_type(1, 3, 1), mesh_type(1, 1, 2),
                                    mesh_type(1, 2, 2), mesh_type(2, 2, 1), mesh_type(2, 3, 2)};

template <class How>
void on_all_meshes() {
  for (const mesh_type& mesh : meshes) {
    check<How>(mesh, random_problem(11, 5, 2, 100));
    check<How>(mesh, random_problem(7, 4, 3, 200), true);
    check<How>(mesh, random_problem(3, 2, 1, 300));  // three ranks along ep: one has no expert
    problem one = random_problem(9, 5, 1, 400);
    prefer(one, 3);  // all tokens to one expert, the others are empty
    check<How>(mesh, one, true);
    check<How>(mesh, random_problem(1, 5, 2, 500), true);  // ranks without a token where samples are split
    check<How>(mesh, random_problem(2, 6, 6, 600));        // every expert is chosen
    problem even = random_problem(10, 5, 2, 1400);
    even.balance = 3;
    check<How>(mesh, even);
  }
}

}  // namespace

TEST_CASE("where gradients of experts are summed follows from the sharding", "[model][experts][law]") {
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<ep, 2>, hd::axis<tp, 2>>;
  using beside = md::layouts<mesh, same_samples>;
  using apart = md::layouts<mesh, other_samples>;
  using own = md::dims<hd::dim::experts, hd::dim::ffn, hd::dim::width>;
  using router = md::dims<hd::dim::candidates, hd::dim::width>;
  STATIC_REQUIRE(std::is_same_v<beside::parameter<own>, hd::layout<mesh, hd::shard<0, ep>, hd::shard<1, tp>>>);
  STATIC_REQUIRE(std::is_same_v<apart::parameter<own>, beside::parameter<own>>);
  STATIC_REQUIRE(!hd::dual<apart::parameter<own>>::is_partial_on<ep> &&
                 hd::dual<apart::parameter<own>>::is_partial_on<dp>);
  // The router is one computation along ep, unless ep splits samples.
  STATIC_REQUIRE(!hd::dual<beside::parameter<router>>::is_partial_on<ep>);
  STATIC_REQUIRE(hd::dual<apart::parameter<router>>::is_partial_on<ep>);
  STATIC_REQUIRE(std::is_same_v<md::parameter_buckets<beside, ly::experts<>>::axes, hd::type_list<hd::type_list<dp>>>);
  STATIC_REQUIRE(std::is_same_v<md::parameter_buckets<apart, ly::experts<>>::axes,
                                hd::type_list<hd::type_list<dp, ep>, hd::type_list<dp>>>);
  STATIC_REQUIRE(std::is_same_v<beside::exchange_axes<hd::dim::experts>, hd::type_list<>>);
  STATIC_REQUIRE(std::is_same_v<apart::exchange_axes<hd::dim::experts>, hd::type_list<ep>>);
  // What the experts of a rank make is a sum over ep where samples are the same, and over tp.
  using made_beside = ly::experts<>::laid<beside>::out::made;
  using made_apart = ly::experts<>::laid<apart>::out::made;
  STATIC_REQUIRE(made_beside::is_partial_on<ep> && made_beside::is_partial_on<tp>);
  STATIC_REQUIRE(!made_apart::is_partial_on<ep> && made_apart::is_partial_on<tp>);
}

TEST_CASE("experts over ranks with the same samples equal the definition", "[model][experts][ranks]") {
  on_all_meshes<same_samples>();
}
TEST_CASE("experts over ranks with other samples equal the definition", "[model][experts][ranks]") {
  on_all_meshes<other_samples>();
}
TEST_CASE("experts with biases and clamped units equal the definition, their biases added once",
          "[model][experts][ranks]") {
  const auto on = []<class How, class Dispatch, class Mesh>(std::type_identity<How>, Dispatch, const Mesh& mesh) {
    using limit = ly::dropless;
    check<How, limit, Dispatch, ly::with_biases>(mesh, biased_problem(11, 5, 2, 2100));
    check<How, limit, Dispatch, ly::with_biases>(mesh, biased_problem(7, 4, 3, 2200), true);
    check<How, limit, Dispatch, ly::with_biases>(mesh, biased_problem(3, 2, 1, 2300));
    problem one = biased_problem(9, 5, 1, 2400);
    prefer(one, 3);
    check<How, limit, Dispatch, ly::with_biases>(mesh, one, true);
    check<How, limit, Dispatch, ly::with_biases>(mesh, biased_problem(1, 5, 2, 2500), true);
  };
  using units_and_samples = hd::sharding<hd::dim::split<hd::dim::samples, dp>, hd::dim::split<hd::dim::experts, ep>,
                                         hd::dim::split<hd::dim::samples, tp>, hd::dim::split<hd::dim::ffn, tp>>;
  for (const mesh_type& mesh : meshes) {
    on(std::type_identity<same_samples>{}, ly::send_choices{}, mesh);
    on(std::type_identity<other_samples>{}, ly::send_choices{}, mesh);
    on(std::type_identity<units_and_samples>{}, ly::send_choices{}, mesh);
  }
  for (const mesh_type& mesh : {mesh_type(1, 1, 1), mesh_type(1, 2, 2), mesh_type(2, 1, 3)})
    on(std::type_identity<units_and_samples>{}, ly::gather_rows{}, mesh);
  using layer_type =
      ly::experts<ly::with_bias<>, hd::compute::clamped_swiglu, ly::dropless, ly::send_choices, ly::with_biases>;
  STATIC_REQUIRE(ly::count_parameters(layer_type("moe", "router", 3, 2, 5, 7)) ==
                 3 * (3 * 5 * 7 + 2 * 7 + 5) + 3 * 5 + 3);
}
TEST_CASE("rows that travel to experts have the bytes of the formula", "[model][experts][ranks]") {
  const problem p = random_problem(12, 6, 2, 700);
  for (const int ranks : {2, 3, 4}) {
    const found got = check<other_samples>(mesh_type(1, ranks, 1), p);
    // Each rank: a count of eight bytes for each expert; together each choice of each row there and back.
    const std::int64_t counts = ranks * p.experts * 8, rows = 2 * p.rows * p.chosen * p.width * 8;
    CHECK(got.calls == 3 * ranks);
    CHECK(got.bytes == counts + rows);
  }
}
TEST_CASE("mixtures of as many experts with other layouts share a rank's memory of routing",
          "[model][experts][ranks]") {
  // Experts over nodes, over ep in them, and over both; who holds which experts differs, and how many hold some.
  using over_ep = hd::sharding<hd::dim::split<hd::dim::samples, node>, hd::dim::split<hd::dim::samples, ep>,
                               hd::dim::split<hd::dim::experts, ep>>;
  using across = hd::sharding<hd::dim::split<hd::dim::samples, node>, hd::dim::split<hd::dim::samples, ep>,
                              hd::dim::split<hd::dim::experts, node>>;
  for (const node_mesh& mesh : {node_mesh(1, 2, 3, 1), node_mesh(1, 3, 2, 1), node_mesh(1, 2, 2, 1)}) {
    memories kept(static_cast<std::size_t>(mesh.size()));
    for (const std::uint64_t seed : {4800u, 4900u}) {
      const problem p = random_problem(13, 5, 2, seed);
      check<over_ep>(mesh, p, false, &kept);
      check<across>(mesh, p, true, &kept);
      check<over_nodes>(mesh, p, false, &kept);
      check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(mesh, p, false, &kept);
      check<over_nodes, ly::dropless, ly::send_to_nodes<node>>(mesh, p, true, &kept);
      check<over_nodes, ly::dropless, ly::gather_rows>(mesh, p, false, &kept);
    }
  }
}
TEST_CASE("rows that stay as they come have the products of rows by expert", "[model][experts][ranks]") {
  // Enough for each expert that no rank moves them, and one expert with most.
  for (const int ranks : {2, 3}) {
    check<other_samples>(mesh_type(1, ranks, 1), random_problem(40 * ranks, 2 * ranks + 1, 2, 2800));
    check<other_samples>(mesh_type(1, ranks, 2), random_problem(40 * ranks, 2 * ranks, 3, 2900), true);
    problem p = random_problem(50 * ranks, 2 * ranks, 1, 3000);
    prefer(p, 1);
    check<other_samples>(mesh_type(1, ranks, 1), p, true);
  }
  check<any_folding>(folded_mesh(1, 2, 2, 1, 1, 1), random_problem(60, 4, 2, 3100));
}
TEST_CASE("experts folded over two axes, one of the same samples and one of others", "[model][experts][ranks]") {
  for (const mesh_type& mesh : {mesh_type(1, 1, 1), mesh_type(1, 2, 2), mesh_type(1, 3, 2), mesh_type(2, 2, 2)}) {
    check<folded>(mesh, random_problem(11, 5, 2, 800));
    check<folded>(mesh, random_problem(9, 9, 3, 900), true);
    check<folded>(mesh, random_problem(3, 2, 1, 1000));  // most ranks have no expert
  }
}
TEST_CASE("experts in every folding of eight ranks equal the definition", "[model][experts][ranks]") {
  int foldings = 0;
  for (const int a : {1, 2, 4, 8})
    for (const int b : {1, 2, 4, 8})
      for (const int c : {1, 2, 4, 8})
        for (const int d : {1, 2, 4, 8})
          for (const int e : {1, 2, 4, 8})
            for (const int f : {1, 2, 4, 8}) {
              if (a * b * c * d * e * f != 8) continue;
              const folded_mesh mesh(a, b, c, d, e, f);
              problem p = random_problem(13, 5, 2, 1500);
              p.balance = 2;
              const found got = check<any_folding>(mesh, p, ++foldings % 2 == 0);
              if (b * c == 1) continue;
              // Counts of eight bytes: of a rank for the experts that its place along tp_ep reaches, for each rank that has a part of
              // them. Rows there and back: a copy of each choice for each such rank, from all ranks that have the same samples.
              const std::int64_t counts = 8 / e * p.experts * c * 8;
              const std::int64_t rows = 2 * p.rows * p.chosen * p.width * 8 * c * d * f;
              CHECK(got.bytes == counts + rows);
            }
  CHECK(foldings == 56);
}
TEST_CASE("experts on the folded mesh of two meshes equal the definition", "[model][experts][ranks]") {
  for (const int t : {1, 2, 4, 8})
    for (const auto& [copies, other, parts] :
         std::vector<std::array<int, 3>>{{1, 8, 1}, {1, 4, 2}, {2, 2, 2}, {1, 1, 8}, {8, 1, 1}}) {
      const folded_mesh mesh = hd::fold(attention_mesh(8 / t, t), expert_mesh(copies, other, parts));
      check<any_folding>(mesh, random_problem(11, 9, 3, 2200));
    }
}
TEST_CASE("the gradients of folded experts are summed over ranks that have copies and other rows",
          "[model][experts][law]") {
  using layouts = md::layouts<folded_mesh, any_folding>;
  using weights = layouts::parameter<md::dims<hd::dim::experts, hd::dim::ffn, hd::dim::width>>;
  using dual = hd::dual<weights>;
  STATIC_REQUIRE(dual::is_partial_on<hd::both<dp, edp>> && !dual::is_partial_on<tp_edp>);  // along tp rows are the same
  STATIC_REQUIRE(!dual::is_partial_on<hd::both<dp, ep>> && !dual::is_partial_on<hd::both<dp, etp>>);
  STATIC_REQUIRE(weights::is_sharded_on<hd::both<dp, ep>> && weights::is_sharded_on<tp_ep> &&
                 weights::is_sharded_on<hd::both<dp, etp>> && weights::is_sharded_on<tp_etp>);
  using sequences = md::layouts<folded_mesh, folding_of_sequences<tp_edp>>;
  STATIC_REQUIRE(
      sequences::sums_over<sequences::parameter<md::dims<hd::dim::experts, hd::dim::ffn, hd::dim::width>>, tp_edp>);
  STATIC_REQUIRE(std::is_same_v<layouts::exchange_axes<hd::dim::experts, hd::dim::ffn>,
                                hd::type_list<hd::both<dp, ep>, hd::both<dp, etp>>>);
}
TEST_CASE("a folded sharding moves the rows of split sequences as the sharding does", "[model][experts][law]") {
  using attention = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using experts = hd::mesh<hd::axis<edp, 2>, hd::axis<ep, 2>>;
  using how = md::megatron_sequence<dp, tp, hd::overlapped<3>>;
  using both = hd::folded_mesh<attention, experts>;
  STATIC_REQUIRE(md::layouts<attention, how>::overlapped_pieces == 3);
  STATIC_REQUIRE(md::layouts<both, md::folded_sharding<how, attention, experts>>::overlapped_pieces == 3);
  using at_once = md::megatron_sequence<dp, tp>;
  STATIC_REQUIRE(md::layouts<both, md::folded_sharding<at_once, attention, experts>>::overlapped_pieces == 0);
}
TEST_CASE("experts to which all rows are gathered equal the definition", "[model][experts][ranks]") {
  const auto on = [](const folded_mesh& mesh, const problem& p, bool again = false) {
    return check<any_folding, ly::dropless, ly::gather_rows>(mesh, p, again);
  };
  for (const folded_mesh& mesh :
       {folded_mesh(1, 1, 1, 1, 1, 1), folded_mesh(1, 2, 1, 1, 1, 1), folded_mesh(1, 3, 1, 1, 1, 1),
        folded_mesh(1, 1, 2, 1, 1, 1), folded_mesh(2, 2, 1, 1, 1, 2), folded_mesh(1, 2, 2, 1, 2, 1),
        folded_mesh(1, 8, 1, 1, 1, 1), folded_mesh(1, 2, 2, 2, 1, 1)}) {
    problem p = random_problem(13, 5, 2, 2300);
    p.balance = 2;
    on(mesh, p);
    on(mesh, random_problem(7, 4, 3, 2400), true);
    on(mesh, random_problem(3, 2, 1, 2500), true);  // ranks without experts, and without rows
    problem one = random_problem(9, 5, 1, 2600);
    prefer(one, 3);
    on(mesh, one);
    p.factor = 0.6;
    p.balance = 0;
    check<any_folding, ly::capacity<>, ly::gather_rows>(mesh, p);
  }
  for (const int ranks : {2, 3, 4}) {
    const problem p = random_problem(12, 6, 2, 2700);
    const found got = on(folded_mesh(1, ranks, 1, 1, 1, 1), p);
    CHECK(got.calls == 0);
    // Each rank: a row of x and a number of four bytes and a weight of eight for each choice, given to all_gather; all rows to reduce_scatter.
    CHECK(got.gathered == p.rows * (p.width * 8 + p.chosen * 12));
    CHECK(got.scattered == ranks * p.rows * p.width * 8);
  }
}
TEST_CASE("rows that go to each node once equal the definition", "[model][experts][ranks]") {
  const auto on = [](const node_mesh& mesh, const problem& p, bool again = false) {
    return check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(mesh, p, again);
  };
  // Two nodes of two ranks, with parts of experts and copies; nodes of three and one rank, one node, and one rank; three nodes.
  for (const node_mesh& mesh :
       {node_mesh(1, 2, 2, 1), node_mesh(1, 2, 2, 2), node_mesh(2, 2, 2, 1), node_mesh(1, 2, 3, 1),
        node_mesh(1, 3, 1, 1), node_mesh(1, 1, 3, 1), node_mesh(1, 1, 1, 1), node_mesh(1, 3, 2, 1)}) {
    problem p = random_problem(13, 5, 2, 4000);
    p.balance = 2;
    on(mesh, p);
    on(mesh, random_problem(7, 4, 3, 4100), true);
    on(mesh, random_problem(3, 2, 1, 4200), true);  // ranks and nodes without experts, and ranks without rows
    on(mesh, random_problem(9, 7, 7, 4300));        // every expert is chosen
    problem one = random_problem(9, 5, 1, 4400);
    prefer(one, 3);
    on(mesh, one);
    p.factor = 0.6;
    p.balance = 0;
    CHECK(check<over_nodes, ly::capacity<>, ly::send_to_nodes<ep>>(mesh, p, true).dropped > 0);
  }
  // Parts of each expert in several nodes, to all of which a row goes then.
  using parts_apart = ly::send_to_nodes<hd::both<dp, ep>>;
  for (const folded_mesh& mesh :
       {folded_mesh(1, 2, 2, 1, 1, 1), folded_mesh(1, 1, 3, 1, 1, 1), folded_mesh(1, 2, 2, 1, 2, 1)})
    check<any_folding, ly::dropless, parts_apart>(mesh, random_problem(11, 5, 2, 4500), true);
  // At compile time it is known that a node is one rank, that there is one node, and that no axis is between nodes.
  using hd::axis;
  const problem few = random_problem(7, 5, 2, 4700);
  check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(hd::mesh<axis<dp, 1>, axis<node, 3>, axis<ep, 1>>{}, few);
  check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(hd::mesh<axis<dp, 1>, axis<node, 1>, axis<ep, 3>>{}, few);
  check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(mesh_type(1, 2, 1), few);
}
TEST_CASE("rows that go to each node once have the bytes of the formula", "[model][experts][ranks]") {
  constexpr std::int64_t nodes = 2, inner = 2, each = 4;
  problem p = random_problem(23, nodes * each, 4, 4600);  // ranks have five and six rows
  const node_mesh mesh(1, nodes, inner, 1);
  const std::int64_t row = p.width * 8, weights = p.chosen * 8, choices = p.chosen * 4;
  // Returns how many rows arrive: once at each node that has an expert which keeps them.
  const auto counted = [&](const found& got, const std::vector<chosen_experts>& all) {
    std::int64_t arrivals = 0;
    for (const chosen_experts& c : all) {
      std::array<bool, nodes> goes{};
      for (std::size_t j = 0; j < c.order.size(); ++j)
        if (c.kept[j]) goes[c.order[j] / each] = true;
      arrivals += std::count(goes.begin(), goes.end(), true);
    }
    // Between nodes, of each rank a count for each node; rows with their choices and weights, and their sums back; then gradients of y, and
    // those of weights and of x back.
    CHECK(got.between[0] == nodes * inner * nodes * 8 + arrivals * (2 * row + weights + choices));
    CHECK(got.between[1] == arrivals * (2 * row + weights));
    // Inside nodes: the same rows to all_gather, and sums for those of each rank to reduce_scatter.
    CHECK(got.inside_gathered == std::array{arrivals * (row + weights + choices), arrivals * row});
    CHECK(got.inside_scattered == std::array{inner * arrivals * row, inner * arrivals * (row + weights)});
    return arrivals;
  };
  auto all = choose(p);
  const found got = check<over_nodes, ly::dropless, ly::send_to_nodes<ep>>(mesh, p);
  const std::int64_t arrivals = counted(got, all);
  // All-to-all sends each choice apart.
  const found plain = check<over_nodes>(mesh, p);
  CHECK(plain.bytes == nodes * inner * p.experts * 8 + 2 * p.rows * p.chosen * row);
  CHECK(got.between[0] < plain.bytes);
  p.factor = 0.4;
  drop(p, all, runs_of<over_nodes>(mesh, p.rows));
  CHECK(counted(check<over_nodes, ly::capacity<>, ly::send_to_nodes<ep>>(mesh, p), all) < arrivals);
}
TEST_CASE("parts of experts over ranks of other samples, uneven and with a capacity", "[model][experts][ranks]") {
  for (const folded_mesh& mesh : {folded_mesh(1, 1, 3, 1, 1, 1), folded_mesh(1, 2, 3, 1, 1, 1),
                                  folded_mesh(1, 1, 8, 1, 1, 1), folded_mesh(1, 2, 2, 1, 1, 2)}) {
    check<any_folding>(mesh, random_problem(3, 2, 1, 1600));
    check<any_folding>(mesh, random_problem(1, 5, 2, 1700), true);
    problem one = random_problem(9, 5, 1, 1800);
    prefer(one, 3);
    check<any_folding>(mesh, one, true);
    problem some = random_problem(13, 5, 2, 1900);
    some.factor = 0.6;
    CHECK(check<any_folding, ly::capacity<>>(mesh, some).dropped > 0);
  }
}
TEST_CASE("experts take the rows of split sequences, whatever they have the ranks for", "[model][experts][ranks]") {
  const auto both = [](auto how, const folded_mesh& mesh) {
    using sharding = typename decltype(how)::type;
    problem p = random_problem(13, 5, 2, 2000);
    p.balance = 2;
    check<sharding>(mesh, p);
    check<sharding>(mesh, random_problem(2, 5, 3, 2100), true);  // most ranks have no row
  };
  for (const auto& [dp_of, tp_of] : std::vector<std::array<int, 2>>{{1, 2}, {1, 3}, {2, 2}, {4, 2}, {2, 4}}) {
    // dp for copies of experts, other experts or parts of experts, and tp, which splits sequences, for parts, other experts or copies.
    both(std::type_identity<folding_of_sequences<tp_etp>>{}, folded_mesh(dp_of, 1, 1, 1, 1, tp_of));
    both(std::type_identity<folding_of_sequences<tp_etp>>{}, folded_mesh(1, dp_of, 1, 1, 1, tp_of));
    both(std::type_identity<folding_of_sequences<tp_ep>>{}, folded_mesh(1, dp_of, 1, 1, tp_of, 1));
    both(std::type_identity<folding_of_sequences<tp_ep>>{}, folded_mesh(1, 1, dp_of, 1, tp_of, 1));
    both(std::type_identity<folding_of_sequences<tp_edp>>{}, folded_mesh(1, dp_of, 1, tp_of, 1, 1));
    both(std::type_identity<folding_of_sequences<tp_edp>>{}, folded_mesh(1, 1, dp_of, tp_of, 1, 1));
  }
}
TEST_CASE("experts of a capacity drop what the rule drops, rank by rank", "[model][experts][ranks]") {
  std::int64_t dropped = 0;
  for (const mesh_type& mesh : {mesh_type(1, 1, 1), mesh_type(1, 2, 1), mesh_type(1, 3, 2), mesh_type(2, 2, 1)})
    for (const double factor : {0.3, 1.0, 1.25, 8.0}) {
      problem p = random_problem(13, 5, 2, 1100);
      p.factor = factor;
      const found one = check<other_samples, ly::capacity<>>(mesh, p, factor == 1.0);
      if (factor == 8.0) CHECK(one.dropped == 0);
      p.by_weight = false;
      const found two = check<same_samples, ly::capacity<hd::compute::keep_first>>(mesh, p);
      dropped += one.dropped + two.dropped;
      CAPTURE(factor);
      if (factor < 1) CHECK(one.dropped > 0);
      problem all = random_problem(8, 4, 1, 1200);
      prefer(all, 2);
      all.factor = factor;
      check<other_samples, ly::capacity<>>(mesh, all);
    }
  CHECK(dropped > 20);
  // Room for rows is what experts may take, however many ranks send some.
  problem p = random_problem(24, 4, 2, 1300);
  p.factor = 1;
  const mesh_type four(1, 4, 1);
  CHECK(check<other_samples, ly::capacity<>>(four, p).scratch * 2 < check<other_samples>(four, p).scratch);
}
