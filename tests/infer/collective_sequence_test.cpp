// Law 13 of an engine on several ranks: in every step all ranks of a group call the same collectives, and each message that is sent is received.
#include "catch.hpp"

#include "fake_runner.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/infer/model_runner.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/falcon_drafter.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/testing/counting_world.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace inf = heddle::infer;
namespace counting = heddle::testing::counting;

namespace {

using mesh_type = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::tp>>;
using backend = hd::compute::host<>;
using calls = std::vector<counting::call>;

// A world whose calls are listed.
struct listed_world {
  counting::world<mesh_type>& all;
  int rank() const { return all.rank(); }
  int size() const { return all.size(); }
  const mesh_type& mesh() const { return all.mesh(); }
  auto& control() { return all.control(); }
  template <class Tag>
  auto& along_if() {
    return all.along<Tag>();
  }
  template <class Tag>
  auto& along() {
    return all.along<Tag>();
  }
};

bool is_message(const counting::call& c) {
  return std::string(c.what) == "send" || std::string(c.what) == "recv";
}

// What is wrong with the calls of the ranks, or "".
std::string disagreement(const std::vector<calls>& of_ranks) {
  using collective = std::tuple<std::string, std::int64_t, int>;
  std::map<const void*, std::map<std::size_t, std::vector<collective>>> collectives;  // by group and rank
  using way = std::tuple<const void*, int, int, int>;                                 // group, from, to, tag
  std::map<way, std::vector<std::int64_t>> sent, received;
  for (std::size_t r = 0; r < of_ranks.size(); ++r)
    for (const counting::call& c : of_ranks[r])
      if (!is_message(c))
        collectives[c.group][r].emplace_back(c.what, c.elements, c.peer);
      else if (std::string(c.what) == "send")
        sent[{c.group, c.rank, c.peer, c.tag}].push_back(c.elements);
      else
        received[{c.group, c.peer, c.rank, c.tag}].push_back(c.elements);
  for (const auto& [group, ranks] : collectives)
    for (const auto& [r, list] : ranks)
      if (list != ranks.begin()->second) return "rank " + std::to_string(r) + " called other collectives";
  if (sent != received) return "messages that were sent are not those that were received";
  return "";
}

struct result {
  std::vector<calls> of_ranks;
  inf::engine_counts counts;
  int cancelled = 0;
};

// An engine with random requests, of which some are cancelled, in a cache that is too small for all. `make(base)`: what proposes, on the rank that leads; `base`: what ranks have gathered for it.
template <class Make>
result run(const mesh_type& mesh, unsigned seed, Make&& make) {
  constexpr md::llama_config small{.layers = 2,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .width = 16,
                                   .ffn = 20,
                                   .context = 48,
                                   .vocabulary = 13,
                                   .initial_deviation = 0.5,
                                   .head_elements = 4};
  using runner_type = inf::model_runner<md::llama<double>, listed_world, backend>;
  result out;
  out.of_ranks.resize(static_cast<std::size_t>(mesh.size()));
  counting::run(
      mesh,
      [&](counting::world<mesh_type>& all) {
        listed_world world{all};
        backend kernels{1};
        runner_type runner(small, world, kernels, {14, 4}, 20);
        runner.stage().initialize(5);
        const auto base = md::gather_falcon_base(runner.stage(), world);
        if (!runner.leads()) {
          runner.follow();
        } else {
          std::mt19937 random(seed);
          auto by = make(base);
          using policy = typename decltype(by)::policy;
          inf::engine<runner_type, inf::prefix_shared, policy, inf::chunked_prefill<9>> engine(
              runner, {.max_running = 8}, by.decoding());
          std::vector<inf::request_id> open;
          int left = 30, more = 1000;
          // Goes on until everything has happened once, which the first 30 requests do not promise.
          const auto missed = [&] {
            const inf::engine_counts counts = engine.counts();
            return out.cancelled == 0 || counts.preemptions == 0 || counts.accepted_tokens == 0;
          };
          while (left > 0 || !engine.idle()) {
            for (auto n = random() % 3; n > 0 && left > 0; --n, --left)
              open.push_back(engine.submit(fake::any_request(random, 30)));
            if (!open.empty() && random() % 6 == 0) engine.cancel(open[random() % open.size()]);
            for (const inf::event& e : engine.step()) out.cancelled += e.finish == inf::finish_reason::cancelled;
            if (left == 0 && more > 0 && missed()) {
              left = 10;
              more -= left;
            }
          }
          out.counts = engine.counts();
          runner.finish();
        }
        out.of_ranks[static_cast<std::size_t>(world.rank())] = all.calls();
      },
      std::chrono::milliseconds(100'000));
  return out;
}

struct by_ngrams {
  using policy = inf::ngram_speculation<3>;
  explicit by_ngrams(const md::falcon_base<double>&) {}
  policy decoding() { return {}; }
};
// Blocks of a drafter with random weights; a tree of a few likely tokens, some of which are right.
struct by_falcon {
  using drafter_type = md::falcon_drafter<double, backend>;
  using policy = inf::falcon_speculation<drafter_type>;
  backend kernels{1};
  drafter_type drafter{kernels, {.width = 16, .heads = 2, .ffn = 12, .vocabulary = 13, .block = 2, .context = 48}};
  explicit by_falcon(const md::falcon_base<double>& base) {
    drafter.take(base);
    drafter.initialize(8, 0.3);
  }
  policy decoding() {
    return {drafter, inf::token_tree(std::vector<std::vector<std::int64_t>>{{0}, {1}, {2}, {0, 0}, {0, 1}, {0, 0, 0}})};
  }
};

}  // namespace

TEST_CASE("all ranks of an engine call the same collectives, whatever its requests do", "[infer][engine][law]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  const auto check = [](const result& found) {
    CHECK(disagreement(found.of_ranks) == "");
    CHECK(found.cancelled > 0);
    CHECK(found.counts.preemptions > 0);
    CHECK(found.counts.accepted_tokens > 0);
    for (const calls& c : found.of_ranks) CHECK(std::ssize(c) > 2 * found.counts.steps);
    // A list with one call less, or another size, is found.
    std::vector<calls> less = found.of_ranks, other = found.of_ranks;
    less.back().pop_back();
    ++other.back()[other.back().size() / 2].elements;
    CHECK(disagreement(less) != "");
    CHECK(disagreement(other) != "");
  };
  for (const mesh_type& mesh : {mesh_type{1, 2}, mesh_type{2, 1}, mesh_type{2, 2}, mesh_type{2, 4}}) {
    CAPTURE(hd::to_string(mesh));
    check(run(mesh, seed, [](const auto& base) { return by_ngrams(base); }));
  }
  INFO("falcon, pp=2,tp=2");  // steps with the residual stream of all rows
  check(run(mesh_type{2, 2}, seed, [](const auto& base) { return by_falcon(base); }));
}
