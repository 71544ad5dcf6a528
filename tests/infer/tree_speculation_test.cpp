// Trees of proposals: the engine's answers stay what they are without them, and the best tree is that of a search over all.
#include "catch.hpp"
#include "fake_runner.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/infer/head_accuracies.hpp>
#include <heddle/infer/medusa_heads.hpp>
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
  std::int64_t moves = 0, preemptions = 0, found = 0, slot_moves = 0;
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
      fake::runner four(fake::small_limits, language);
      inf::engine_counts fused{};
      CHECK(answers<inf::temporal_fusion<4>>(four, heads, tree, requests, fused) == expected);
      slot_moves += fused.slot_moves;
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
  CHECK(slot_moves > 10);
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
    auto mixed = a;  // measured accuracies need not descend
    for (auto& head : mixed) std::shuffle(head.begin(), head.end(), random);
    for (std::int64_t nodes = 1; nodes <= 4; ++nodes) {
      std::set<std::vector<std::int64_t>> none;
      std::set<std::set<std::vector<std::int64_t>>> seen;
      CHECK(inf::token_tree::best(mixed, nodes).expected(mixed) ==
            Approx(best_sum(mixed, none, nodes, seen)).epsilon(1e-12));
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

namespace {
template <class Acceptance>
std::vector<std::vector<std::int32_t>> spoken(const fake::language& language, double temperature, Acceptance rule,
                                              inf::engine_counts& counts) {
  using policy = inf::medusa_speculation<fake_heads, 64, Acceptance>;
  fake::runner runner(fake::small_limits, language);
  fake_heads heads{.right = 4};
  const std::vector<std::int64_t> widths{3, 2, 2};
  inf::engine<fake::runner, policy> engine(runner, {.max_running = 1},
                                           policy(heads, inf::token_tree::product(widths), rule));
  std::vector<std::vector<std::int32_t>> all(12);
  for (std::size_t i = 0; i < all.size(); ++i)
    engine.submit({.prompt = {static_cast<std::int32_t>(i), 2},
                   .max_tokens = 30,
                   .sampling = {.temperature = temperature, .seed = i},
                   .log_probabilities = 0});
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      if (!e.token) continue;
      std::vector<std::int32_t>& answer = all[e.id - 1];
      // The log-probability is that of the token after the text, whoever chose it.
      std::vector<double> logits(13);
      std::vector<std::int32_t> text{static_cast<std::int32_t>(e.id - 1), 2};
      text.insert(text.end(), answer.begin(), answer.end());
      language.logits(std::ssize(text), [&](std::int64_t t) { return text[static_cast<std::size_t>(t)]; }, logits);
      double sum = 0;
      for (const double l : logits) sum += std::exp(l);
      CHECK(*e.log_probability == Approx(logits[static_cast<std::size_t>(*e.token)] - std::log(sum)).margin(1e-12));
      answer.push_back(*e.token);
    }
  counts = engine.counts();
  return all;
}
}  // namespace

TEST_CASE("typical acceptance takes tokens above its threshold, and is greedy where that is", "[infer][engine]") {
  // Uniform over n tokens: H = log n, exp(-H) = 1 / n.
  const inf::typical_acceptance rule;
  const std::vector<inf::token_probability> four(4, {0, std::log(0.25)});
  CHECK(rule.threshold(four) == Approx(0.3 / 4).epsilon(1e-12));
  CHECK(rule.threshold(std::vector<inf::token_probability>{{7, 0.0}}) == Approx(0.09).epsilon(1e-12));
  CHECK(inf::typical_acceptance{.epsilon = 0.05, .delta = 0.3}.threshold(four) == 0.05);
  STATIC_REQUIRE(!inf::medusa_speculation<fake_heads, 64, inf::typical_acceptance>::lossless);

  const fake::language language{.habit = 1.5};
  inf::engine_counts none{}, equal{}, typical{}, all{};
  const auto greedy = spoken(language, 0, inf::equal_draws{}, none);
  CHECK(spoken(language, 0, rule, none) == greedy);
  // Near temperature 0 each token is a likeliest one: of equally likely ones either may be proposed.
  const auto cold = spoken(language, 1e-6, rule, none);
  for (std::size_t i = 0; i < cold.size(); ++i) {
    std::vector<std::int32_t> text{static_cast<std::int32_t>(i), 2};
    for (const std::int32_t token : cold[i]) {
      std::vector<double> logits(13);
      language.logits(std::ssize(text), [&](std::int64_t t) { return text[static_cast<std::size_t>(t)]; }, logits);
      CHECK(logits[static_cast<std::size_t>(token)] == *std::max_element(logits.begin(), logits.end()));
      text.push_back(token);
    }
  }
  spoken(language, 1, inf::equal_draws{}, equal);
  const auto accepted = spoken(language, 1, rule, typical);
  CHECK(accepted != greedy);
  CHECK(typical.accepted_tokens > equal.accepted_tokens);
  // A threshold of nothing takes the whole depth; one above every probability takes no proposal, and all tokens are the likeliest.
  spoken(language, 1, inf::typical_acceptance{.epsilon = 0, .delta = 0.3}, all);
  CHECK(all.accepted_at[2] == all.accepted_at[0]);
  CHECK(all.steps <= typical.steps);
  CHECK(typical.steps < equal.steps);
  CHECK(spoken(language, 1, inf::typical_acceptance{.epsilon = 2, .delta = 1e9}, none) == greedy);
  CHECK(none.accepted_tokens > 0);  // those that are the likeliest anyway
  // Each accepted token is above the threshold of its place; each other one is the likeliest.
  for (std::size_t i = 0; i < accepted.size(); ++i) {
    std::vector<std::int32_t> text{static_cast<std::int32_t>(i), 2};
    for (const std::int32_t token : accepted[i]) {
      std::vector<double> logits(13);
      language.logits(std::ssize(text), [&](std::int64_t t) { return text[static_cast<std::size_t>(t)]; }, logits);
      double sum = 0, entropy = 0;
      for (const double l : logits) sum += std::exp(l);
      for (const double l : logits) entropy -= std::exp(l) / sum * (l - std::log(sum));
      const double probability = std::exp(logits[static_cast<std::size_t>(token)]) / sum;
      const bool likeliest = logits[static_cast<std::size_t>(token)] == *std::max_element(logits.begin(), logits.end());
      CHECK((likeliest || probability > std::min(0.09, 0.3 * std::exp(-entropy))));
      text.push_back(token);
    }
  }
}

TEST_CASE("a step that moved rows and failed is the last", "[infer][engine][error]") {
  const fake::language language{.habit = 6};
  fake::runner runner(fake::small_limits, language);
  fake_heads heads{.right = 4};
  using policy = inf::medusa_speculation<fake_heads>;
  const std::vector<std::int64_t> widths{3, 2, 2};
  inf::engine<fake::runner, policy> engine(runner, {}, policy(heads, inf::token_tree::product(widths)));
  inf::request r{.prompt = {1, 2}, .max_tokens = 40, .sampling = {.temperature = 0}};
  engine.submit(r);
  runner.fail_late = true;  // no moves yet: the step can be tried again
  CHECK_THROWS_WITH(engine.step(), "the runner failed late");
  CHECK_FALSE(engine.failed());
  std::vector<std::int32_t> tokens;
  bool threw = false;
  while (!threw && !engine.idle()) {
    const fake::runner before = runner;
    const inf::engine_counts counts = engine.counts();
    runner.fail_late = true;
    try {
      engine.step();
      FAIL("the runner throws");
    } catch (const std::runtime_error& e) {
      REQUIRE(std::string(e.what()) == "the runner failed late");
    }
    CHECK(engine.counts().steps == counts.steps);
    threw = runner.moves > before.moves;
    CHECK(engine.failed() == threw);
    if (!threw)
      for (const inf::event& e : engine.step()) tokens.push_back(*e.token);
  }
  REQUIRE(threw);
  const std::vector<std::int32_t> whole = fake::alone(r, language, 48).tokens;
  CHECK(tokens.size() < whole.size());
  CHECK(std::equal(tokens.begin(), tokens.end(), whole.begin()));
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH(engine.step(), Catch::Contains("no step after one that moved rows of the cache and failed"));
}

namespace {
struct any_rule {
  double threshold(std::span<const inf::token_probability>) const { return 0; }
};
// Proposes one text after the other, with a rule of acceptance and no trees; or trees with too few parents.
template <bool Trees>
struct plain_proposals {
  using kind = inf::decoding_kind;
  using needs = inf::capabilities<inf::truncate, inf::tree_rows>;
  static constexpr std::int64_t most_proposed = 4;
  static constexpr bool lossless = false;
  static constexpr bool trees = Trees;
  any_rule rule{};
  const any_rule& acceptance() const { return rule; }
  void propose(std::span<inf::proposal> proposals) {
    for (inf::proposal& p : proposals)
      for (std::int32_t i = 0; i < 4 && i < p.most; ++i) {
        p.tokens.push_back(i);
        if (Trees && i < 2) p.parents.push_back(i - 1);
      }
  }
  void ended(inf::request_id) {}
};
template <bool Trees>
std::vector<std::int32_t> proposed(inf::engine_counts& counts) {
  fake::runner runner;
  inf::engine<fake::runner, plain_proposals<Trees>> engine(runner);
  engine.submit({.prompt = {1, 2}, .max_tokens = 11, .sampling = {.temperature = 1, .seed = 3}});
  std::vector<std::int32_t> tokens;
  while (!engine.idle())
    for (const inf::event& e : engine.step()) tokens.push_back(*e.token);
  counts = engine.counts();
  return tokens;
}
}  // namespace

TEST_CASE("a rule of acceptance needs no trees, and proposals without a parent are none", "[infer][engine]") {
  inf::engine_counts chain{}, tree{};
  // The first token, then four and the likeliest after them, twice: all are accepted.
  const std::vector<std::int32_t> a = proposed<false>(chain);
  REQUIRE(a.size() == 11);
  for (const std::size_t first : {1u, 6u})
    for (std::size_t i = 0; i < 4; ++i) CHECK(a[first + i] == static_cast<std::int32_t>(i));
  CHECK(chain.accepted_tokens == 8);
  const std::vector<std::int32_t> b = proposed<true>(tree);
  REQUIRE(b.size() == 11);
  CHECK(b[1] == 0);
  CHECK(b[2] == 1);
  CHECK(tree.proposed_tokens == tree.accepted_tokens);
  CHECK(tree.accepted_at[2] == 0);
}

TEST_CASE("an engine refuses trees where the runner's limits have none", "[infer][error]") {
  using policy = inf::medusa_speculation<fake_heads>;
  fake_heads heads;
  inf::step_limits limits = fake::small_limits;
  limits.trees = false;  // of a runner without its type, whose model turned out to have windows
  fake::runner runner(limits);
  CHECK_THROWS_WITH((inf::engine<fake::runner, policy>(runner, {}, policy(heads, inf::token_tree(paths{{0}})))),
                    Catch::Matchers::Contains("do not form trees, which the engine's decoding policy proposes"));
  inf::engine<fake::runner>(runner, {}).step();
}

TEST_CASE("heads of another size than the model's, and tokens that it does not have, are refused", "[infer][error]") {
  heddle::compute::host<> kernels(1);
  using heads_type = inf::medusa_heads<double, heddle::compute::host<>>;
  using policy = inf::medusa_speculation<heads_type>;
  using engine_type = inf::engine<fake::runner, policy>;
  const inf::token_tree tree(paths{{0}, {0, 0}});
  fake::runner runner;  // streams of width 2, a vocabulary of 13
  heads_type wide(kernels, 2, 64, 13, 1e-5), wordy(kernels, 2, 2, 1000, 1e-5), good(kernels, 2, 2, 13, 1e-5);
  for (heads_type* h : {&wide, &wordy, &good}) h->initialize(1, 0.1);
  engine_type engine(runner, {}, policy(wide, tree));
  engine.submit({.prompt = {1, 2}, .max_tokens = 5});
  const auto all = [&] {
    while (!engine.idle()) engine.step();
  };
  CHECK_THROWS_AS(all(), heddle::layout_error);
  CHECK_THROWS_WITH(engine.step(),
                    Catch::Contains("1 rows should have streams of 64 elements and logits of 26, got 2 and 26"));
  std::vector<double> streams(4), few(51);
  CHECK_THROWS_WITH(good.run(streams, 2, few), Catch::Contains("logits of 52, got 4 and 51"));
  CHECK_THROWS_WITH(engine_type(runner, {}, policy(wordy, tree)), Catch::Contains("vocabulary of 13 tokens, got 1000"));
  std::vector<std::vector<std::int32_t>> texts{std::vector<std::int32_t>(30, 1)};
  CHECK_THROWS_WITH(inf::head_accuracies(runner, wordy, texts, 3), Catch::Contains("of 13 tokens, got 1000"));
  CHECK(inf::head_accuracies(runner, good, texts, 3).size() == 2);
  for (const std::int64_t ranks : {-1, 0, 14})
    CHECK_THROWS_WITH(inf::head_accuracies(runner, good, texts, ranks),
                      Catch::Contains("13 tokens, got " + std::to_string(ranks)));
  for (const std::int32_t bad : {-1, 13, -100000000}) {
    texts[0][29] = bad;
    CHECK_THROWS_WITH(inf::head_accuracies(runner, good, texts, 3),
                      Catch::Contains("from 0 to 12, got " + std::to_string(bad)));
  }
  fake::runner large({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 48});
  inf::head_accuracies(large, good, {std::vector<std::int32_t>(40, 1)}, 3);
  CHECK(large.most_rows == 32);
}
