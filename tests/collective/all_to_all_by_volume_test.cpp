// all_to_all_v without counts of what comes, and by the volume: the same elements as by the communicator's own call.
#include <heddle/collective/all_to_all_by_volume.hpp>

#include <numeric>
#include <random>

#include "comm/support.hpp"

using namespace comm_test;
using hd::algorithm_name;

namespace {

// Rank a sends (7 a + 3 b) % 5 * scale elements to rank b.
std::int64_t volume(int a, int b, std::int64_t scale) {
  return (7 * a + 3 * b) % 5 * scale;
}

struct plan_of_rank {
  std::vector<std::int64_t> sent, received;
  std::vector<int> in, expected;
  plan_of_rank(int p, int r, std::int64_t scale) {
    for (int q = 0; q < p; ++q) {
      sent.push_back(volume(r, q, scale));
      received.push_back(volume(q, r, scale));
      for (std::int64_t k = 0; k < sent.back(); ++k) in.push_back(value<int>(r, 1000 * q + k));
      for (std::int64_t k = 0; k < received.back(); ++k) expected.push_back(value<int>(q, 1000 * r + k));
    }
  }
};

}  // namespace

TEST_CASE("ranks that do not know what they get are told first", "[comm][rounds]") {
  for (const int p : rank_counts(10)) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      hd::collective_plans plans;
      for (const std::int64_t scale : {0, 1, 40}) {
        const plan_of_rank mine(p, r, scale);
        const auto check = [&](const auto& came, const char* how) {
          found.expect(r, came.counts == mine.received, std::string("counts ") + how);
          found.expect(r, came.elements == mine.expected, std::string("elements ") + how);
        };
        check(hd::all_to_all_v(c, mine.in, mine.sent), "by what is chosen");
        check(hd::all_to_all_v(c, mine.in, mine.sent, plans), "with plans");
        check(hd::all_to_all_v<hd::algo::bruck>(c, mine.in, mine.sent), "by Bruck's algorithm");
        check(hd::all_to_all_v<hd::algo::built_in>(c, mine.in, mine.sent), "by the communicator's call");
      }
    });
    found.report();
  }
}

TEST_CASE("the volume decides between the grid and straight ways, alike on every rank", "[comm][rounds]") {
  for (const int p : rank_counts(10)) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      hd::collective_plans plans;
      for (const std::int64_t scale : {0, 1, 40}) {
        const plan_of_rank mine(p, r, scale);
        std::int64_t most = 0;
        for (int q = 0; q < p; ++q) {
          std::int64_t out = 0, in = 0;
          for (int s = 0; s < p; ++s) {
            out += volume(q, s, scale);
            in += volume(s, q, scale);
          }
          most = (std::max)({most, 4 * out, 4 * in});
        }
        const auto check = [&](auto grid_up_to, algorithm_name expected) {
          std::vector<int> y(mine.expected.size(), -1);
          const auto used = hd::all_to_all_v_by_volume(c, mine.in, mine.sent, y, mine.received, grid_up_to, plans);
          found.expect(r, y == mine.expected, "elements");
          found.expect(r, used == expected, "the choice");
        };
        check(most, algorithm_name::grid_all_to_all);
        check(most - 1, algorithm_name::direct);
        std::vector<int> y(mine.expected.size(), -1);
        const auto used = hd::all_to_all_v_by_volume(c, mine.in, mine.sent, y, mine.received);
        const bool grid = most <= hd::grid_volume(p, {2e-6, 1e-10, 0});
        found.expect(r, y == mine.expected && (used == algorithm_name::grid_all_to_all) == grid, "the default");
      }
    });
    found.report();
  }
}

TEST_CASE("up to the grid's volume the grid costs less, from there on straight ways do", "[comm][rounds][formula]") {
  using hd::comm_operation;
  for (const hd::hockney net : {hd::hockney{2e-6, 1e-10, 0}, hd::hockney{3e-5, 1e-9, 0}})
    for (const int p : {16, 25, 36, 64, 81}) {  // squares, so that every rank does the same
      const auto grid = hd::algo::grid_all_to_all::rounds<comm_operation::all_to_all>(p, 0);
      const auto direct = hd::algo::direct::rounds<comm_operation::all_to_all>(p, 0);
      const auto counts = hd::algo::bruck::rounds<comm_operation::all_gather>(p, 0);
      const double before = hd::seconds(counts, net, std::int64_t{p} * p, 8);
      const auto gain = [&](double volume) {
        const auto bytes = static_cast<std::int64_t>(volume / p) * p;
        return hd::seconds(direct, net, bytes, 1) - hd::seconds(grid, net, bytes, 1) - before;
      };
      const auto limit = static_cast<double>(hd::grid_volume(p, net));
      INFO("p = " << p << ", limit " << limit);
      REQUIRE(limit > 0);
      CHECK(gain(0.99 * limit) > 0);
      CHECK(gain(1.01 * limit) < 0);
    }
  for (int p = 1; p <= 8; ++p) CHECK(hd::grid_volume(p, {2e-6, 1e-10, 0}) >= 0);
  CHECK(hd::grid_volume(4, {2e-6, 1e-10, 0}) == 0);
  CHECK(hd::grid_volume(64, {0, 1e-10, 0}) == 0);
  CHECK(hd::grid_volume(64, {1e-6, 0, 0}) == std::int64_t{1} << 60);
  CHECK(hd::grid_volume(1 << 20, {2e-6, 1e-10, 0}) == 0);  // the counts alone take longer
}

TEST_CASE("counts that do not fit are errors before anything is sent", "[comm][rounds][threads]") {
  const ending end = run_to_the_end(2, options_ms(5'000), [](auto& world) {
    const std::vector<int> x(3);
    const std::vector<std::int64_t> counts{1, 1};
    hd::all_to_all_v(world.all(), x, counts);
  });
  for (const auto& rank : end.ranks) CHECK(contains(rank, "all_to_all_v: in has 3 elements, expected 2"));
}
