// Trees of proposals: the engine's answers stay what they are without them, and the best tree is that of a search over all.
#include "catch.hpp"
#include "fake_runner.hpp"

#include <heddle/infer/medusa_speculation.hpp>

#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace inf = heddle::infer;
using paths = std::vector<std::vector<std::int64_t>>;

namespace {

// Heads that know the habit of `fake::language` or are wrong, by a hash of the row: `right` of 4 times they are right.
struct fake_heads {
  using scalar = double;
  std::uint64_t right = 3;
  std::int64_t calls = 0;
  static constexpr std::int64_t heads() { return 4; }
  static constexpr std::int64_t vocabulary() { return fake::small_limits.vocabulary; }
  void run(std::span<const double> streams, std::int64_t rows, std::span<double> logits) {
    ++calls;
    REQUIRE(streams.size() == static_cast<std::size_t>(rows * 2));
    for (std::int64_t r = 0; r < rows; ++r) {
      auto token = static_cast<std::int64_t>(streams[static_cast<std::size_t>(2 * r)]);
      token = (token * 5 + 3) % vocabulary();  // what was drawn at the row itself
      for (std::int64_t h = 0; h < heads(); ++h) {
        token = (token * 5 + 3) % vocabulary();
        for (std::int64_t v = 0; v < vocabulary(); ++v) {
          const std::uint64_t hash =
              fake::mixed(static_cast<std::uint64_t>((h * 31 + v) * 97) +
                          static_cast<std::uint64_t>(streams[static_cast<std::size_t>(2 * r + 1)]));
          logits[static_cast<std::size_t>((r * heads() + h) * vocabulary() + v)] =
              static_cast<double>(hash % 64) / 64 + (v == token && hash % 4 < right ? 2 : 0);
        }
      }
    }
  }
};

template <class... Policies>
std::vector<fake::answer> answers(fake::runner& runner, fake_heads& heads, const inf::token_tree& tree,
                                  const std::vector<inf::request>& requests, inf::engine_counts& counts) {
  using policy = inf::medusa_speculation<fake_heads>;
  inf::engine<fake::runner, policy, Policies...> engine(runner, {.max_running = 5}, policy(heads, tree));
  std::vector<fake::answer> found(requests.size());
  std::size_t next = 0;
  while (next < requests.size() || !engine.idle()) {
    for (int i = 0; i < 2 && next < requests.size(); ++i) engine.submit(requests[next++]);
    for (const inf::event& e : engine.step()) {
      fake::answer& a = found[e.id - 1];
      if (e.token) a.tokens.push_back(*e.token);
      if (e.log_probability) a.log_probabilities.push_back(*e.log_probability);
      a.finish = e.finish;
    }
  }
  counts = engine.counts();
  return found;
}

// Values of nodes and the best sum of `left` more of them, over all trees.
double best_sum(const std::vector<std::vector<double>>& a, std::set<std::vector<std::int64_t>>& in, std::int64_t left,
                std::set<std::set<std::vector<std::int64_t>>>& seen) {
  const auto value = [&](const std::vector<std::int64_t>& p) {
    double v = 1;
    for (std::size_t d = 0; d < p.size(); ++d) v *= a[d][static_cast<std::size_t>(p[d])];
    return v;
  };
  double sum = 0;
  for (const auto& p : in) sum += value(p);
  if (left == 0 || !seen.insert(in).second) return sum;
  double best = sum;
  paths open;
  std::vector<std::vector<std::int64_t>> parents(in.begin(), in.end());
  parents.push_back({});
  for (const auto& p : parents)
    if (p.size() < a.size())
      for (std::int64_t r = 0; r < std::ssize(a[p.size()]); ++r) {
        auto q = p;
        q.push_back(r);
        if (!in.contains(q)) open.push_back(q);
      }
  for (const auto& q : open) {
    in.insert(q);
    best = (std::max)(best, best_sum(a, in, left - 1, seen));
    in.erase(q);
  }
  return best;
}

}  // namespace

TEST_CASE("answers do not depend on a tree of proposals, whatever heads, tree, cache and sampling",
          "[infer][engine][law]") {
  const unsigned seed = 31;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<inf::request> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(fake::any_request(random, 30));
  const fake::language language{.habit = 6};
  std::vector<fake::answer> expected;
  for (const inf::request& r : requests) expected.push_back(fake::alone(r, language, fake::small_limits.context));
  const std::vector<std::int64_t> widths{3, 2, 2};
  std::int64_t moves = 0, preemptions = 0, found = 0;
  for (const std::uint64_t right : {0u, 2u, 4u})
    for (const inf::token_tree& tree :
         {inf::token_tree(paths{{0}}), inf::token_tree(paths{{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}}),
          inf::token_tree(paths{{1}, {1, 0}, {0}, {2}, {0, 1}, {0, 1, 0}, {1, 0, 0}}),
          inf::token_tree::product(widths)}) {
      CAPTURE(right, tree.size());
      fake_heads heads{.right = right};
      inf::engine_counts counts{}, tight{}, shared{};
      fake::runner one(fake::small_limits, language);
      CHECK(answers<inf::contiguous>(one, heads, tree, requests, counts) == expected);
      fake::runner two({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 15, .max_rows = 24}, language);
      CHECK(answers<inf::paged>(two, heads, tree, requests, tight) == expected);
      fake::runner three({.vocabulary = 13, .context = 48, .block_rows = 3, .blocks = 30, .max_rows = 40}, language);
      CHECK(answers<inf::prefix_shared>(three, heads, tree, requests, shared) == expected);
      CHECK(counts.proposed_tokens > 0);
      std::int64_t at = 0;
      for (const std::int64_t n : shared.accepted_at) at += n;
      CHECK(at == shared.accepted_tokens);
      if (right == 4 && tree.depth() > 1) {
        CHECK(shared.accepted_at[1] > 0);
        CHECK(counts.steps < counts.answer_tokens);
      }
      moves += three.moves + two.moves + one.moves;
      preemptions += tight.preemptions;
      found += shared.cache.found;
    }
  CHECK(moves > 100);
  CHECK(preemptions > 0);
  CHECK(found > 0);
}

TEST_CASE("a token tree has its nodes by depth, and refuses what is no tree", "[infer]") {
  const inf::token_tree t(paths{{1, 0}, {0}, {0, 2}, {1}});
  const std::vector<inf::token_tree::node> expected{{-1, 0, 1}, {-1, 1, 1}, {0, 2, 2}, {1, 0, 2}};
  CHECK(t.nodes() == expected);
  CHECK(t.depth() == 2);
  CHECK(t.ranks() == 3);
  CHECK(inf::token_tree::product(std::vector<std::int64_t>{3, 2}).size() == 9);
  CHECK_THROWS_WITH(inf::token_tree(paths{{0}, {1, 0}}), Catch::Contains("got (1, 0) without it"));
  CHECK_THROWS_WITH(inf::token_tree(paths{{0}, {0}}), Catch::Contains("got (0) twice"));
  CHECK_THROWS_WITH(inf::token_tree(paths{{}}), Catch::Contains("got ()"));
  CHECK_THROWS_WITH(inf::token_tree(paths{{-1}}), Catch::Contains("got (-1)"));
  fake_heads heads;
  using policy = inf::medusa_speculation<fake_heads, 4>;
  CHECK_THROWS_WITH(policy(heads, inf::token_tree()), Catch::Contains("got 0 nodes"));
  CHECK_THROWS_WITH(policy(heads, inf::token_tree(paths{{0}, {0, 0}, {0, 0, 0}, {1}, {2}})),
                    Catch::Contains("got 5 nodes"));
  CHECK_THROWS_WITH(policy(heads, inf::token_tree(paths{{13}})), Catch::Contains("14 ranks"));
}

TEST_CASE("the best token tree has the greatest sum of all trees, and that is the mean accepted length",
          "[infer][law]") {
  const unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> any(0, 1);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::vector<double>> a(3, std::vector<double>(3));
    for (auto& head : a) {
      double left = 1;
      for (double& x : head) left -= x = left * any(random);
      std::sort(head.rbegin(), head.rend());
    }
    for (std::int64_t nodes = 1; nodes <= 4; ++nodes) {
      std::set<std::vector<std::int64_t>> none;
      std::set<std::set<std::vector<std::int64_t>>> seen;
      const inf::token_tree tree = inf::token_tree::best(a, nodes);
      CHECK(tree.size() == nodes);
      CHECK(tree.expected(a) == Approx(best_sum(a, none, nodes, seen)).epsilon(1e-12));
    }
    // Draws of which rank of each head is right, if any.
    const inf::token_tree tree = inf::token_tree::best(a, 12);
    const int draws = 100000;
    double sum = 0, squares = 0;
    for (int i = 0; i < draws; ++i) {
      std::vector<std::int64_t> right;
      for (const auto& head : a) {
        double x = any(random);
        std::int64_t r = 0;
        while (r < std::ssize(head) && x >= head[static_cast<std::size_t>(r)]) x -= head[static_cast<std::size_t>(r++)];
        right.push_back(r);
      }
      std::vector<bool> on(static_cast<std::size_t>(tree.size()));
      double length = 0;
      for (std::size_t n = 0; n < on.size(); ++n) {
        const auto& node = tree.nodes()[n];
        on[n] = (node.parent < 0 || on[static_cast<std::size_t>(node.parent)]) &&
                right[static_cast<std::size_t>(node.depth - 1)] == node.rank;
        length += on[n];
      }
      sum += length;
      squares += length * length;
    }
    const double mean = sum / draws, deviation = std::sqrt((squares / draws - mean * mean) / draws);
    CHECK(std::abs(mean - tree.expected(a)) < 4 * deviation + 1e-12);
  }
}
