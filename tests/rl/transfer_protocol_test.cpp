// tests/rl/transfer_protocol_test.cpp: what a protocol collects of what it distributes is the batch, on every mesh and for every size.
#include "catch.hpp"

#include <heddle/mesh/mesh.hpp>
#include <heddle/rl/transfer_protocol.hpp>

#include <cstddef>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace hd = heddle;
namespace rl = heddle::rl;
using Catch::Matchers::Contains;

namespace {

struct micro {};
using training = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using generation = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>, hd::axis<micro>>;
using three_d = rl::protocols::three_d<hd::dp, hd::pp>;

std::vector<int> counted(std::size_t n) {
  std::vector<int> rows(n);
  std::iota(rows.begin(), rows.end(), 100);
  return rows;
}

// The law, and by hand who gets what: `chunk(rank)` of `chunks`.
template <class Protocol, class Mesh, class Chunk>
void check_law(const Mesh& mesh, int chunks, Chunk&& chunk) {
  const rl::transfer t = rl::transfer_of<Protocol>(mesh);
  REQUIRE(t.ranks() == mesh.size());
  REQUIRE(t.chunks() == chunks);
  for (std::size_t n = 1; n < 20; ++n) {
    const auto rows = counted(n);
    const auto given = t.distribute<int>(rows);
    const std::size_t each = (n + static_cast<std::size_t>(chunks) - 1) / static_cast<std::size_t>(chunks);
    for (int r = 0; r < mesh.size(); ++r) {
      CAPTURE(n, r);
      REQUIRE(t.chunk_of(r) == chunk(r));
      std::vector<int> expected;
      for (std::size_t i = 0; i < each; ++i)
        expected.push_back(rows[(static_cast<std::size_t>(chunk(r)) * each + i) % n]);  // padding begins again
      REQUIRE(given[static_cast<std::size_t>(r)] == expected);
    }
    REQUIRE(t.collect(given, n) == rows);
  }
}

}  // namespace

TEST_CASE("what a protocol collects of what it distributes is the batch", "[rl][transfer]") {
  for (int d = 1; d <= 4; ++d)
    for (int p = 1; p <= 3; ++p)
      for (int t = 1; t <= 3; ++t) {
        CAPTURE(d, p, t);
        const training mesh(d, p, t);
        check_law<three_d>(mesh, d, [&](int r) { return r / (p * t); });
        check_law<rl::protocols::every_rank>(mesh, d * p * t, [](int r) { return r; });
        check_law<rl::transfer_protocol<rl::over<hd::tp, hd::dp>>>(mesh, d * t,
                                                                   [&](int r) { return r % t * d + r / (p * t); });
        const generation of(d, p, t);  // t smaller replicas in each of d
        check_law<rl::protocols::all_micro_dp<hd::dp, micro>>(of, d * t,
                                                              [&](int r) { return r / (p * t) * t + r % t; });

        const rl::transfer whole = rl::transfer_of<rl::protocols::three_d<hd::dp, hd::pp>>(mesh);
        for (int i = 0; i < d; ++i)  // the last stage's first tensor rank
          REQUIRE(whole.collected()[static_cast<std::size_t>(i)] == mesh.rank_of({i, p - 1, 0}));

        // The same for all: the results of every rank, or of one of each stage.
        const rl::transfer all = rl::transfer_of<rl::protocols::one_to_all>(mesh),
                           stages = rl::transfer_of<rl::protocols::pp_only<hd::pp>>(mesh);
        const auto given = all.distribute<int>(counted(3));
        REQUIRE(given == std::vector<std::vector<int>>(static_cast<std::size_t>(d * p * t), counted(3)));
        REQUIRE(stages.distribute<int>(counted(3)) == given);
        REQUIRE(all.collect(given, 3).size() == static_cast<std::size_t>(3 * d * p * t));
        REQUIRE(stages.collected().size() == static_cast<std::size_t>(p));
        for (int i = 0; i < p; ++i) REQUIRE(stages.collected()[static_cast<std::size_t>(i)] == mesh.rank_of({0, i, 0}));

        const rl::transfer lists = rl::transfer_of<rl::protocols::as_given>(mesh);
        const auto one_each = counted(static_cast<std::size_t>(d * p * t));
        REQUIRE(lists.collect(lists.distribute<int>(one_each), one_each.size()) == one_each);
        CHECK_THROWS_WITH(lists.distribute<int>(counted(one_each.size() + 1)),
                          Contains("as many rows, got " + std::to_string(one_each.size() + 1)));
      }
  using fixed = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>, hd::axis<hd::tp, 2>>;
  check_law<three_d>(fixed{}, 2, [](int r) { return r / 4; });
}

TEST_CASE("between two calls rows go from rank to rank", "[rl][transfer]") {
  for (int d = 1; d <= 3; ++d)
    for (int p = 1; p <= 2; ++p)
      for (int t = 1; t <= 4; t *= 2)
        for (std::size_t n = 1; n < 17; ++n) {
          CAPTURE(d, p, t, n);
          const generation actor(d, 2, t);
          const training critic(d, p, t);
          const rl::transfer from = rl::transfer_of<rl::protocols::all_micro_dp<hd::dp, micro>>(actor),
                             to = rl::transfer_of<three_d>(critic);
          const auto rows = counted(n);
          const auto results = from.distribute<int>(rows);
          // By way of one place, and by moves.
          const auto expected = to.distribute<int>(from.collect(results, n));
          std::vector<std::vector<int>> got(expected.size());
          std::map<std::size_t, int> delivered;
          for (const rl::row_move& m : rl::row_moves(from, to, n)) {
            auto& of = got[static_cast<std::size_t>(m.to)];
            REQUIRE(m.at == of.size());
            for (std::size_t i = 0; i < m.count; ++i) {
              const rl::row_share s = from.share(m.from, n);
              REQUIRE(m.first + i - s.first < s.real);
              of.push_back(results[static_cast<std::size_t>(m.from)][m.first + i - s.first]);
              if (m.at + i < to.share(m.to, n).real) ++delivered[m.first + i];
            }
          }
          REQUIRE(got == expected);
          REQUIRE(delivered.size() == n);
          for (const auto& [row, times] : delivered) REQUIRE(times == p * t);
        }
}

TEST_CASE("transfers refuse what is no batch", "[rl][transfer]") {
  const training mesh(2, 1, 2);
  const rl::transfer t = rl::transfer_of<three_d>(mesh);
  CHECK_THROWS_WITH(t.distribute<int>(counted(0)), Contains("at least one row, got 0"));
  auto results = t.distribute<int>(counted(5));
  results[2].pop_back();
  CHECK_THROWS_WITH(t.collect(results, 5), Contains("rank 2 got 3 rows and has 2 results"));
  results.pop_back();
  CHECK_THROWS_WITH(t.collect(results, 5), Contains("4 ranks") && Contains("got 3"));
  const rl::transfer all = rl::transfer_of<rl::protocols::one_to_all>(mesh),
                     one = rl::transfer_of<rl::transfer_protocol<rl::over<hd::dp>, rl::over<>>>(mesh);
  CHECK_THROWS_WITH(rl::row_moves(all, t, 4), Contains("ranks 0 and 1 have row 0"));
  CHECK_THROWS_WITH(rl::row_moves(one, t, 4), Contains("no rank that is collected has row 2"));
}
