// Steps with a cache give the logits of whole prefixes: any mesh, chunking, companions, blocks and forks.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/comm/communicator.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>

#include <cmath>
#include <string>

using namespace infer_test;

namespace {

constexpr md::gpt2_config small_gpt2{
    .layers = 3, .heads = 3, .width = 12, .context = 13, .vocabulary = 23, .initial_deviation = 0.4};
constexpr md::llama_config small_llama{.layers = 3,
                                       .heads = 6,
                                       .kv_heads = 3,
                                       .width = 12,
                                       .ffn = 17,
                                       .context = 13,
                                       .vocabulary = 23,
                                       .initial_deviation = 0.4,
                                       .head_elements = 4};

template <class Model>
void check_model(const typename Model::config& config) {
  const std::uint64_t seed = 20260;
  CAPTURE(seed);
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::size_t n : {std::size_t{13}, std::size_t{1}, std::size_t{7}, std::size_t{11}, std::size_t{12}})
    sequences.push_back(random_tokens(n, static_cast<int>(config.vocabulary), seed + n));
  std::copy_n(sequences[3].begin(), 6, sequences[4].begin());
  const auto expected = logits_of_prefixes<Model>(config, seed, sequences);
  double greatest = 0;
  for (const auto& row : expected[0])
    for (const double x : row) greatest = (std::max)(greatest, std::abs(x));
  CHECK(greatest > 0.1);  // there is something to compare
  for (const auto& [stages, parts] :
       {std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(2, 1), std::pair(2, 2)}) {
    all_logits<double> first;
    for (const std::int64_t block_rows : {1, 4, static_cast<int>(config.context)}) {
      CAPTURE(stages, parts, block_rows);
      const auto found = all_ways<Model>(mesh_type{stages, parts}, config, block_rows, 6, sequences, expected, seed);
      CHECK(found.from_expected < 1e-10);
      if (first.empty()) first = found.first;
      // Not a bit depends on companions, chunks, blocks or who shares them: products are heddle's own.
      CHECK(found.from_first == 0);
      CHECK(distance(found.first, first) == 0);
    }
  }
}

}  // namespace

TEST_CASE("a Llama with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::llama<double>>(small_llama);
}
TEST_CASE("a GPT-2 with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::gpt2<double>>(small_gpt2);
}
TEST_CASE("a Qwen-3 with a cache gives the logits of whole prefixes", "[infer]") {
  check_model<md::qwen3<double>>(md::qwen3_config(small_llama));
}

namespace {
using llama = md::llama<double>;
using llama_runner = inf::model_runner<llama, world_type, backend>;

std::string refused(const inf::step& step, std::size_t logits) {
  std::string text;
  hd::launch<hd::threads>(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    llama_runner runner(small_llama, world, kernels, {8, 4}, 6);
    runner.stage().initialize(1);
    std::vector<double> room(logits);
    try {
      runner.run(step, room);
    } catch (const hd::config_error& e) {
      text = e.what();
    }
    const inf::step good{.tokens = {1}, .sequences = {{0, 1, 0, 0, 1}}, .blocks = {3}, .wanted = {0}, .copies = {}};
    room.resize(23);
    runner.run(good, room);  // a refused step leaves the runner as it was
  });
  return text;
}
}  // namespace

TEST_CASE("a step beyond the limits is refused before any rank computes", "[infer]") {
  inf::step step{.tokens = {1, 2}, .sequences = {{0, 2, 0, 0, 1}}, .blocks = {3}, .wanted = {1}, .copies = {}};
  CHECK(refused(step, 23).empty());
  CHECK_THAT(refused(step, 22), Catch::Contains("1 wanted rows have 23 logits, got room for 22"));
  step.tokens[1] = 23;
  CHECK_THAT(refused(step, 23), Catch::Contains("token 23 is not in the vocabulary of 23"));
  step.tokens[1] = 2;
  step.blocks[0] = 8;
  CHECK_THAT(refused(step, 23), Catch::Contains("block 8 is not one of the cache's 8"));
  step.blocks[0] = 3;
  step.sequences[0].position = 12;
  CHECK_THAT(refused(step, 23), Catch::Contains("the context has 13 tokens"));
  step.sequences[0].position = 3;
  CHECK_THAT(refused(step, 23), Catch::Contains("needs 2 blocks of the cache, got 1"));
  step.tokens.assign(7, 1);
  CHECK_THAT(refused(step, 23), Catch::Contains("it has 7 rows, at most 6 are possible"));
}

TEST_CASE("the rows of a step in any two or more steps give the bits of the step that was not split", "[infer][law]") {
  const std::uint64_t seed = 5150;
  CAPTURE(seed);
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::size_t n : {std::size_t{9}, std::size_t{5}, std::size_t{7}, std::size_t{12}})
    sequences.push_back(random_tokens(n, 23, seed + n));
  // A step as engines form it: two sequences decode, the third goes on with a chunk of its prompt, the fourth begins.
  const std::vector<std::pair<std::size_t, std::int64_t>> step{{0, 1}, {2, 4}, {1, 1}, {3, 6}};
  constexpr std::int64_t all = 12;
  for (const auto& [stages, parts] :
       {std::pair(1, 1), std::pair(1, 2), std::pair(1, 3), std::pair(2, 2), std::pair(2, 4), std::pair(3, 2)}) {
    CAPTURE(stages, parts);
    const auto ranks =
        on_runners<llama>(mesh_type{stages, parts}, small_llama, {40, 4}, 40, seed, 1, [&](llama_runner& runner) {
          std::vector<double> off;
          all_logits<double> whole;
          // Bits of `cuts`: after which rows a nano-batch ends.
          for (const std::uint64_t cuts : {0x0u, 0x1u, 0x10u, 0x20u, 0x2u, 0x440u, 0x7ffu, 0x2a4u}) {
            driver<llama_runner> d(runner, sequences, seed + cuts);
            d.spoil(seed + cuts);
            d.feed({{0, 6}, {1, 4}, {2, 3}});
            std::vector<std::pair<std::size_t, std::int64_t>> nano;
            std::int64_t row = 0;
            for (const auto& [s, n] : step)
              for (std::int64_t i = 0; i < n; ++i, ++row) {
                if (nano.empty() || nano.back().first != s) nano.emplace_back(s, 0);
                ++nano.back().second;
                if (row + 1 < all && (cuts >> row & 1) == 0) continue;
                d.feed(nano);
                nano.clear();
              }
            for (int i = 0; i < 2; ++i) d.feed({{0, 1}, {3, 1}});  // the caches are the same, too
            if (cuts == 0) whole = d.found();
            off.push_back(distance(d.found(), whole));
          }
          return off;
        });
    if (!ranks.ok()) FAIL(ranks.error);
    CHECK(ranks[0] == std::vector<double>(8, 0.0));
  }
}

TEST_CASE("rows of a tree have the logits of their paths, and an accepted path is a plain sequence", "[infer][tree]") {
  const std::uint64_t seed = 411;
  CAPTURE(seed);
  for (const auto& [stages, parts] : {std::pair(1, 1), std::pair(1, 3), std::pair(2, 2)})
    for (const std::int64_t block_rows : {1, 4, 13}) {
      CAPTURE(stages, parts, block_rows);
      const hd::counter_random random(seed + static_cast<std::uint64_t>(block_rows), 9);
      std::uint64_t draws = 0;
      const auto below = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random.integer(draws++) % static_cast<std::uint64_t>(n));
      };
      // Two sequences side by side: texts in the cache, then trees with one or two rows of their own first.
      struct one {
        std::vector<std::int32_t> text, rows;
        std::vector<std::int64_t> parents;
        std::int64_t cached = 0;
      };
      std::vector<one> both(2);
      std::vector<std::vector<std::int32_t>> paths;  // of each row, then of the token after the accepted path
      std::vector<std::int64_t> leaves;
      for (std::size_t s = 0; s < 2; ++s) {
        one& o = both[s];
        o.cached = s == 0 ? 3 : 0;
        o.text = random_tokens(static_cast<std::size_t>(o.cached), 23, seed + s);
        const std::int64_t own = s == 0 ? 1 : 2, all = s == 0 ? 8 : 10;
        o.rows = random_tokens(static_cast<std::size_t>(all), 23, seed + 10 + s);
        for (std::int64_t i = 0; i < all; ++i) o.parents.push_back(i <= own ? i - 1 : below(i));
        std::int64_t leaf = all - 1;
        for (std::int64_t i = 0; i < all; ++i) {
          std::vector<std::int32_t> path;
          for (std::int64_t r = i; r >= 0; r = o.parents[static_cast<std::size_t>(r)])
            path.insert(path.begin(), o.rows[static_cast<std::size_t>(r)]);
          path.insert(path.begin(), o.text.begin(), o.text.end());
          paths.push_back(path);
        }
        leaves.push_back(leaf);
      }
      for (std::size_t s = 0; s < 2; ++s) {
        auto path = paths[s == 0 ? 7 : 17];
        path.push_back(5);
        paths.push_back(path);
      }
      const auto expected = logits_of_prefixes<llama>(small_llama, seed, paths);
      const auto ranks = on_runners<llama>(
          mesh_type{stages, parts}, small_llama, {40, block_rows}, 40, seed, 1, [&](llama_runner& runner) {
            std::vector<double> off;
            const auto compare = [&](std::span<const double> row, const std::vector<double>& with) {
              double worst = 0;
              for (std::size_t w = 0; w < with.size(); ++w) {
                const double d = std::abs(row[w] - with[w]);
                if (!(d <= worst)) worst = d;
              }
              off.push_back(worst);
            };
            const std::int64_t each = 13 / block_rows + 1;
            std::vector<std::int32_t> blocks[2];
            for (std::int64_t b = 0; b < each; ++b) {
              blocks[0].push_back(static_cast<std::int32_t>(2 * b + 1));
              blocks[1].push_back(static_cast<std::int32_t>(2 * (each - 1 - b)));
            }
            const auto cache_row = [&](std::size_t s, std::int64_t t) {
              return static_cast<std::int32_t>(blocks[s][static_cast<std::size_t>(t / block_rows)] * block_rows +
                                               t % block_rows);
            };
            const auto step_of = [&](auto&& rows, auto&& position) {
              inf::step step;
              for (std::size_t s = 0; s < 2; ++s) {
                const std::vector<std::int32_t> tokens = rows(s);
                if (tokens.empty()) continue;
                step.sequences.push_back({step.rows(), std::ssize(tokens), position(s), std::ssize(step.blocks), each});
                step.tokens.insert(step.tokens.end(), tokens.begin(), tokens.end());
                step.blocks.insert(step.blocks.end(), blocks[s].begin(), blocks[s].end());
              }
              return step;
            };
            runner.run(step_of([&](std::size_t s) { return both[s].text; }, [](std::size_t) { return 0; }), {});
            inf::step tree =
                step_of([&](std::size_t s) { return both[s].rows; }, [&](std::size_t s) { return both[s].cached; });
            for (const one& o : both) tree.parents.insert(tree.parents.end(), o.parents.begin(), o.parents.end());
            for (std::int64_t r = 0; r < tree.rows(); ++r) tree.wanted.push_back(r);
            tree.streams = true;
            std::vector<double> logits(tree.wanted.size() * 23);
            runner.run(tree, logits);
            for (std::size_t r = 0; r < tree.wanted.size(); ++r)
              compare(std::span<const double>(logits).subspan(r * 23, 23), expected[r].back());
            if (runner.streams().size() != tree.wanted.size() * 12) off.push_back(1e9);
            inf::step next = step_of([](std::size_t) { return std::vector<std::int32_t>{5}; },
                                     [&](std::size_t s) { return std::ssize(paths[18 + s]) - 1; });
            for (std::size_t s = 0; s < 2; ++s) {
              std::vector<std::int64_t> path;
              for (std::int64_t r = leaves[s]; r >= 0; r = both[s].parents[static_cast<std::size_t>(r)])
                path.insert(path.begin(), r);
              for (std::int64_t d = 0; d < std::ssize(path); ++d)
                next.moves.push_back({cache_row(s, both[s].cached + path[static_cast<std::size_t>(d)]),
                                      cache_row(s, both[s].cached + d)});
            }
            next.wanted = {0, 1};
            logits.resize(2 * 23);
            runner.run(next, logits);
            for (std::size_t s = 0; s < 2; ++s)
              compare(std::span<const double>(logits).subspan(s * 23, 23), expected[18 + s].back());
            return off;
          });
      if (!ranks.ok()) FAIL(ranks.error);
      REQUIRE(ranks[0].size() == 20);
      for (const double d : ranks[0]) CHECK(d < 1e-10);
    }
}

TEST_CASE("a step whose parents or moves are not there is refused", "[infer][tree]") {
  inf::step step{.tokens = {1, 2}, .sequences = {{0, 2, 0, 0, 1}}, .blocks = {3}, .wanted = {1}, .parents = {-1, -1}};
  CHECK(refused(step, 23).empty());
  step.parents = {-1};
  CHECK_THAT(refused(step, 23), Catch::Contains("one for each of its 2 rows, got 1"));
  step.parents = {-1, 1};
  CHECK_THAT(refused(step, 23), Catch::Contains("row 1 of a sequence should follow one of the rows before it"));
  step.parents = {};
  step.moves = {{0, 32}};
  CHECK_THAT(refused(step, 23), Catch::Contains("row 0 cannot be moved to row 32"));
}

TEST_CASE("who leads and who follows, and what a runner cannot be made of", "[infer]") {
  const auto ranks = hd::testing::on_ranks(mesh_type{1, 2}, [&](world_type& world) {
    backend kernels{1};
    llama_runner runner(small_llama, world, kernels, {8, 4}, 6);
    try {
      if (runner.leads())
        runner.follow();
      else
        runner.run({}, {});
    } catch (const hd::config_error& e) {
      if (!runner.leads()) runner.follow();  // returns when the leader's destructor finishes
      return std::string(e.what());
    }
    return std::string();
  });
  CHECK_THAT(ranks[0], Catch::Contains("rank 0 leads"));
  CHECK_THAT(ranks[1], Catch::Contains("run is for rank 0"));
  const auto make = [&](inf::cache_extent cache, std::int64_t rows) {
    return hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
      backend kernels{1};
      llama_runner runner(small_llama, world, kernels, cache, rows);
      runner.finish();
      std::vector<double> none;
      runner.run({}, none);
    });
  };
  CHECK_THAT(make({0, 4}, 6).error, Catch::Contains("got 0 blocks of 4 rows"));
  CHECK_THAT(make({1 << 30, 2}, 6).error, Catch::Contains("at most 2^31 - 1 rows"));
  CHECK_THAT(make({4, 4}, 0).error, Catch::Contains("1 to 2^31 - 1 rows, got 0"));
  CHECK_THAT(make({4, 4}, 6).error, Catch::Contains("no step can follow finish"));
}

TEST_CASE("between steps of a model the leader has other ranks return, and they follow again", "[infer]") {
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(9, 23, 1), random_tokens(6, 23, 2)};
  const mesh_type mesh{2, 2};
  const auto logits = [&](bool interrupts) {
    return hd::testing::on_ranks(mesh, [&](world_type& world) {
      backend kernels{1};
      llama_runner runner(small_llama, world, kernels, {16, 4}, 8);
      runner.stage().initialize(1);
      std::int64_t meetings = 0;
      const auto meet = [&] {  // all ranks, with a collective of their own and other weights
        world.control().all_reduce(std::span<std::int64_t>(&++meetings, 1), hd::maximum{});
        runner.stage().initialize(interrupts && meetings % 2 == 1 ? 2 : 1);
        runner.stage().weights_written();
      };
      all_logits<double> found;
      if (runner.leads()) {
        driver<llama_runner> d(runner, sequences, 1);
        const auto between_steps = [&](int times) {
          for (int i = 0; interrupts && i < times; ++i) runner.interrupt(), meet();
        };
        between_steps(2);
        for (const int s : {0, 1, 0, 1, 0}) {
          d.feed({{static_cast<std::size_t>(s), 3}});
          between_steps(4);
        }
        runner.finish();
        if (interrupts) {
          try {
            runner.interrupt();
          } catch (const hd::config_error&) {
            ++meetings;
          }
        }
        found = d.found();
      } else {
        while (runner.follow() == inf::followed::interrupted) meet();
        if (runner.follow() != inf::followed::finished) meetings = -1;  // and again
        try {
          runner.interrupt();
        } catch (const hd::config_error&) {
          ++meetings;
        }
      }
      return std::pair(found, meetings);
    });
  };
  const auto through = logits(false), often = logits(true);
  if (!often.ok()) FAIL(often.error);
  CHECK(often[0].first == through[0].first);
  for (int r = 0; r < mesh.size(); ++r) CHECK(often[r].second == 2 + 5 * 4 + 1);
  const auto alone = hd::testing::on_ranks(mesh_type{1, 1}, [&](world_type& world) {
    backend kernels{1};
    llama_runner runner(small_llama, world, kernels, {16, 4}, 8);
    runner.interrupt();  // nobody to call
    return 0;
  });
  CHECK(alone.ok());
}

TEST_CASE("a rank that throws ends all ranks of a model", "[infer]") {
  const inf::step step{.tokens = {1, 2}, .sequences = {{0, 2, 0, 0, 1}}, .blocks = {3}, .wanted = {1}, .copies = {}};
  const auto after_two_steps = [&](int failing) {
    return hd::testing::on_ranks(mesh_type{2, 2}, [&](world_type& world) {
      backend kernels{1};
      llama_runner runner(small_llama, world, kernels, {8, 4}, 6);
      runner.stage().initialize(1);
      std::vector<double> logits(23);
      if (world.rank() == failing && !runner.leads())
        throw hd::error("heddle: rank " + std::to_string(failing) + " is ill");
      if (!runner.leads()) return runner.follow();
      runner.run(step, logits);
      throw hd::error("heddle: the leader is ill");
    });
  };
  for (const int rank : {1, 2, 3})
    CHECK_THAT(after_two_steps(rank).error, Catch::Contains("rank " + std::to_string(rank) + " is ill"));
  CHECK_THAT(after_two_steps(0).error, Catch::Contains("the leader is ill"));
}

TEST_CASE("ranks of a group call the same collectives in every step", "[infer]") {
  using counts = std::vector<std::int64_t>;
  const std::vector<std::vector<std::int32_t>> sequences{random_tokens(9, 23, 1), random_tokens(4, 23, 2)};
  const mesh_type mesh{2, 3};
  const auto ranks = hd::testing::on_ranks(mesh, [&](world_type& world) {
    backend kernels{1};
    llama_runner runner(small_llama, world, kernels, {16, 4}, 8);
    runner.stage().initialize(1);
    if (runner.leads()) {
      driver<llama_runner> d(runner, sequences, 1);
      d.feed({{0, 3}, {1, 2}});
      d.feed({{1, 1}});
      d.feed({{0, 4}, {1, 1}});
      d.feed({{0, 2}});
      runner.run({.tokens = {}, .sequences = {}, .blocks = {}, .wanted = {}, .copies = {{1, 2}}}, {});
      runner.finish();
    } else {
      runner.follow();
    }
    counts all;
    const auto add = [&](const hd::comm_counters& c) {
      for (std::size_t i = 0; i < hd::comm_operations; ++i) all.push_back(c.by_operation[i].calls);
    };
    add(world.control().counters());
    add(world.along<hd::tp>().counters());
    return all;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  const auto at = [](hd::comm_operation what) { return static_cast<std::size_t>(what); };
  CHECK(ranks[0][at(hd::comm_operation::broadcast)] == 5 * 2 + 1);
  // Embedding, two sums in each of two blocks of the first stage; two in one block, and the logits, of the last.
  CHECK(ranks[0][hd::comm_operations + at(hd::comm_operation::all_reduce)] == 4 * (1 + 2 * 2));
  CHECK(ranks[3][hd::comm_operations + at(hd::comm_operation::all_reduce)] == 4 * 2);
  CHECK(ranks[3][hd::comm_operations + at(hd::comm_operation::gather_v)] == 4);
  for (int r = 0; r < mesh.size(); ++r) {
    CAPTURE(r);
    CHECK(ranks[r] == ranks[r / 3 * 3]);  // as the first of its stage
    CHECK(std::equal(ranks[r].begin(), ranks[r].begin() + hd::comm_operations, ranks[0].begin()));
  }
}

TEST_CASE("bytes of the cache follow from the description, and blocks from bytes", "[infer]") {
  for (const auto& [stages, parts] :
       {std::pair(1, 1), std::pair(1, 2), std::pair(2, 3), std::pair(3, 1), std::pair(1, 4)}) {
    const mesh_type mesh{stages, parts};
    CAPTURE(stages, parts);
    const auto bytes = hd::testing::on_ranks(mesh, [&](world_type& world) {
      backend kernels{1};
      llama_runner runner(small_llama, world, kernels, {5, 3}, 6);
      return runner.stage().cache_bytes();
    });
    if (!bytes.ok()) FAIL(bytes.error);
    std::int64_t most = 0;
    for (int r = 0; r < mesh.size(); ++r) {
      const std::int64_t layers = 3 / stages + (mesh.coordinate<hd::pp>(r) < 3 % stages);
      const std::int64_t heads = 3 / parts + (mesh.coordinate<hd::tp>(r) < 3 % parts);
      const std::int64_t one = layers * 2 * heads * 4 * 3 * 8;  // keys and values, 4 elements, 3 rows of 8 bytes each
      CHECK(bytes[r] == 5 * one);
      most = (std::max)(most, one);
    }
    CHECK(llama_runner::cache_blocks_for(7 * most, small_llama, mesh, 3) == 7);
    CHECK(llama_runner::cache_blocks_for(7 * most - 1, small_llama, mesh, 3) == 6);
    CHECK(llama_runner::cache_blocks_for(-1, small_llama, mesh, 3) == 0);
  }
  CHECK_THROWS_WITH(llama_runner::cache_blocks_for(1, small_llama, mesh_type{1, 1}, 0),
                    Catch::Contains("at least 1 row, got 0"));
}
