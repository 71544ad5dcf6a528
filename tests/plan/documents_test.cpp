// tests/plan/documents_test.cpp: planners of documents: published costs, brute force, an integer program, and how they scale.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/document_waves.hpp>
#include <heddle/plan/flex_groups.hpp>
#include <heddle/plan/hybrid_data.hpp>
#include <heddle/plan/sequence_costs.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace pl = heddle::plan;
using Catch::Matchers::Contains;

namespace {

constexpr double mebibyte = 1048576;
// GPT-7B on 64 devices of the sheet of arXiv:2412.01523.
pl::sequence_costs published() {
  pl::sequence_costs c;
  c.square = 5.128e-9;
  c.linear = 0.1839576e-3;
  c.fixed = 0.6293563;
  c.exchanged_bytes = 8.0 * 32 * 4096 * 2;
  const double unit = 1000 * mebibyte;
  c.exchange_rate = {{2, 119.54 * unit}, {4, 104.07 * unit}, {8, 96.5 * unit},
                     {16, 10.33 * unit}, {32, 5.94 * unit},  {64, 4.87 * unit}};
  c.held_bytes = 4.480441895 * mebibyte;
  return c;
}
// The same model with keys and values around a ring, of arXiv:2502.21231.
pl::sequence_costs around_a_ring() {
  pl::sequence_costs c;
  c.square = 5.128e-9;
  c.linear = 0.1839576e-3;
  c.ring_bytes = 4096.0 * 32 * 3;
  c.ring_rate = 25e9;
  return c;
}
class lengths_drawn {
 public:
  explicit lengths_drawn(std::uint64_t seed) : random_(seed, 1) {}
  double uniform() { return static_cast<double>(random_.integer(at_++) >> 11) * 0x1p-53; }
  std::int64_t log_normal(double median, double sigma) {
    const double a = (std::max)(uniform(), 1e-300), b = uniform();
    return static_cast<std::int64_t>(median * std::exp(sigma * std::sqrt(-2 * std::log(a)) * std::cos(6.283185307179586 * b)));
  }

 private:
  heddle::counter_random random_;
  std::uint64_t at_ = 0;
};
std::vector<std::int64_t> corpus(std::uint64_t seed, int count, double median, double sigma, std::int64_t most) {
  lengths_drawn draw(seed);
  std::vector<std::int64_t> all;
  while (static_cast<int>(all.size()) < count)
    if (const std::int64_t s = draw.log_normal(median, sigma); s >= 1 && s <= most) all.push_back(s);
  return all;
}

// The least seconds of one microbatch, over all groups and placements.
double by_brute_force(const std::vector<std::int64_t>& lengths, int ranks, int smallest, std::int64_t room,
                      const pl::sequence_costs& costs) {
  double best = std::numeric_limits<double>::infinity();
  for (const std::vector<int>& sizes : pl::detail::group_sizes(ranks, smallest)) {
    std::vector<std::size_t> group(lengths.size(), 0);
    for (bool more = true; more;) {
      std::vector<double> load(sizes.size(), 0.0);
      std::vector<std::int64_t> used(sizes.size(), 0);
      bool fits = true;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        load[group[i]] += costs.of(lengths[i], sizes[group[i]]);
        used[group[i]] += pl::tokens_of_share(lengths[i], sizes[group[i]]);
        fits = fits && used[group[i]] <= room;
      }
      if (fits) best = (std::min)(best, *std::max_element(load.begin(), load.end()) + costs.fixed);
      more = false;
      for (std::size_t i = 0; i < group.size() && !more; ++i)
        if (++group[i] < sizes.size())
          more = true;
        else
          group[i] = 0;
    }
  }
  return best;
}

}  // namespace

TEST_CASE("costs of documents are the published ones", "[plan][documents]") {
  const pl::sequence_costs c = published();
  const auto ms = [](double seconds, double expected) { return std::abs(seconds * 1e3 - expected) <= 1e-5 * expected; };
  CHECK(ms(c.of(4096, 1) + c.fixed, 1468.88));
  CHECK(ms(c.of(32768, 8) + c.fixed, 2156.01));
  CHECK(std::abs(c.exchange(32768, 8) * 1e3 - 84.89) < 0.005);
  CHECK(ms(c.of(131072, 64) + c.fixed, 3223.71));
  CHECK(std::abs(c.exchange(131072, 64) * 1e3 - 841.07) < 0.005);
  const auto capacity = [&](double billions) {
    return c.capacity(30 * 1024 * mebibyte, billions * 16 * 1024 * mebibyte / 64);
  };
  CHECK(capacity(7.1174469) == 6449);
  CHECK(capacity(7.8498688) == 6407);
  CHECK(pl::detail::group_sizes(64, 2).size() == 202);
}

TEST_CASE("groups of few documents are as fast as any groups", "[plan][documents]") {
  pl::sequence_costs c = published();
  c.exchange_rate = {{2, 1.2e11}, {4, 1e10}, {8, 4e9}};
  constexpr std::uint64_t seed = 3;
  INFO("seed " << seed);
  lengths_drawn draw(seed);
  int faster_than_even = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 1 << (1 + trial % 3);
    std::vector<std::int64_t> lengths;
    const int count = 1 + trial % 8;
    for (int i = 0; i < count; ++i) lengths.push_back(1 + static_cast<std::int64_t>(draw.uniform() * draw.uniform() * 6000));
    // All of them fit into one microbatch on two ranks.
    const std::vector<pl::document_wave> waves = pl::flex_groups(lengths, ranks, 24000, c, {.smallest = 2, .scan = 1});
    pl::require_waves(waves, lengths, ranks, 24000);
    INFO("trial " << trial << ": " << count << " documents on " << ranks << " ranks");
    REQUIRE(waves.size() == 1);
    CHECK(std::abs(waves[0].seconds - by_brute_force(lengths, ranks, 2, 24000, c)) <= 1e-12);
    faster_than_even += waves[0].seconds < pl::seconds_of(pl::single_degree(lengths, ranks, ranks, 24000, c)) ? 1 : 0;
  }
  CHECK(faster_than_even > 50);
}

TEST_CASE("groups of many documents are within 3 percent of an integer program's", "[plan][documents]") {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/flex_golden.txt");
  int cases = 0;
  for (std::string line; std::getline(in, line); ++cases) {
    std::istringstream words(line);
    std::int64_t capacity = 0;
    double best = 0, bound = 0;
    words >> capacity >> best >> bound;
    std::vector<std::int64_t> lengths;
    for (std::int64_t s = 0; words >> s;) lengths.push_back(s);
    const std::vector<pl::document_wave> waves = pl::flex_groups(lengths, 16, capacity, published(), {.scan = 1});
    INFO("case " << cases << ": " << lengths.size() << " documents, " << waves.size() << " microbatches");
    REQUIRE(waves.size() == 1);
    CHECK(waves[0].seconds <= 1.03 * best);
    CHECK(waves[0].seconds >= bound * (1 - 1e-6));
  }
  CHECK(cases == 20);
}

TEST_CASE("groups of different sizes are faster than one size for a step of very different documents", "[plan][documents]") {
  const pl::sequence_costs c = published();
  constexpr std::int64_t capacity = 6449;
  double of_64 = 0, best_size = 0, flexible = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<std::int64_t> lengths = corpus(seed, 512, 500, 1.5, 192000);
    of_64 += pl::seconds_of(pl::single_degree(lengths, 64, 64, capacity, c));
    double best = std::numeric_limits<double>::infinity();
    for (int d = 2; d <= 64; d *= 2)
      if (pl::tokens_of_share(*std::max_element(lengths.begin(), lengths.end()), d) <= capacity)
        best = (std::min)(best, pl::seconds_of(pl::single_degree(lengths, 64, d, capacity, c)));
    best_size += best;
    const std::vector<pl::document_wave> waves = pl::flex_groups(lengths, 64, capacity, c);
    pl::require_waves(waves, lengths, 64, capacity);
    CHECK(pl::seconds_of(waves) <= best);
    flexible += pl::seconds_of(waves);
  }
  INFO("64 ranks " << of_64 / 3 << " s, the best size " << best_size / 3 << " s, groups " << flexible / 3 << " s");
  CHECK(of_64 / flexible >= 1.6);
  CHECK(best_size / flexible >= 1.3);
}

TEST_CASE("ranks for each document are faster than one degree for all", "[plan][documents]") {
  const pl::sequence_costs c = around_a_ring();
  constexpr int ranks = 1024;
  constexpr std::int64_t room = 8192;
  struct study {
    double long_ones;
    int documents;
    double at_least;
  };
  for (const study& s : {study{0.0002, 40000, 3.5}, study{0.001, 20000, 1.8}, study{0.01, 4000, 0.99}}) {
    lengths_drawn draw(3);
    std::vector<std::int64_t> lengths;
    while (static_cast<int>(lengths.size()) < s.documents) {
      const std::int64_t n = draw.uniform() < s.long_ones ? 1000000 + static_cast<std::int64_t>(1e6 * draw.uniform())
                                                          : draw.log_normal(1200, 1.6);
      if (n >= 1 && n <= 2000000) lengths.push_back(n);
    }
    const std::vector<pl::document_wave> waves = pl::hybrid_data(lengths, ranks, room, c);
    pl::require_waves(waves, lengths, ranks, room);
    const pl::rank_seconds hybrid = pl::seconds_of_ranks(waves, lengths, ranks, c);
    // One degree for all, the power of two that holds the longest: packed groups go to the rank groups that have least to do.
    int degree = 1;
    while (pl::tokens_of_share(*std::max_element(lengths.begin(), lengths.end()), degree) > room) degree *= 2;
    std::vector<double> groups(static_cast<std::size_t>(ranks / degree), 0.0);
    std::vector<pl::document_wave> packed = pl::single_degree(lengths, degree, degree, room, c);
    std::vector<double> seconds;
    for (const pl::document_wave& w : packed) seconds.push_back(w.seconds);
    std::sort(seconds.rbegin(), seconds.rend());
    for (const double t : seconds) *std::min_element(groups.begin(), groups.end()) += t;
    const double fixed = *std::max_element(groups.begin(), groups.end());
    INFO(s.long_ones << " long ones: one degree of " << degree << " takes " << fixed << " s, hybrid " << hybrid.most
                     << " s, on average " << hybrid.mean);
    CHECK(fixed / hybrid.most >= s.at_least);
    if (s.long_ones < 0.01) CHECK(hybrid.most / hybrid.mean <= 1.05);
  }
}

TEST_CASE("where ranks wait after each microbatch, its slowest rank counts", "[plan][documents]") {
  const pl::sequence_costs c = around_a_ring();
  const std::vector<std::int64_t> lengths = corpus(9, 600, 1200, 1.6, 60000);
  const auto slowest = [&](pl::balance by) {
    const std::vector<pl::document_wave> waves = pl::hybrid_data(lengths, 16, 8192, c, by);
    pl::require_waves(waves, lengths, 16, 8192);
    double sum = 0;
    for (const pl::document_wave& w : waves) sum += pl::seconds_of_ranks({&w, 1}, lengths, 16, c).most;
    return sum;
  };
  CHECK(slowest(pl::balance::waves) < slowest(pl::balance::steps));
}

TEST_CASE("activations that go to the host leave room for longer documents", "[plan][documents]") {
  pl::sequence_costs c = around_a_ring();
  c.held_bytes = 4.48 * mebibyte;
  c.offload_rate = 20e9;
  double before = 0;
  for (std::int64_t s = 1; s <= 2000000; s = s * 3 / 2 + 1) {
    CHECK(c.offloaded(s) >= before);
    before = c.offloaded(s);
    CHECK(c.offloaded(s) <= c.most_offloaded);
    CHECK(c.least_ranks(s, 8192) <= pl::tokens_of_share(s, 8192));
    // What is offloaded is hidden behind the forward's computation, and what stays fits.
    if (c.offloaded(s) < c.most_offloaded)
      CHECK(c.offloaded(s) * c.held_bytes * static_cast<double>(s) / c.offload_rate <= c.compute(s, 1) * (1 + 1e-12));
    CHECK((1 - c.offloaded(s)) * static_cast<double>(s) <= 8192.0 * c.least_ranks(s, 8192) * (1 + 1e-12));
  }
  CHECK(before > 0.5);
  // Where all may go, documents of several ranks still take a place on each, and are placed once.
  c.most_offloaded = 1;
  c.offload_rate = 1e15;
  const std::vector<std::int64_t> lengths(40, 300);
  std::vector<int> placed(lengths.size(), 0);
  for (const pl::document_wave& w : pl::hybrid_data(lengths, 4, 256, c, pl::balance::steps, true))
    for (const pl::placed_document& d : w.documents) ++placed[static_cast<std::size_t>(d.document)];
  CHECK(std::count(placed.begin(), placed.end(), 1) == std::ssize(placed));
}

TEST_CASE("planners refuse what they cannot place", "[plan][documents][error]") {
  const pl::sequence_costs c = around_a_ring();
  const std::vector<std::int64_t> lengths{100, 9};
  CHECK_THROWS_WITH(pl::hybrid_data(lengths, 4, 24, c), Contains("document 0 has 100 tokens; 4 ranks with room for 24"));
  CHECK_THROWS_WITH(pl::whole_axis(lengths, 0, 24), Contains("at least 1 rank, got 0"));
  CHECK_THROWS_WITH(pl::flex_groups(lengths, 4, 50, c, {.smallest = 3}), Contains("a power of two of ranks, got 3"));
  CHECK_THROWS_WITH(pl::single_degree(lengths, 4, 3, 50, c), Contains("should divide the 4 ranks, got 3"));
  pl::sequence_costs wrong = c;
  wrong.linear = -1;
  CHECK_THROWS_WITH(pl::hybrid_data(lengths, 4, 50, wrong), Contains("linear should be at least 0, got -1"));
  wrong = c;
  wrong.square = std::nan("");
  CHECK_THROWS_WITH(pl::flex_groups(lengths, 4, 50, wrong), Contains("square should be at least 0, got nan"));
  const std::vector<std::int64_t> negative{-1};
  CHECK_THROWS_WITH(pl::whole_axis(negative, 2, 24), Contains("document 0 has -1 tokens"));

  const auto refused = [&](std::vector<pl::document_wave> waves, const char* why) {
    CHECK_THROWS_WITH(pl::require_waves(waves, lengths, 4, 50), Contains(why));
  };
  refused({{{{0, {0, 1}}}, 0}}, "leaves out document 1");
  refused({{{{0, {0, 1}}, {0, {2, 3}}}, 0}}, "placed twice");
  refused({{{{0, {0, 1}}, {1, {0}}}, 0}}, "rank 0 has 59 tokens, and room for 50");
  refused({{{{0, {0, 4}}}, 0}}, "rank 4 is not among the 4");
  refused({{{{0, {1, 1, 2}}}, 0}}, "rank 1 is named twice");
  CHECK_NOTHROW(pl::require_waves(std::vector<pl::document_wave>{{{{0, {0, 1}}, {1, {2}}}, 0}}, lengths, 4, 50));
}
