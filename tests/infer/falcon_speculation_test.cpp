// Trees of a drafter's blocks: the engine's answers stay what they are without them, and passes and rows are those of the tree.
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/engine.hpp>
#include <heddle/infer/falcon_calibration.hpp>
#include <heddle/infer/falcon_speculation.hpp>
#include <heddle/model/falcon_drafter.hpp>

#include "catch.hpp"
#include "fake_runner.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
using Catch::Matchers::Contains;
using paths = std::vector<std::vector<std::int64_t>>;

namespace {

// A drafter that knows the habit of `fake::language`, and is right `right` of 4 times; features are the fake runner's: a token, and the tokens up to it.
struct fake_drafter {
  using scalar = double;
  struct sizes {
    std::int64_t width = 2, block = 2, context = 60;
  };
  struct prefix {
    std::int64_t rows = 0;
    std::vector<std::int32_t> next{};
    std::vector<double> features{};
    bool drafts = false;
  };
  struct drafted_block {
    std::int64_t parent = -1;
    std::vector<double> features{};
    std::vector<double> logits{};
  };
  sizes sizes_{};
  std::uint64_t right = 4;
  std::int64_t wrong = 0;  // rows that were not those of the text
  std::int64_t rows = 0;

  const sizes& shape() const { return sizes_; }
  static constexpr std::int64_t vocabulary() { return fake::small_limits.vocabulary; }
  static void features_of(std::span<const double> streams, std::span<double> features) {
    std::copy(streams.begin(), streams.end(), features.begin());
  }
  void append(prefix& p, std::span<const std::int32_t> next, std::span<const double> features) {
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (p.rows > 0 && (features[2 * i] != p.next.back() || features[2 * i + 1] != p.features.back() + 1)) ++wrong;
      p.next.push_back(next[i]);
      p.features.insert(p.features.end(), features.begin() + static_cast<std::ptrdiff_t>(2 * i),
                        features.begin() + static_cast<std::ptrdiff_t>(2 * i + 2));
      ++p.rows;
    }
  }
  drafted_block predict(std::span<const std::int32_t> next) {
    drafted_block b;
    for (const std::int32_t t : next) {
      std::int64_t token = t;
      for (std::int64_t i = 0; i < sizes_.block; ++i) token = (token * 5 + 3) % vocabulary();
      b.features.insert(b.features.end(), {static_cast<double>(token), 0});
      const std::uint64_t hash = fake::mixed(static_cast<std::uint64_t>(++rows));
      for (std::int64_t v = 0; v < vocabulary(); ++v)
        b.logits.push_back(static_cast<double>((hash >> v) % 64) / 64 + (v == token && hash % 4 < right ? 2 : 0));
    }
    return b;
  }
  std::vector<drafted_block> begin_drafts(prefix& p) {
    p.drafts = true;
    return {predict(std::span(p.next).last(static_cast<std::size_t>(sizes_.block)))};
  }
  void draft(prefix& p, std::vector<drafted_block>& blocks, std::span<const std::int64_t> parents,
             std::span<const std::int32_t> tokens) {
    if (!p.drafts) ++wrong;
    std::set<std::vector<std::int32_t>> seen;
    const auto k = static_cast<std::size_t>(sizes_.block);
    for (std::size_t i = 0; i < parents.size(); ++i) {
      const auto own = tokens.subspan(i * k, k);
      std::vector<std::int32_t> path(own.begin(), own.end());
      path.push_back(static_cast<std::int32_t>(parents[i]));
      if (!seen.insert(path).second) ++wrong;  // a block twice
      blocks.push_back(predict(own));
      blocks.back().parent = parents[i];
    }
  }
  void end_drafts(prefix& p) const { p.drafts = false; }
};

const inf::token_tree wide(paths{{0},
                                 {1},
                                 {2},
                                 {0, 0},
                                 {0, 1},
                                 {1, 0},
                                 {0, 0, 0},
                                 {0, 0, 1},
                                 {0, 1, 0},
                                 {1, 0, 0},
                                 {0, 0, 0, 0},
                                 {0, 1, 0, 0},
                                 {0, 0, 0, 0, 0}});

template <class... Policies, class Runner, class Drafter>
std::vector<fake::answer> answers(Runner& runner, Drafter& drafter, const inf::token_tree& tree,
                                  const std::vector<inf::request>& requests, inf::engine_counts& counts,
                                  inf::falcon_counts& drafted) {
  using policy = inf::falcon_speculation<Drafter>;
  inf::engine<Runner, policy, Policies...> engine(runner, {.max_running = 5}, policy(drafter, tree));
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
  drafted = engine.decoder().counts();
  return found;
}

}  // namespace

TEST_CASE("answers do not depend on blocks of drafts, whatever drafter, tree, cache and sampling",
          "[infer][engine][falcon][law]") {
  const unsigned seed = 41;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<inf::request> requests;
  for (int i = 0; i < 30; ++i) requests.push_back(fake::any_request(random, 30));
  const fake::language language{.habit = 6};
  std::vector<fake::answer> expected;
  for (const inf::request& r : requests) expected.push_back(fake::alone(r, language, fake::small_limits.context));
  std::int64_t preemptions = 0, found = 0;
  for (const std::int64_t block : {1, 2, 3, 4})
    for (const std::uint64_t right : {0u, 3u, 4u})
      for (const inf::token_tree& tree :
           {wide, inf::token_tree(paths{{1}, {0}}), inf::token_tree(paths{{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}})}) {
        CAPTURE(block, right, tree.size());
        inf::engine_counts tight{}, shared{};
        inf::falcon_counts drafted{};
        fake_drafter drafter{.sizes_ = {.block = block}, .right = right};
        fake::runner one({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 15, .max_rows = 24}, language);
        CHECK(answers<inf::paged>(one, drafter, tree, requests, tight, drafted) == expected);
        CHECK(drafter.wrong == 0);
        fake::runner two({.vocabulary = 13, .context = 48, .block_rows = 3, .blocks = 40, .max_rows = 60}, language);
        CHECK(answers<inf::prefix_shared>(two, drafter, tree, requests, shared, drafted) == expected);
        CHECK(drafter.wrong == 0);
        CHECK(drafted.proposals > 0);
        if (right == 4 && tree.depth() > 1) {
          CHECK(shared.accepted_at[1] > 0);
          CHECK(shared.steps < shared.answer_tokens);
        }
        preemptions += tight.preemptions;
        found += shared.cache.found;
      }
  CHECK(preemptions > 0);
  CHECK(found > 0);
}

TEST_CASE("a step has as many passes as the tree has blocks of depths, and k rows for each block that goes on",
          "[infer][falcon]") {
  // Blocks of 2: nodes of depth 2 with children are {0, 0}, {0, 1}, {1, 0}; of depth 4 {0, 0, 0, 0}. Of 3: depth 3 has {0, 0, 0}, {0, 1, 0}.
  const std::int64_t passes[] = {5, 3, 2, 2},
                     rows[] = {1 * (1 + 2 + 3 + 2 + 1), 2 * (1 + 3 + 1), 3 * (1 + 2), 4 * (1 + 1)};
  for (std::int64_t block = 1; block <= 4; ++block) {
    CAPTURE(block);
    fake_drafter drafter{.sizes_ = {.block = block}};
    inf::falcon_speculation<fake_drafter> policy(drafter, wide);
    const std::vector<std::int32_t> text{1, 8, 4, 10, 1, 8};
    std::vector<double> streams;
    for (std::size_t i = 0; i + 1 < text.size(); ++i)
      streams.insert(streams.end(), {static_cast<double>(text[i]), static_cast<double>(i + 1)});
    policy.computed(7, 0, streams);
    std::vector<inf::proposal> p(1);
    p[0] = {.id = 7, .text = text, .most = 64};
    policy.propose(p);
    CHECK(std::ssize(p[0].tokens) == wide.size());
    for (std::size_t i = 0; i < p[0].parents.size(); ++i) CHECK(p[0].parents[i] == wide.nodes()[i].parent);
    CHECK(policy.counts().passes == passes[block - 1]);
    CHECK(policy.counts().rows == rows[block - 1]);
    // The path of rank 0 is the habit.
    std::int64_t token = text.back(), node = -1;
    for (std::size_t i = 0; i < wide.nodes().size(); ++i)
      if (wide.nodes()[i].parent == node && wide.nodes()[i].rank == 0) {
        token = (token * 5 + 3) % 13;
        CHECK(p[0].tokens[i] == token);
        node = static_cast<std::int64_t>(i);
      }
    p[0].tokens.clear();
    p[0].parents.clear();
    p[0].most = 5;  // fewer nodes than the tree has
    policy.propose(p);
    CHECK(p[0].tokens.size() == 5);
  }
}

TEST_CASE("a drafter with random weights changes no answer, also where it gives no numbers", "[infer][falcon]") {
  using backend = hd::compute::host<>;
  using drafter_type = hd::model::falcon_drafter<double, backend>;
  const unsigned seed = 43;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<inf::request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(fake::any_request(random, 20));
  const fake::language language{.habit = 6};
  backend kernels{1};
  for (const std::int64_t block : {1, 2, 3, 4}) {
    drafter_type drafter(kernels, {.width = 2, .heads = 1, .ffn = 3, .vocabulary = 13, .block = block, .context = 48});
    drafter.initialize(seed, 0.5);
    for (const auto w : {drafter.embedding(), drafter.head()})
      for (double& x : w) x = std::normal_distribution<double>()(random);
    if (block == 3) drafter.head()[5] = std::numeric_limits<double>::quiet_NaN();
    fake::runner runner({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 60}, language);
    inf::engine_counts counts{};
    inf::falcon_counts drafted{};
    const auto found = answers(runner, drafter, wide, requests, counts, drafted);
    for (std::size_t i = 0; i < requests.size(); ++i)
      CHECK(found[i] == fake::alone(requests[i], language, fake::small_limits.context));
    CHECK((counts.proposed_tokens > 0) == (block != 3));
  }
  drafter_type drafter(kernels, {.width = 2, .heads = 1, .ffn = 3, .vocabulary = 2, .context = 48});
  CHECK_THROWS_WITH(inf::falcon_speculation(drafter, wide), Contains("3 ranks"));
}

TEST_CASE("accuracies of drafts of nothing, of more ranks than tokens, and of texts without their features are refused",
          "[infer][falcon]") {
  hd::compute::host<> kernels{1};
  hd::model::falcon_drafter<double, hd::compute::host<>> drafter(
      kernels, {.width = 2, .heads = 1, .ffn = 3, .vocabulary = 13, .block = 2, .context = 48});
  drafter.initialize(1, 0.5);
  std::vector<hd::model::feature_text<double>> texts{{std::vector<std::int32_t>(9, 1), std::vector<double>(18, 0.5)}};
  const auto accuracies = inf::draft_accuracies(drafter, texts, 2, 13, 2);
  REQUIRE(accuracies.size() == 4);
  for (const std::vector<double>& of : accuracies)  // of all tokens one is right
    CHECK(std::accumulate(of.begin(), of.end(), 0.0) == Approx(1));
  CHECK_THROWS_WITH(inf::draft_accuracies(drafter, texts, 0, 1), Contains("got 0, 1 and 1"));
  CHECK_THROWS_WITH(inf::draft_accuracies(drafter, texts, 1, 1, 0), Contains("got 1, 0 and 1"));
  CHECK_THROWS_WITH(inf::draft_accuracies(drafter, texts, 1, 14), Contains("ranks from 1 to 13, got 1, 1 and 14"));
  texts[0].features.pop_back();
  CHECK_THROWS_WITH(inf::draft_accuracies(drafter, texts, 1, 1), Contains("18 elements of features, got 17"));
}

TEST_CASE("nothing is drafted behind a text longer than the drafter's context, and answers stay what they are",
          "[infer][engine][falcon]") {
  using backend = hd::compute::host<>;
  using drafter_type = hd::model::falcon_drafter<double, backend>;
  const unsigned seed = 44;
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<inf::request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(fake::any_request(random, 30));
  requests.push_back({.prompt = {1}, .max_tokens = 40, .sampling = {.temperature = 0}});
  requests.push_back({.prompt = std::vector<std::int32_t>(40, 2), .max_tokens = 4, .sampling = {.temperature = 0}});
  const fake::language language{.habit = 6};
  std::vector<fake::answer> expected;
  for (inf::request& r : requests) {
    r.sampling.seed = random();
    expected.push_back(fake::alone(r, language, fake::small_limits.context));
  }
  backend kernels{1};
  std::int64_t last = 0;
  for (const std::int64_t context : {5, 6, 17, 30, 48}) {  // of the drafter; the engine's is 48
    CAPTURE(context);
    drafter_type drafter(kernels, {.width = 2, .heads = 1, .ffn = 3, .vocabulary = 13, .block = 2, .context = context});
    drafter.initialize(seed, 0.5);
    for (const auto w : {drafter.embedding(), drafter.head()})
      for (double& x : w) x = std::normal_distribution<double>()(random);
    inf::engine_counts counts{};
    inf::falcon_counts drafted{};
    fake::runner tight({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 15, .max_rows = 24}, language);
    CHECK(answers<inf::paged>(tight, drafter, wide, requests, counts, drafted) == expected);
    CHECK(counts.preemptions > 0);
    fake::runner roomy({.vocabulary = 13, .context = 48, .block_rows = 4, .blocks = 60, .max_rows = 60}, language);
    CHECK(answers<inf::prefix_shared>(roomy, drafter, wide, requests, counts, drafted) == expected);
    CHECK(drafted.proposals > last);  // more, the longer the context
    last = drafted.proposals;
  }
  // Up to the last row of the context, and then never again.
  drafter_type drafter(kernels, {.width = 2, .heads = 1, .ffn = 3, .vocabulary = 13, .block = 2, .context = 6});
  inf::falcon_speculation<drafter_type> policy(drafter, wide);
  const std::vector<std::int32_t> text(12, 3);
  for (std::int64_t rows = 1; rows < 12; ++rows) {
    const std::vector<double> stream{1, 2};
    policy.computed(7, rows - 1, stream);
    std::vector<inf::proposal> p(1);
    p[0] = {.id = 7, .text = std::span(text).first(static_cast<std::size_t>(rows + 1)), .most = 64};
    policy.propose(p);
    CAPTURE(rows);
    CHECK(p[0].tokens.empty() == (rows < 2 || rows > 6));
  }
}
