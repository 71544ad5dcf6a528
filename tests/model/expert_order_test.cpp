// tests/model/expert_order_test.cpp: rows and experts in the order of a table give the serial layer's bits, and the bytes of the formulas.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/collective/shuffled.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/affinity_router.hpp>
#include <heddle/infer/rows_by_experts.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/experts_in_order.hpp>
#include <heddle/model/layers/experts.hpp>
#include <heddle/testing/counting_world.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace expert_order {

namespace hd = heddle;
namespace md = heddle::model;
namespace ly = heddle::model::layers;
namespace inf = heddle::infer;
namespace plan = heddle::plan;
namespace counting = heddle::testing::counting;
using Catch::Matchers::Contains;

namespace {

using numbers = std::vector<double>;
using mesh_type = hd::mesh<hd::axis<hd::tp>>;
using backend = hd::compute::host<>;
// Attention and experts over the same ranks, and between them rows.
using how = hd::sharding<hd::dim::split<hd::dim::heads, hd::tp>, hd::dim::split<hd::dim::sequence, hd::tp>,
                         hd::dim::split<hd::dim::experts, hd::tp>>;
constexpr std::uint64_t seed = 20261130;
constexpr std::int64_t width = 9, ffn = 4;  // as many dimensions as ranks, and one

struct listed_world {
  counting::world<mesh_type>& all;
  int rank() const { return all.rank(); }
  int size() const { return all.size(); }
  const mesh_type& mesh() const { return all.mesh(); }
  template <class Tag>
  auto& along_if() {
    return all.along<Tag>();
  }
};

struct problem {
  int ranks, experts, chosen, vocabulary;
  std::vector<std::int32_t> tokens;
  plan::expert_placement table;
  numbers x, router, w1, w2, w3;  // integers, of the router parts of 2^20
  std::int64_t rows() const { return std::ssize(tokens); }
};

// Integers from -most to most.
numbers integers(std::int64_t n, std::uint64_t stream, int most) {
  const hd::counter_random random(seed, stream);
  numbers x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<double>(static_cast<int>(random.integer(i) % static_cast<std::uint64_t>(2 * most + 1)) - most);
  return x;
}

// A random table: experts in equal numbers, tokens anywhere or unseen.
problem random_problem(int ranks, std::int64_t rows, std::uint64_t stream, int experts_of_rank = 2, int chosen = 2) {
  problem p{ranks, ranks * experts_of_rank, chosen, 40, {}, {}, {}, {}, {}, {}, {}};
  const hd::counter_random random(seed, stream);
  std::uint64_t draw = 0;
  const auto below = [&](int n) { return static_cast<int>(random.integer(draw++) % static_cast<std::uint64_t>(n)); };
  for (std::int64_t r = 0; r < rows; ++r) p.tokens.push_back(below(p.vocabulary));
  p.table.ranks = ranks;
  p.table.layers = 1;
  p.table.experts = p.experts;
  for (int e = 0; e < p.experts; ++e) p.table.rank_of_expert.push_back(e % ranks);
  for (std::size_t e = p.table.rank_of_expert.size(); e-- > 1;)
    std::swap(p.table.rank_of_expert[e],
              p.table.rank_of_expert[static_cast<std::size_t>(below(static_cast<int>(e) + 1))]);
  for (int t = 0; t < p.vocabulary; ++t) {
    p.table.rank_of_token.push_back(below(ranks + 1) - 1);
    p.table.confidence.push_back(static_cast<std::uint8_t>(below(256)));
  }
  p.x = integers(rows * width, stream + 1, 3);
  p.router = integers(p.experts * width, stream + 2, 700'000);  // so many that no two scores are equal
  for (double& v : p.router) v /= 1 << 20;
  p.w1 = integers(p.experts * ffn * width, stream + 3, 2);
  p.w2 = integers(p.experts * width * ffn, stream + 4, 2);
  p.w3 = integers(p.experts * ffn * width, stream + 5, 2);
  return p;
}

// The experts of each row, by definition.
std::vector<std::vector<int>> chosen_experts(const problem& p) {
  std::vector<std::vector<int>> all;
  for (std::int64_t r = 0; r < p.rows(); ++r) {
    numbers score(static_cast<std::size_t>(p.experts), 0.0);
    for (std::size_t e = 0; e < score.size(); ++e)
      for (std::size_t d = 0; d < width; ++d)
        score[e] += p.router[e * width + d] * p.x[static_cast<std::size_t>(r) * width + d];
    std::vector<int> order(score.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)]; });
    order.resize(static_cast<std::size_t>(p.chosen));
    all.push_back(order);
  }
  return all;
}
std::vector<std::int32_t> order_of(const problem& p) {
  return inf::rows_by_experts(p.table, p.ranks, p.vocabulary)(p.tokens);
}
// Choices whose expert is on another rank than their row.
std::int64_t remote_choices(const problem& p) {
  const auto chosen = chosen_experts(p);
  const auto order = order_of(p);
  const hd::balanced_split parts{p.rows(), p.ranks};
  std::int64_t remote = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    for (const int e : chosen[static_cast<std::size_t>(order[i])])
      remote += p.table.rank_of_expert[static_cast<std::size_t>(e)] != parts.owner(static_cast<std::int64_t>(i));
  return remote;
}

struct found {
  numbers y;
  std::int64_t bytes = 0;  // that ranks got from others
  bool agree = true;       // all ranks have the same y, and called the same collectives
};

// What attention leaves is a sum over ranks; the layer takes its rows in the table's order, and their results come back in the old one.
found run(const problem& p, int ranks) {
  std::vector<std::int32_t> rows(p.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<int> experts(static_cast<std::size_t>(p.experts));
  std::iota(experts.begin(), experts.end(), 0);
  if (ranks > 1) {
    rows = order_of(p);
    experts = p.table.order(0);
  }
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<numbers> y(n);
  std::vector<std::int64_t> bytes(n);
  std::vector<std::vector<std::string>> calls(n);
  counting::run(mesh_type(ranks), [&](counting::world<mesh_type>& all) {
    listed_world world{all};
    using stage_mesh = md::stage_mesh<mesh_type, hd::pp, how>;
    using layouts = md::layouts<stage_mesh, how>;
    using layer_type = ly::experts<>;
    using run_type = ly::layer_run<double, layouts, backend, listed_world>;
    const stage_mesh own_mesh = md::make_stage_mesh<stage_mesh>(world.mesh());
    const layer_type layer("moe", "gate", p.experts, p.chosen, width, ffn);
    ly::placed<layer_type> at(layer);
    const ly::placer<double, layouts> place(own_mesh, world.rank());
    md::parameter_store<double> store;
    int id = 0;
    place.add_parameters(at, store, "", id, true);
    store.allocate();
    // Expert i of the layer is experts[i] of the file.
    for (const md::parameter& one : store.table()) {
      const numbers& from = one.name.find("w1") != std::string::npos   ? p.w1
                            : one.name.find("w2") != std::string::npos ? p.w2
                            : one.name.find("w3") != std::string::npos ? p.w3
                                                                       : p.router;
      const std::int64_t each = std::ssize(from) / p.experts;
      md::for_each_run(one, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
        for (std::int64_t i = global; i < global + count; ++i)
          store.weights()[static_cast<std::size_t>(one.offset + local + i - global)] =
              from[static_cast<std::size_t>(experts[static_cast<std::size_t>(i / each)] * each + i % each)];
      });
    }
    ly::arena_sizes sizes;
    md::own_activations own;
    place.place_activations(at, sizes, p.rows(), {}, true, own);
    const auto empty = [](std::int64_t k) { return numbers(static_cast<std::size_t>(k), std::nan("")); };
    numbers saved = empty(sizes.saved[0]), waiting = empty(sizes.waiting[0]), shared = empty(sizes.shared),
            deferred = empty(sizes.deferred), scratch = empty(sizes.scratch);
    backend kernels{1};
    ly::routing_memory<hd::host_memory> routing;
    run_type of{kernels, world};
    of.extent = {1, p.rows()};
    for (std::size_t k = 0; k < ly::most_buckets; ++k) of.weights[k] = store.weights().data();
    of.saved = saved.data();
    of.waiting = waiting.data();
    of.shared = shared.data();
    of.deferred = deferred.data();
    of.scratch = scratch.data();
    of.routing = &routing;
    const ly::call<layer_type, run_type> b(at, of);

    numbers part(p.x.size());
    for (std::size_t i = 0; i < part.size(); ++i)  // integers whose sum over ranks is x
      part[i] = world.rank() == 0 ? p.x[i] - 3.0 * (ranks - 1) : 3.0;
    const hd::row_shuffle shuffle(rows, ranks);
    const std::int64_t mine = shuffle.sizes()[static_cast<std::size_t>(world.rank())];
    numbers x = empty(mine * width), to = empty(mine * width), whole = empty(p.rows() * width);
    x.reserve(x.size() + 1);
    to.reserve(to.size() + 1);
    hd::shuffled_reduce_scatter(all.along<hd::tp>(), shuffle, width, part, std::span(x), hd::plus{});
    b.forward(md::as_matrix(std::span(std::as_const(x)), mine, width), md::as_matrix(std::span(to), mine, width));
    hd::shuffled_all_gather(all.along<hd::tp>(), shuffle, width, to, std::span(whole));
    all.all().barrier();
    y[static_cast<std::size_t>(world.rank())] = whole;
    bytes[static_cast<std::size_t>(world.rank())] = all.bytes_sent();
    for (const counting::call& c : all.calls()) calls[static_cast<std::size_t>(world.rank())].emplace_back(c.what);
  });
  return {y[0], std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}),
          std::all_of(y.begin(), y.end(), [&](const numbers& v) { return v == y[0]; }) &&
              std::all_of(calls.begin(), calls.end(), [&](const auto& list) { return list == calls[0]; })};
}

// The serial layer's bits; the bytes of both shuffled collectives, of the counts of rows for each expert, and of the choices that leave their
// rank, there and back.
std::int64_t check(const problem& p) {
  CAPTURE(seed, p.ranks, p.experts, p.rows());
  const found serial = run(p, 1), parallel = run(p, p.ranks);
  REQUIRE(std::none_of(serial.y.begin(), serial.y.end(), [](double v) { return std::isnan(v); }));
  CHECK(serial.bytes == 0);
  CHECK(parallel.agree);
  CHECK(parallel.y == serial.y);
  const std::int64_t row = width * 8, others = p.ranks - 1, remote = remote_choices(p);
  CHECK(parallel.bytes == 2 * others * p.rows() * row + others * p.experts * 8 + 2 * remote * row);
  return remote;
}

}  // namespace

TEST_CASE("rows and experts in the order of any table give the bits of the serial layer", "[model][experts][ranks]") {
  for (int ranks = 2; ranks <= 8; ++ranks)
    for (const std::int64_t rows : {1, 13, 24}) {
      problem p = random_problem(ranks, rows, static_cast<std::uint64_t>(1000 * ranks + 20 * rows));
      check(p);
      // The worst table: each token where none of its first row's experts is.
      const auto chosen = chosen_experts(p);
      for (std::size_t r = 0; r < p.tokens.size(); ++r) {
        std::set<int> holders;
        for (const int e : chosen[r]) holders.insert(p.table.rank_of_expert[static_cast<std::size_t>(e)]);
        int away = 0;
        while (holders.contains(away)) ++away;
        p.table.rank_of_token[static_cast<std::size_t>(p.tokens[r])] = away % ranks;
      }
      check(p);
    }
}

TEST_CASE("a perfect table sends no row, and a random one what no table sends", "[model][experts][ranks]") {
  for (const int ranks : {2, 3, 4, 8}) {
    problem p = random_problem(ranks, 6 * ranks, static_cast<std::uint64_t>(70'000 + ranks), 3);
    // Tokens of class c have experts of rank c alone, and there are as many of each.
    for (std::size_t r = 0; r < p.tokens.size(); ++r) {
      p.tokens[r] = static_cast<std::int32_t>((5 * r) % 7 + 7 * (r % static_cast<std::size_t>(ranks))) % 40;
      p.tokens[r] = p.tokens[r] - p.tokens[r] % ranks + static_cast<std::int32_t>(r) % ranks;
      if (p.tokens[r] >= 40) p.tokens[r] -= ranks;
      for (std::size_t c = 0; c < static_cast<std::size_t>(ranks); ++c)
        p.x[r * width + c] = c == r % static_cast<std::size_t>(ranks) ? 60 : 0;
    }
    for (std::size_t e = 0; e < static_cast<std::size_t>(p.experts); ++e)
      p.router[e * width + static_cast<std::size_t>(p.table.rank_of_expert[e])] += 2;
    for (int t = 0; t < p.vocabulary; ++t) p.table.rank_of_token[static_cast<std::size_t>(t)] = t % ranks;
    CHECK(check(p) == 0);
    CHECK(run(p, ranks).bytes == 2 * (ranks - 1) * p.rows() * width * 8 + (ranks - 1) * p.experts * 8);
  }
  const problem any = random_problem(4, 600, 80'000, 4);
  const double n = 600.0 * 2, far = 0.75;
  CHECK(static_cast<double>(check(any)) == Approx(n * far).margin(3 * std::sqrt(2 * n * far * (1 - far))));
}

TEST_CASE("a shuffled reduce_scatter and all_gather are an all_reduce", "[collective][law]") {
  const hd::counter_random random(seed, 9);
  std::uint64_t draw = 0;
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (const int rows : {0, 1, 7, 12}) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.integer(draw++) % (i + 1)]);
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), 0);  // uneven
      for (int r = 0; r < rows; ++r) ++sizes[random.integer(draw++) % sizes.size()];
      const hd::row_shuffle shuffle(order, sizes);
      std::vector<std::vector<int>> expected(sizes.size()), got(sizes.size());
      counting::run(mesh_type(ranks), [&](counting::world<mesh_type>& world) {
        const auto r = static_cast<std::size_t>(world.rank());
        std::vector<int> part(static_cast<std::size_t>(3 * rows)), whole(part.size()),
            own(static_cast<std::size_t>(3 * sizes[r]));
        for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<int>((i + 1) * (r + 2) % 101);
        hd::shuffled_reduce_scatter(world.all(), shuffle, 3, part, std::span(own), hd::plus{});
        hd::shuffled_all_gather(world.all(), shuffle, 3, own, std::span(whole));
        world.all().all_reduce(std::span(part), hd::plus{});
        expected[r] = part;
        got[r] = whole;
      });
      CHECK(got == expected);
    }
  const std::vector<std::int32_t> twice{0, 2, 2}, beyond{0, 3, 1}, good{2, 0, 1};
  CHECK_THROWS_WITH(hd::row_shuffle(twice, 2), Contains("an order of 3 rows names each of them once, got row 2 twice"));
  CHECK_THROWS_WITH(hd::row_shuffle(beyond, 2), Contains("names each of them once, got row 3"));
  CHECK_THROWS_WITH(hd::row_shuffle(good, std::vector<std::int64_t>{1, 1}), Contains("with that sum, got 2"));
  CHECK_THROWS_WITH(hd::row_shuffle(good, 0), Contains("with that sum, got 0"));
  counting::run(mesh_type(1), [&](counting::world<mesh_type>& world) {
    std::vector<int> three(3), two(2);
    CHECK_THROWS_WITH(hd::shuffled_all_gather(world.all(), hd::row_shuffle(good, 2), 1, three, std::span(three)),
                      Contains("a group of 1 ranks shuffles rows by as many sizes, got 2"));
    CHECK_THROWS_WITH(hd::shuffled_all_gather(world.all(), hd::row_shuffle(good, 1), 1, two, std::span(three)),
                      Contains("3 rows of 1 elements are 3, and 3 of them those of rank 0; got 3 and 2"));
  });
}

TEST_CASE("rows take a place on their likeliest rank while it has one", "[infer][experts]") {
  plan::expert_placement table;
  table.ranks = 2;
  table.layers = 1;
  table.experts = 2;
  table.rank_of_expert = {0, 1};
  table.rank_of_token = {0, 1, 1, -1};
  table.confidence = {10, 200, 100, 0};
  const inf::rows_by_experts rows(table, 2, 4);
  using order = std::vector<std::int32_t>;
  CHECK(rows(order{1, 0, 1, 0}) == order{1, 3, 0, 2});
  CHECK(rows(order{2, 2, 1, 1}) == order{0, 1, 2, 3});  // the surer ones stay
  CHECK(rows(order{1, 3, 1, 2, 0}) == order{1, 3, 4, 0, 2});
  CHECK(rows(order{}).empty());
  CHECK_THROWS_WITH(rows(order{4}), Contains("token 4 is not one of the 4"));
  CHECK_THROWS_WITH(inf::rows_by_experts(table, 3, 4), Contains("on 3 ranks is needed, got one on 2"));
  CHECK_THROWS_WITH(inf::rows_by_experts(table, 2, 5), Contains("for 5 tokens is needed, got one for 4"));
}

TEST_CASE("requests go to the replica of most of their tokens that has had none in the round", "[infer][experts]") {
  plan::expert_placement table;
  table.ranks = 3;
  table.rank_of_token = {0, 1, 2, -1};
  table.confidence = {1, 1, 1, 0};
  inf::affinity_router router(table, 3, 4);
  using prompt = std::vector<std::int32_t>;
  CHECK(router.route(prompt{2, 2, 0}) == 2);
  CHECK(router.route(prompt{2, 2, 0}) == 0);  // 2 has had one
  CHECK(router.route(prompt{2, 2, 0}) == 1);
  CHECK(router.route(prompt{2, 1, 1, 3}) == 1);  // the next round
  CHECK(router.route(prompt{}) == 0);
  CHECK_THROWS_WITH(router.route(prompt{-1}), Contains("token -1 is not one of the 4"));
  CHECK_THROWS_WITH(inf::affinity_router(table, 2, 4), Contains("on 2 ranks is needed, got one on 3"));
  for (const int rank : {3, -2}) {
    table.rank_of_token[2] = rank;
    CHECK_THROWS_WITH(inf::affinity_router(table, 3, 4),
                      Contains("on 3 ranks names rank " + std::to_string(rank) + " for token 2"));
  }
}

TEST_CASE("names in order have the layers with experts only, their routers' rows and biases, and keep groups",
          "[model][experts]") {
  md::deepseek_config c;
  c.layers = 3;
  c.heads = 4;
  c.width = 16;
  c.ffn = 6;
  c.context = 40;
  c.vocabulary = 23;
  c.query_latent = 8;
  c.key_latent = 6;
  c.still = 4;
  c.rotating = 4;
  c.value = 4;
  c.experts = 4;
  c.chosen = 2;
  c.groups = 2;
  c.kept_groups = 1;
  c.dense = 1;
  c.dense_ffn = 20;
  using orders = std::vector<std::vector<int>>;
  const auto model = md::deepseek<double>::describe(c);
  const md::experts_in_order<> names(model, orders{{2, 3, 1, 0}, {0, 1, 2, 3}});
  CHECK(names("model.layers.1.mlp.experts.0.gate_proj.weight").name == "model.layers.1.mlp.experts.2.gate_proj.weight");
  CHECK(names("model.layers.1.mlp.experts.3.down_proj.weight").name == "model.layers.1.mlp.experts.0.down_proj.weight");
  CHECK(names("model.layers.2.mlp.experts.3.up_proj.weight").name == "model.layers.2.mlp.experts.3.up_proj.weight");
  CHECK(names("model.layers.1.mlp.gate.weight").order == std::vector<std::int64_t>{2, 3, 1, 0});
  CHECK(names("model.layers.1.mlp.gate.e_score_correction_bias").order == std::vector<std::int64_t>{2, 3, 1, 0});
  CHECK(names("model.layers.0.mlp.down_proj.weight").order.empty());
  std::set<std::string> before, after;
  for (const std::string& name : md::parameter_names(model)) before.insert(name), after.insert(names(name).name);
  CHECK(before == after);
  const auto refused = [&](const orders& o) { return md::experts_in_order<>(model, o); };
  CHECK_THROWS_WITH(refused({{0, 1, 2, 3}}), Contains("the model has 2 layers with experts, got orders for 1"));
  CHECK_THROWS_WITH(refused({{0, 1, 2, 3}, {0, 1, 2, 2}}),
                    Contains("the order of layer 1 names each of 4 experts once"));
  CHECK_THROWS_WITH(
      refused({{0, 2, 1, 3}, {0, 1, 2, 3}}),
      Contains("2 groups of 2 experts needs them to stay together; the order of layer 0 has experts 0 and 2"));
}

}  // namespace expert_order
