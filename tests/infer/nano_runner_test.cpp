// A step on lanes has the bits of the whole: parts side by side, cuts, copies and trees, an engine on lanes, and refusals.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/compute/ops/products.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/any_runner.hpp>
#include <heddle/infer/cut_step.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/nano_runner.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/spiking_brain.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {
namespace nano_test {

using namespace infer_test;

using lanes_mesh = hd::mesh<hd::axis<inf::lane>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using lanes_world = hd::world<hd::threads, lanes_mesh>;
using llama = md::llama<double>;
using lanes_runner = inf::nano_runner<llama, lanes_world, backend>;
static_assert(std::same_as<lanes_runner::world_of_lane, world_type>);
static_assert(inf::step_runner<lanes_runner> && inf::stream_runner<lanes_runner>);

constexpr md::llama_config tiny{.layers = 3,
                                .heads = 4,
                                .kv_heads = 2,
                                .width = 12,
                                .ffn = 17,
                                .context = 24,
                                .vocabulary = 23,
                                .initial_deviation = 0.4,
                                .head_elements = 4};
constexpr inf::cache_extent extent{64, 4};

heddle::plan::nano_plan plan_of(std::vector<int> parts) {
  heddle::plan::nano_plan p;
  p.rows = std::accumulate(parts.begin(), parts.end(), 0);
  p.parts = std::move(parts);
  return p;
}

// `body(runner)` on the leader of lanes x pp x tp ranks.
template <class Body>
auto on_lanes(const lanes_mesh& mesh, const heddle::plan::nano_plan& plan, Body&& body) {
  return hd::testing::on_ranks(mesh, [&](lanes_world& world) {
    backend kernels{1};
    lanes_runner runner(tiny, world, kernels, extent, 256, plan);
    if (runner.owns_memory()) runner.stage().initialize(77);
    if (!runner.leads()) {
      while (runner.follow() == inf::followed::interrupted) {
      }
      return decltype(body(runner)){};
    }
    auto result = body(runner);
    runner.finish();
    return result;
  });
}

// Random chunks of random companions, a fork with a copied block, then trees whose rows are kept, and residual streams.
struct found_of_walk {
  all_logits<double> logits;
  std::vector<double> trees;
  int cut = 0;  // steps in parts
};
template <class Runner>
found_of_walk walk(Runner& runner, std::uint64_t seed) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::size_t s = 0; s < 7; ++s) sequences.push_back(random_tokens(s == 2 ? 3 : 20 - s, 23, seed + s));
  std::copy_n(sequences[5].begin(), 6, sequences[6].begin());
  found_of_walk all;
  const auto count = [&] {
    if constexpr (requires { runner.last_parts(); }) {
      all.cut += runner.last_parts() > 1;
      if (seed % 3 == 0) runner.interrupt();
    }
  };
  driver<Runner> d(runner, sequences, seed);
  d.spoil(seed);
  d.feed({{5, 6}});
  d.fork(5, 6, 6);
  const hd::counter_random random(seed, 5);
  for (std::uint64_t i = 0; i < 60; ++i) {
    std::vector<std::pair<std::size_t, std::int64_t>> some;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const auto draw = random.integer(i * 64 + s);
      const std::int64_t n = std::min(d.left(s), static_cast<std::int64_t>(1 + draw / 8 % 4));
      if ((i == 0 || draw % 3 != 0) && n > 0) some.emplace_back(s, n);
    }
    if (some.empty()) continue;
    d.feed(some);
    count();
  }
  all.logits = d.found();

  // Three sequences with rows of a tree; then the last row of each tree comes behind the first, in a step of moves.
  inf::step tree, next;
  for (std::int64_t q = 0; q < 3; ++q) {
    tree.sequences.push_back({tree.rows(), 4, 0, q, 1});
    tree.blocks.push_back(static_cast<std::int32_t>(7 * q + 1));
    for (std::int32_t r = 0; r < 4; ++r) tree.tokens.push_back(static_cast<std::int32_t>(3 * q + r));
    tree.parents.insert(tree.parents.end(), {-1, 0, 0, 0});
    const auto row = static_cast<std::int32_t>((7 * q + 1) * 4);
    next.moves.push_back({row + 3, row + 1});
    next.sequences.push_back({q, 1, 2, q, 1});
    next.tokens.push_back(5);
  }
  next.blocks = tree.blocks;
  tree.wanted = {1, 3, 4, 9, 11};
  next.wanted = {0, 1, 2};
  tree.streams = true;
  std::vector<double> logits(5 * 23);
  runner.run(tree, logits);
  count();
  all.trees.insert(all.trees.end(), logits.begin(), logits.end());
  all.trees.insert(all.trees.end(), runner.streams().begin(), runner.streams().end());
  logits.resize(3 * 23);
  runner.run(next, logits);
  count();
  all.trees.insert(all.trees.end(), logits.begin(), logits.end());
  return all;
}

}  // namespace nano_test
}  // namespace

TEST_CASE("a step on one to three lanes has the bits of the whole", "[infer][law][nano]") {
  using namespace nano_test;
  for (const auto& [stages, parts] : {std::pair(1, 1), std::pair(1, 2), std::pair(2, 1), std::pair(2, 2)}) {
    const std::uint64_t seed = 900 + static_cast<std::uint64_t>(2 * stages + parts);
    CAPTURE(stages, parts, seed);
    const auto whole =
        on_runners<llama>(mesh_type{stages, parts}, tiny, extent, 256, 77, 1,
                          [&](inf::model_runner<llama, world_type, backend>& runner) { return walk(runner, seed); });
    if (!whole.ok()) FAIL(whole.error);
    REQUIRE(whole[0].trees.size() == 5 * 23 + 5 * 12 + 3 * 23);
    for (const auto& rows : {std::vector{3}, std::vector{2, 2}, std::vector{1, 3}, std::vector{2, 1, 1}}) {
      for (const int lanes : {1, 2, 3}) {
        if (lanes < std::ssize(rows) || (lanes == 3 && rows == std::vector{1, 3})) continue;
        CAPTURE(lanes, rows);
        const auto found = on_lanes(lanes_mesh{lanes, stages, parts}, plan_of(rows),
                                    [&](lanes_runner& runner) { return walk(runner, seed); });
        if (!found.ok()) FAIL(found.error);
        CHECK(distance(found[0].logits, whole[0].logits) == 0);
        CHECK(found[0].trees == whole[0].trees);
        CHECK((found[0].cut > 5) == (rows.size() > 1));
      }
    }
  }
}

namespace {
namespace nano_test {
// With policies: requests of several rounds begin alike.
template <class Model, class... Policies>
void check_engine(const typename Model::config& config, int stages, int parts) {
  constexpr bool alike = sizeof...(Policies) > 0;
  CAPTURE(stages, parts);
  using found_type = std::pair<std::vector<std::vector<std::int32_t>>, int>;  // and steps in parts
  const auto answers = [](auto& runner) {
    using offered = std::conditional_t<alike, inf::capabilities<inf::next_token, inf::copy_states>,
                                       inf::capabilities<inf::next_token>>;
    using any_type = inf::any_runner<double, offered>;
    any_type any(runner);
    inf::engine<any_type, inf::chunked_prefill<16>, Policies...> engine(any);
    std::vector<std::vector<std::int32_t>> tokens(alike ? 18 : 9);
    int in_parts = 0;
    for (std::size_t i = 0; i < tokens.size();) {
      do {
        auto prompt = alike ? random_tokens(9, 23, 40) : random_tokens(1 + i, 23, 40 + i);
        if (alike) prompt.push_back(static_cast<std::int32_t>(7 * i % 23));
        engine.submit({.prompt = prompt, .max_tokens = 12, .sampling = {.temperature = 0}});
      } while (++i % (alike ? 6 : 9) != 0);
      while (!engine.idle()) {
        for (const inf::event& e : engine.step())
          if (e.token) tokens[static_cast<std::size_t>(e.id) % tokens.size()].push_back(*e.token);
        if constexpr (requires { runner.last_parts(); }) in_parts += runner.last_parts() > 1;
      }
    }
    CHECK((engine.counts().cache.found > 0) == alike);
    return found_type(tokens, in_parts);
  };
  const auto whole = hd::testing::on_ranks(mesh_type{stages, parts}, [&](world_type& world) {
    backend kernels{1};
    inf::model_runner<Model, world_type, backend> runner(config, world, kernels, {64, 4, 20}, 64);
    runner.stage().initialize(77);
    if (!runner.leads()) return static_cast<void>(runner.follow()), found_type();
    return answers(runner);
  });
  if (!whole.ok()) FAIL(whole.error);
  CHECK(whole[0].first[8].size() == 12);
  for (const bool serial : {false, true}) {
    heddle::plan::nano_plan plan = plan_of({8, 8});
    plan.serial = serial;
    const auto found = hd::testing::on_ranks(lanes_mesh{2, stages, parts}, [&](lanes_world& world) {
      backend kernels{1};
      inf::nano_runner<Model, lanes_world, backend> runner(config, world, kernels, {64, 4, 20}, 64, plan);
      if (runner.owns_memory()) runner.stage().initialize(77);
      if (!runner.leads()) return static_cast<void>(runner.follow()), found_type();
      return answers(runner);
    });
    if (!found.ok()) FAIL(found.error);
    CHECK(found[0].first == whole[0].first);
    CHECK((found[0].second > 0) == !serial);
  }
}
}  // namespace nano_test
}  // namespace

TEST_CASE("an engine on lanes gives the tokens of an engine on one", "[infer][nano]") {
  using namespace nano_test;
  check_engine<llama>(tiny, 1, 2);
  // A tied head on a stage without the embedding, and layers that keep states beside keys.
  check_engine<md::gpt2<double>>(
      {.layers = 3, .heads = 3, .width = 12, .context = 24, .vocabulary = 23, .initial_deviation = 0.4}, 2, 1);
  md::llama_config shape = tiny;
  shape.width = 24;
  check_engine<md::spiking_brain<double>, inf::prefix_shared, inf::restore>({shape, 6, 3}, 2, 1);
}

TEST_CASE("steps are cut between sequences, nearest to the plan, and never through shared blocks", "[infer][nano]") {
  namespace inf = heddle::infer;
  // Rows 3, 1, 1, 4, 2 in blocks of 2 tokens.
  inf::step s;
  for (const std::int64_t rows : {3, 1, 1, 4, 2}) {
    s.sequences.push_back({s.rows(), rows, 0, std::ssize(s.blocks), (rows + 1) / 2});
    for (std::int64_t b = 0; b < (rows + 1) / 2; ++b)
      s.blocks.push_back(static_cast<std::int32_t>(std::ssize(s.blocks)));
    for (std::int64_t r = 0; r < rows; ++r) s.tokens.push_back(static_cast<std::int32_t>(s.rows()));
  }
  s.wanted = {2, 4, 8, 10};
  const auto rows_of = [](const std::vector<inf::step>& parts) {
    std::vector<std::int64_t> rows;
    for (const inf::step& p : parts) rows.push_back(p.rows());
    return rows;
  };
  using rows = std::vector<std::int64_t>;
  CHECK(rows_of(inf::cut_step(s, rows{6, 5}, 2)) == rows{5, 6});
  CHECK(rows_of(inf::cut_step(s, rows{8, 3}, 2)) == rows{9, 2});
  CHECK(rows_of(inf::cut_step(s, rows{4, 4, 3}, 2)) == rows{4, 5, 2});
  CHECK(rows_of(inf::cut_step(s, rows{11}, 2)) == rows{11});
  const std::vector<inf::step> two = inf::cut_step(s, rows{5, 6}, 2);
  CHECK(two[1].tokens == std::vector<std::int32_t>{5, 6, 7, 8, 9, 10});
  CHECK(two[1].wanted == rows{3, 5});
  CHECK(two[1].blocks == std::vector<std::int32_t>{4, 5, 6});
  CHECK(two[1].sequences == std::vector<inf::sequence_rows>{{0, 4, 0, 0, 2}, {4, 2, 0, 2, 1}});
  const inf::step_limits limits{.vocabulary = 20, .context = 9, .block_rows = 2, .blocks = 9, .max_rows = 20};
  for (const inf::step& p : two) CHECK_NOTHROW(inf::require_step(p, limits));
  // The third sequence reads what the fourth writes: no cut between them; a block that nobody writes may be shared.
  inf::step shared = s;
  shared.blocks[3] = shared.blocks[4];
  CHECK(rows_of(inf::cut_step(shared, rows{5, 6}, 2)) == rows{4, 7});
  for (inf::sequence_rows& q : shared.sequences) {
    q.position = 2 * (q.blocks - 1);
    q.rows = 1;
    q.first_row = &q - shared.sequences.data();
  }
  shared.sequences[3].first_block = shared.sequences[0].first_block = 0;  // first blocks of both are read alone
  shared.blocks = {7, 1, 2, 3, 4, 5, 6};
  shared.sequences[3].blocks = 2, shared.sequences[3].position = 2;
  shared.tokens.assign(5, 0);
  shared.wanted.clear();
  CHECK(rows_of(inf::cut_step(shared, rows{2, 3}, 2)) == rows{4, 1});  // both write block 1
}

namespace {
namespace nano_test {
// The logits of token 3 behind 1 and 2, whose rows and states a runner of another memory has computed.
template <class Model>
std::vector<double> logits_on(const typename Model::config& config, bool lent) {
  const auto ranks = hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    using runner_type = inf::model_runner<Model, world_type, backend>;
    runner_type first(config, world, kernels, {64, 4, 20}, 16);
    runner_type second(config, world, kernels, {64, 4, 20}, 16, &first.stage());
    runner_type third(config, world, kernels, {64, 4, 20}, 16, &second.stage());
    first.stage().initialize(77);
    const std::int64_t state = first.limits().states > 0 ? 7 : -1;
    std::vector<double> logits(23);
    first.run({.tokens = {1, 2}, .sequences = {{0, 2, 0, 0, 1, 0, state}}, .blocks = {5}}, {});
    (lent ? third : first)
        .run({.tokens = {3}, .sequences = {{0, 1, 2, 0, 1, 0, state}}, .blocks = {5}, .wanted = {0}}, logits);
    return logits;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  return ranks[0];
}
}  // namespace nano_test
}  // namespace

TEST_CASE("a stage is lent memory by one to which it was lent", "[infer][nano]") {
  using namespace nano_test;
  CHECK(logits_on<llama>(tiny, true) == logits_on<llama>(tiny, false));
  md::llama_config shape = tiny;
  shape.width = 24;
  using states = md::spiking_brain<double>;
  CHECK(logits_on<states>({shape, 6, 3}, true) == logits_on<states>({shape, 6, 3}, false));
}

namespace {
namespace nano_test {
// A backend whose product number `fails` fails, or that is slow.
struct odd_backend : backend {
  using backend::backend;
  int fails = 0, seen = 0;
  std::chrono::milliseconds slow{0};
  template <class Op, class T, class... V>
    requires std::is_base_of_v<hd::compute::ops::product_operation, Op>
  void run(const V&... v) {
    if (fails > 0 && ++seen == fails) throw std::runtime_error("the backend of lane 0 failed");
    std::this_thread::sleep_for(slow);
    hd::compute::run<Op>(static_cast<backend&>(*this), v...);
  }
};
}  // namespace nano_test
}  // namespace

TEST_CASE("a lane may compute with memory of another that ends with an error", "[infer][nano]") {
  using namespace nano_test;
  const auto ranks = hd::testing::on_ranks(lanes_mesh{2, 1, 1}, [](lanes_world& world) {
    odd_backend kernels{1};
    if (world.rank() == 0)
      kernels.fails = 3;
    else
      kernels.slow = std::chrono::milliseconds(5);
    inf::nano_runner<llama, lanes_world, odd_backend> runner(tiny, world, kernels, extent, 16, plan_of({1, 1}));
    if (runner.owns_memory()) runner.stage().initialize(77);
    if (!runner.leads()) return static_cast<void>(runner.follow());
    std::vector<double> logits(2 * 23);
    runner.run({.tokens = {1, 2}, .sequences = {{0, 1, 0, 0, 1}, {1, 1, 0, 1, 1}}, .blocks = {3, 4}, .wanted = {0, 1}},
               logits);
  });
  CHECK_THAT(ranks.error, Catch::Contains("the backend of lane 0 failed"));
}

TEST_CASE("lanes refuse plans and steps that do not fit, and go on", "[infer][nano]") {
  using namespace nano_test;
  const auto nothing = [](lanes_runner&) { return 0; };
  CHECK_THAT(
      on_lanes(lanes_mesh{2, 1, 1}, plan_of({1, 1, 1}), nothing).error,
      Catch::Contains("at most 2 parts, a lane for each, of at least 1 row and of 3 rows together, got 3 parts"));
  heddle::plan::nano_plan wrong = plan_of({1, 1});
  wrong.rows = 3;
  CHECK_THAT(on_lanes(lanes_mesh{2, 1, 1}, wrong, nothing).error, Catch::Contains("of 3 rows together, got 2 parts"));
  const auto ranks = on_lanes(lanes_mesh{2, 1, 2}, plan_of({1, 1}), [](lanes_runner& runner) {
    std::string said;
    inf::step s{.tokens = {1, 2}, .sequences = {{0, 1, 0, 0, 1}, {1, 1, 0, 1, 1}}, .blocks = {3, 64}, .wanted = {0, 1}};
    std::vector<double> logits(2 * 23);
    try {
      runner.run(s, logits);
    } catch (const hd::config_error& e) {
      said = e.what();
    }
    s.blocks[1] = 5;
    runner.run(s, logits);
    runner.finish();
    try {
      runner.run(s, logits);
    } catch (const hd::config_error& e) {
      said += e.what();
    }
    return said;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  CHECK_THAT(ranks[0], Catch::Contains("block 64 is not one of the cache's 64"));
  CHECK_THAT(ranks[0], Catch::Contains("no step can follow finish"));
}
