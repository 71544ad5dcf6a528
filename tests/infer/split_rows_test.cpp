// tests/infer/split_rows_test.cpp: engines whose ranks share the rows of a step, in any order, and replicas that share experts, answer as one rank.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/lockstep_runner.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/infer/rows_by_experts.hpp>
#include <heddle/model/mistral.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/testing/counting_world.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace split_rows {

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace plan = heddle::plan;
using Catch::Matchers::Contains;
using infer_test::backend, infer_test::mesh_type, infer_test::world_type;

namespace {

// Attention, experts and rows over tp.
using shared_rows = hd::sharding<hd::dim::split<hd::dim::heads, hd::tp>, hd::dim::split<hd::dim::vocabulary, hd::tp>,
                                 hd::dim::split<hd::dim::sequence, hd::tp>, hd::dim::split<hd::dim::experts, hd::tp>>;
using model_type = md::mixtral<double, shared_rows>;
using runner_type = inf::model_runner<model_type, world_type, backend>;

constexpr md::mixtral_config small{{.layers = 3,
                                    .heads = 6,
                                    .kv_heads = 3,
                                    .width = 12,
                                    .ffn = 7,
                                    .context = 40,
                                    .vocabulary = 23,
                                    .initial_deviation = 0.4,
                                    .head_elements = 4},
                                   12,
                                   2};
constexpr std::uint64_t seed = 20261130;

// A table of random ranks.
plan::expert_placement random_table(int ranks, std::uint64_t stream) {
  const hd::counter_random random(seed, stream);
  plan::expert_placement p;
  p.ranks = ranks;
  p.layers = static_cast<int>(small.layers);
  p.experts = static_cast<int>(small.experts);
  for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(small.vocabulary); ++t) {
    p.rank_of_token.push_back(static_cast<int>(random.integer(t) % static_cast<std::uint64_t>(ranks + 1)) - 1);
    p.confidence.push_back(static_cast<std::uint8_t>(random.integer(100 + t)));
  }
  return p;
}

std::vector<inf::request> requests() {
  std::vector<inf::request> all;
  for (const std::size_t n : {7u, 1u, 19u, 12u, 4u}) {
    inf::request r{.max_tokens = 6, .log_probabilities = 0};
    r.prompt = infer_test::random_tokens(n, static_cast<int>(small.vocabulary), 300 + n);
    if (n != 12) r.sampling.temperature = 0;
    all.push_back(r);
  }
  return all;
}

struct answers {
  std::map<inf::request_id, std::vector<std::int32_t>> tokens{};
  std::vector<double> log_probabilities{};
};

// Requests come one by one, so that steps have one row, fewer than ranks, and many.
template <class Model = model_type>
answers answer(const mesh_type& mesh, const plan::expert_placement* table,
               const typename Model::config& config = small) {
  answers found;
  hd::launch<hd::threads>(mesh, [&](world_type& world) {
    backend kernels{1};
    inf::model_runner<Model, world_type, backend> runner(config, world, kernels, {40, 4}, 9);
    runner.stage().initialize(seed);
    if (table != nullptr) runner.stage().order_rows(inf::rows_by_experts(*table, table->ranks, small.vocabulary));
    if (!runner.leads()) {
      runner.follow();
      return;
    }
    inf::engine<inf::model_runner<Model, world_type, backend>> engine(runner, {.seed = 5});
    const auto all = requests();
    for (std::size_t next = 0; next < all.size() || !engine.idle();) {
      if (next < all.size()) engine.submit(all[next++]);
      for (const inf::event& x : engine.step()) {
        if (x.token) found.tokens[x.id].push_back(*x.token);
        if (x.log_probability) found.log_probabilities.push_back(*x.log_probability);
      }
    }
    runner.finish();
  });
  return found;
}

void check_same(const answers& found, const answers& alone) {
  CHECK(found.tokens == alone.tokens);
  REQUIRE(found.log_probabilities.size() == alone.log_probabilities.size());
  double worst = 0;
  for (std::size_t i = 0; i < found.log_probabilities.size(); ++i)
    worst = std::max(worst, std::abs(found.log_probabilities[i] - alone.log_probabilities[i]));
  CHECK(worst < 1e-10);
}

}  // namespace

TEST_CASE("ranks that share the rows of a step answer as one rank, in any order of rows", "[infer][experts][ranks]") {
  INFO("seed " << seed);
  const answers alone = answer(mesh_type{1, 1}, nullptr);
  REQUIRE(alone.log_probabilities.size() == 30);
  for (const auto& [stages, ranks] : {std::pair(1, 2), std::pair(1, 3), std::pair(1, 4), std::pair(2, 2)})
    for (const bool ordered : {false, true}) {
      CAPTURE(stages, ranks, ordered);
      const plan::expert_placement table = random_table(ranks, 40 + static_cast<std::uint64_t>(ranks));
      const answers found = answer(mesh_type{stages, ranks}, ordered ? &table : nullptr);
      check_same(found, alone);
    }
}
TEST_CASE("a Llama whose ranks share the rows of a step answers as on one rank", "[infer][ranks]") {
  using llama = md::llama<double, md::megatron_sequence<>>;
  const md::llama_config& config = small;
  const answers alone = answer<llama>(mesh_type{1, 1}, nullptr, config);
  REQUIRE(alone.log_probabilities.size() == 30);
  for (const auto& [stages, ranks] : {std::pair(1, 2), std::pair(1, 3), std::pair(1, 4), std::pair(2, 2)}) {
    CAPTURE(stages, ranks);
    const plan::expert_placement table = random_table(ranks, 60);  // any order of rows will do
    check_same(answer<llama>(mesh_type{stages, ranks}, ranks == 3 ? &table : nullptr, config), alone);
  }
}

namespace {

namespace counting = heddle::testing::counting;
using replica_mesh = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::ep>, hd::axis<hd::tp>>;

// A world whose calls are listed.
struct listed_replicas {
  counting::world<replica_mesh>& all;
  int rank() const { return all.rank(); }
  int size() const { return all.size(); }
  const replica_mesh& mesh() const { return all.mesh(); }
  auto& control() { return all.control(); }
  template <class... Kept>
  auto& along_of(hd::type_list<Kept...>) {
    return all.along<Kept...>();
  }
  template <class... Kept>
  auto& control_of(hd::type_list<Kept...>) {
    return all.control_along<Kept...>();
  }
  template <class... Tags>
  auto& along_if() {
    return along_of(typename replica_mesh::template tags_among<Tags...>{});
  }
  template <class... Tags>
  auto& control_along_if() {
    return control_of(typename replica_mesh::template tags_among<Tags...>{});
  }
};
using replica_runner = inf::model_runner<md::mixtral<double, md::expert_parallel<>>, listed_replicas, backend>;

// What is wrong with the collectives of the ranks, or "": within a group all have called the same, in the same order.
std::string disagreement(const std::vector<std::vector<counting::call>>& of_ranks) {
  std::map<const void*, std::map<std::size_t, std::vector<std::tuple<std::string, std::int64_t, int>>>> groups;
  std::map<const void*, int> sizes;
  std::map<std::tuple<const void*, int, int, int>, std::vector<std::int64_t>> sent, received;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    for (const counting::call& c : of_ranks[r])
      if (std::string(c.what) == "send")
        sent[{c.group, c.rank, c.peer, c.tag}].push_back(c.elements);
      else if (std::string(c.what) == "recv")
        received[{c.group, c.peer, c.rank, c.tag}].push_back(c.elements);
      else  // rows that are gathered or exchanged are as many as a rank has: their number may differ
        sizes[c.group] = c.ranks,
        groups[c.group][r].emplace_back(c.what, std::string(c.what) == "all_to_all" ? 0 : c.elements, c.peer);
  for (const auto& [group, ranks] : groups) {
    if (std::ssize(ranks) != sizes.at(group)) return "of a group only some ranks called collectives";
    for (const auto& [r, list] : ranks)
      if (list != ranks.begin()->second) return "rank " + std::to_string(r) + " called other collectives";
  }
  return sent == received ? "" : "messages that were sent are not those that were received";
}

struct replica_answers {
  std::map<std::size_t, std::vector<std::int32_t>> tokens{};  // by request
  std::vector<std::int64_t> steps{}, rests{};                 // by replica
  std::string disagreement{};
  std::vector<std::string> refused{};  // steps of one replica behind the last, which no other hears of
  bool planned = true;                 // the memory of each rank is what was planned
};

// Request i goes to replica `to[i]`; an engine with `late` gets its requests after so many turns.
replica_answers serve(const replica_mesh& mesh, const std::vector<int>& to, int late = 0) {
  replica_answers found;
  const auto replicas = static_cast<std::size_t>(mesh.extent<hd::ep>());
  found.steps.assign(replicas, 0);
  found.rests.assign(replicas, 0);
  std::mutex mutex;
  std::vector<std::vector<counting::call>> calls(static_cast<std::size_t>(mesh.size()));
  counting::run(
      mesh,
      [&](counting::world<replica_mesh>& all) {
        listed_replicas world{all};
        backend kernels{1};
        const inf::memory_plan memory = replica_runner::plan(small, world, kernels, {40, 4}, 9);
        const std::int64_t blocks = replica_runner::cache_blocks_within(memory.total(), small, world, kernels, 4, 9);
        inf::lockstep_runner<replica_runner> runner(small, world, kernels, {40, 4}, 9);
        runner.stage().initialize(seed);
        {
          const std::lock_guard lock(mutex);
          found.planned = found.planned && memory.cache == runner.stage().cache_bytes() && blocks >= 40;
        }
        if (!runner.leads()) {
          runner.follow();
        } else {
          inf::engine<inf::lockstep_runner<replica_runner>> engine(runner, {.seed = 5});
          const int mine = mesh.coordinate<hd::ep>(world.rank());
          const auto asked = requests();
          std::map<inf::request_id, std::size_t> number;
          int turns = 0;
          const auto submit = [&](bool now) {
            for (std::size_t i = 0; now && i < asked.size(); ++i)
              if (to[i] == mine) number[engine.submit(asked[i])] = i;
          };
          submit(late == 0 || mine == 0);
          while (runner.turn(engine, [&](const inf::event& e) {
            const std::lock_guard lock(mutex);
            if (e.token) found.tokens[number.at(e.id)].push_back(*e.token);
          }))
            submit(++turns == late && mine != 0);
          const std::lock_guard lock(mutex);
          found.steps[static_cast<std::size_t>(mine)] = runner.steps();
          found.rests[static_cast<std::size_t>(mine)] = runner.rests();
          runner.finish();
          const auto refused = [&](auto&& f) {
            try {
              if (mine == 0) f();
            } catch (const hd::config_error& e) {
              found.refused.push_back(e.what());
            }
          };
          std::vector<double> logits(23);
          refused([&] { runner.rest(); });
          refused([&] {
            runner.run({.tokens = {1}, .sequences = {{0, 1, 0, 0, 1}}, .blocks = {0}, .wanted = {0}}, logits);
          });
        }
        calls[static_cast<std::size_t>(world.rank())] = all.calls();
      },
      std::chrono::milliseconds(60'000));
  found.disagreement = disagreement(calls);
  return found;
}

}  // namespace

namespace {
// Bytes that all ranks send in steps of so many rows of one text each.
std::int64_t bytes_of_steps(int ranks, int layers, int window, const std::vector<std::int64_t>& steps) {
  using windowed_runner = inf::model_runner<md::mistral<double, md::megatron_sequence<>>, listed_replicas, backend>;
  md::mistral_config config(small, window);
  config.layers = layers;
  std::int64_t bytes = 0;
  std::mutex mutex;
  counting::run(replica_mesh{1, 1, ranks}, [&](counting::world<replica_mesh>& all) {
    listed_replicas world{all};
    backend kernels{1};
    windowed_runner runner(config, world, kernels, {5, 8}, 20);
    runner.stage().initialize(seed);
    if (runner.leads()) {
      std::int64_t position = 0;
      for (const std::int64_t rows : steps) {
        inf::step s;
        s.tokens.assign(static_cast<std::size_t>(rows), 1);
        s.sequences = {{.rows = rows, .position = position, .blocks = 5}};
        s.blocks = {0, 1, 2, 3, 4};
        runner.run(s, {});
        position += rows;
      }
      runner.finish();
    } else {
      runner.follow();
    }
    const std::lock_guard lock(mutex);
    bytes += all.bytes_sent();
  });
  return bytes;
}
}  // namespace

TEST_CASE("ranks that share the rows of a step send them alone: a window adds no halo of keys", "[infer][ranks]") {
  for (const int ranks : {2, 3})
    for (const int window : {4, 30})
      for (const std::int64_t rows : {1, 5}) {
        CAPTURE(ranks, window, rows);
        const auto of_layers = [&](int layers) {  // the last step, behind 20 keys
          return bytes_of_steps(ranks, layers, window, {20, rows}) - bytes_of_steps(ranks, layers, window, {20});
        };
        // Each layer gathers the rows and adds them up by parts twice, for attention and for the MLP.
        CHECK(of_layers(3) - of_layers(1) == 2 * 4 * (ranks - 1) * rows * small.width * 8);
      }
}

TEST_CASE("replicas with unequal and empty queues end, with the answers of one rank", "[infer][experts][ranks]") {
  INFO("seed " << seed);
  // Greedy ones: tokens that are drawn depend on a request's number in its engine.
  const answers alone = answer(mesh_type{1, 1}, nullptr);
  for (const replica_mesh& mesh : {replica_mesh{1, 1, 1}, replica_mesh{1, 2, 1}, replica_mesh{1, 3, 1},
                                   replica_mesh{1, 2, 2}, replica_mesh{2, 2, 1}})
    for (const int kind : {0, 1, 2, 3}) {
      const int replicas = mesh.extent<hd::ep>();
      CAPTURE(to_string(mesh), kind);
      std::vector<int> to;  // all to one, unequal, to the last alone, none
      for (int i = 0; i < 5; ++i)
        to.push_back(kind == 0 ? 0 : kind == 1 ? i * i % replicas : kind == 2 ? replicas - 1 : replicas);
      const replica_answers found = serve(mesh, to, kind == 1 ? 3 : 0);
      CHECK(found.disagreement == "");
      CHECK(found.planned);
      CHECK(found.refused.size() == 2);
      for (const std::string& said : found.refused) CHECK_THAT(said, Contains("no step can follow finish"));
      CHECK(found.tokens.size() == (kind == 3 ? 0 : 5));
      for (const auto& [i, tokens] : found.tokens) {
        CHECK(tokens.size() == 6);
        if (i != 3) CHECK(tokens == std::next(alone.tokens.begin(), static_cast<std::ptrdiff_t>(i))->second);
      }
      for (std::size_t r = 0; r < found.steps.size(); ++r)
        CHECK(found.steps[r] + found.rests[r] == found.steps[0] + found.rests[0]);
    }
}

TEST_CASE("an order of rows of another model is refused", "[infer][experts]") {
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    runner_type runner(small, world, kernels, {8, 4}, 9);
    const auto with = [&](int ranks, int experts, int tokens) {
      plan::expert_placement p = random_table(ranks, 1);
      p.experts = experts;
      p.rank_of_token.resize(static_cast<std::size_t>(tokens));
      p.confidence.resize(static_cast<std::size_t>(tokens));
      runner.stage().order_rows(inf::rows_by_experts(p, ranks, tokens));
    };
    CHECK_NOTHROW(with(1, 12, 23));
    CHECK_THROWS_WITH(with(2, 12, 23), Contains("the model has 1 ranks that share rows, the order 2"));
    CHECK_THROWS_WITH(with(1, 16, 23), Contains("the model has 12 experts, the order 16"));
    CHECK_THROWS_WITH(with(1, 12, 22), Contains("the model has 23 tokens, the order 22"));
  });
}

}  // namespace split_rows
