// Instances that merge and split: the tokens of those that stayed, and the bytes and runs of the layouts.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/described_weights.hpp>
#include <heddle/model/elastic_llama.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {
namespace hd = heddle;
namespace inf = heddle::infer;
namespace md = heddle::model;

using elastic_mesh = hd::mesh<hd::axis<hd::tp>>;
using elastic_world = hd::world<hd::threads, elastic_mesh>;
using elastic_model = md::elastic_llama<double>;
using elastic_three = inf::elastic<elastic_model, elastic_world, hd::compute::host<>, 1, 2, 4>;

constexpr md::llama_config elastic_config{.layers = 2,
                                          .heads = 8,
                                          .kv_heads = 4,
                                          .width = 16,
                                          .ffn = 24,
                                          .context = 64,
                                          .vocabulary = 23,
                                          .initial_deviation = 0.4,
                                          .head_elements = 4};
constexpr std::int64_t elastic_block_rows = 4;
constexpr inf::cache_extent elastic_cache{
    .blocks = 16, .block_rows = elastic_block_rows, .order = inf::cache_order::by_head};
constexpr std::int64_t bytes_of_token = 2 * 2 * 4 * 4 * 8;  // keys and values, layers, heads, elements, bytes

struct elastic_part {
  int steps = 0, degree = 1;
};
struct elastic_seen {
  std::map<std::pair<inf::request_id, std::int64_t>, std::pair<std::int32_t, double>> tokens{};
  std::int64_t sent = 0, expected = 0, runs = 0, peak = 0, copied = 0, longest_gap = 0, used = 0, began_with = 0;
};

std::vector<inf::request> elastic_requests(int rank) {
  std::vector<inf::request> all;
  for (const int n : {3, 1, 11}) {
    inf::request r{.max_tokens = 7, .log_probabilities = 0};
    for (int i = 0; i < n + rank; ++i)
      r.prompt.push_back(static_cast<std::int32_t>(
          hd::counter_random(5, 1).integer(static_cast<std::uint64_t>(64 * rank + 8 * n + i)) % 23));
    if (n == 1) r.sampling.temperature = 0;
    if (n == 11) r.sampling.repetition_penalty = 1.3;
    r.sampling.seed = static_cast<std::uint64_t>(100 * rank + n);
    all.push_back(r);
  }
  return all;
}

// Three requests on each of four ranks; after so many steps each, instances have these degrees.
elastic_seen elastic_run(const std::vector<elastic_part>& parts,
                         inf::elastic_weights how = inf::elastic_weights::shared) {
  elastic_seen seen;
  std::mutex lock;
  hd::launch<hd::threads>(elastic_mesh{4}, [&](elastic_world& world) {
    hd::compute::host<> kernels{1};
    elastic_three all(elastic_config, world, kernels, elastic_cache, 20, how);
    all.stage().initialize(7);
    all.weights_written();
    elastic_seen mine;
    std::map<inf::request_id, std::int64_t> last;
    std::int64_t now = 0;
    for (const inf::request& r : elastic_requests(world.rank())) all.submit(r);
    const auto step = [&] {
      ++now;
      for (const inf::event& e : all.step()) {
        if (!e.token) continue;
        mine.tokens[{e.id, e.index}] = {*e.token, e.log_probability.value_or(1)};
        if (const auto at = last.find(e.id); at != last.end())
          mine.longest_gap = (std::max)(mine.longest_gap, now - at->second);
        last[e.id] = now;
      }
    };
    for (const elastic_part& p : parts) {
      if (!all.leads()) {
        all.follow();
        continue;
      }
      for (int i = 0; i < p.steps; ++i) step();
      if (all.degree() == 1 && p.degree == 4)
        mine.expected += all.counts().cache.used * elastic_block_rows * bytes_of_token * 3 / 4;
      all.transform(p.degree);
    }
    if (all.leads()) {
      while (!all.idle()) step();
      mine.used = all.counts().cache.used;
      all.finish();
    } else {
      all.follow();
    }
    const std::scoped_lock held(lock);
    seen.tokens.merge(mine.tokens);
    seen.sent += all.bytes_sent();
    seen.runs += all.runs_sent();
    seen.expected += mine.expected;
    seen.peak = (std::max)(seen.peak, all.peak_bytes());
    seen.copied = all.copied_bytes();
    seen.longest_gap = (std::max)(seen.longest_gap, mine.longest_gap);
    seen.used += mine.used;
  });
  return seen;
}
void same_answers(const elastic_seen& a, const elastic_seen& b) {
  REQUIRE(a.tokens.size() == b.tokens.size());
  for (auto x = a.tokens.begin(), y = b.tokens.begin(); x != a.tokens.end(); ++x, ++y) {
    REQUIRE(x->first == y->first);
    REQUIRE(x->second.first == y->second.first);
    REQUIRE(std::abs(x->second.second - y->second.second) < 1e-10);
  }
  REQUIRE(a.used == 0);
}
}  // namespace

TEST_CASE("instances that merge after step k and split after step m answer as those that stayed", "[infer][elastic]") {
  const elastic_seen stayed = elastic_run({});
  REQUIRE(stayed.tokens.size() == 4 * 3 * 7);
  for (int k = 0; k <= 9; ++k)
    for (int m = 0; m <= 9; ++m) {
      INFO("merged after step " << k << ", split after " << m << " more");
      const elastic_seen moved = elastic_run({{k, 4}, {m, 1}});
      same_answers(moved, stayed);
      REQUIRE(moved.longest_gap <= 1);  // a token in the step before, and one in the step after
      REQUIRE(moved.sent >= moved.expected);
      if (m == 0) REQUIRE(moved.sent == 2 * moved.expected);
      REQUIRE(moved.runs * (bytes_of_token / (2 * 2) * elastic_block_rows / 4) == moved.sent);
      REQUIRE(moved.peak <= 2 * 16 * elastic_block_rows * 4 * 4 * 8);  // keys and values of a layer
      REQUIRE(moved.copied == 0);
    }
  for (const std::vector<elastic_part>& parts : {std::vector<elastic_part>{{2, 2}, {1, 4}, {2, 2}, {1, 1}},
                                                 {{1, 4}, {1, 2}, {1, 4}, {1, 1}, {1, 2}},
                                                 {{3, 2}},
                                                 {{3, 4}}}) {
    same_answers(elastic_run(parts), stayed);
    const elastic_seen copied = elastic_run(parts, inf::elastic_weights::copied);
    same_answers(copied, stayed);
    REQUIRE(copied.copied > 0);
  }
}
