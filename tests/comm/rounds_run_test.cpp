// Algorithms with parameters, carried out by ranks: results, and messages and bytes as their tables say.
#include <heddle/comm/algorithm/bidirectional_ring.hpp>
#include <heddle/comm/algorithm/hierarchical.hpp>
#include <heddle/comm/algorithm/pat.hpp>
#include <heddle/comm/algorithm/recursive_doubling.hpp>
#include <heddle/comm/algorithm/swing.hpp>
#include <heddle/comm/algorithm/torus.hpp>
#include <heddle/comm/collectives.hpp>
#include <heddle/comm/round_cost.hpp>

#include "support.hpp"

using namespace comm_test;
namespace algo = hd::algo;
using hd::comm_operation;

namespace {

// What one rank sent by the counters since `before` is what the table says.
template <class A, comm_operation What, class T, class C>
void as_the_table_says(notes& found, const C& c, const hd::comm_counters& before, std::int64_t elements) {
  const auto table = A::template rounds<What>(c.size(), 0);
  const hd::comm_counters now = c.counters();
  std::string text{std::string_view(A::name)};
  text += ": messages or bytes of ";
  text += to_string(What);
  found.expect(c.rank(), now.messages_sent() - before.messages_sent() == hd::messages_sent(table, c.rank()), text);
  found.expect(c.rank(),
               now.bytes_sent() - before.bytes_sent() ==
                   hd::bytes_sent(table, c.rank(), elements, static_cast<std::int64_t>(sizeof(T))),
               text);
}

template <class A, class T, class Op>
void runs(int p, Op op) {
  if (p > most_ranks()) return;
  notes found(p);
  const std::string name{std::string_view(A::name)};
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    for (const std::int64_t n : {0, 1, p - 1, p, p + 1, 1000}) {
      std::vector<T> expected;
      for (std::int64_t i = 0; i < n; ++i) expected.push_back(folded<T>(p, i, op));
      auto x = buffer<T>(r, n);
      std::vector<T> y(x.size());
      const hd::comm_counters before = c.counters();
      hd::all_reduce<A>(c, x, y, op);
      found.expect(r, same(y, expected), name + ": all_reduce of " + std::to_string(n));
      if (n == 1000) as_the_table_says<A, comm_operation::all_reduce, T>(found, c, before, n);
      hd::all_reduce<A>(c, x, op);
      found.expect(r, same(x, expected), name + ": all_reduce in place of " + std::to_string(n));
    }
    for (const std::int64_t n : {0, 1, 3, 24}) {
      std::vector<T> expected, scattered(static_cast<std::size_t>(n)), gathered(static_cast<std::size_t>(n * p));
      for (std::int64_t i = 0; i < n * p; ++i) expected.push_back(folded<T>(p, i, op));
      const auto x = buffer<T>(r, n * p);
      hd::comm_counters before = c.counters();
      hd::reduce_scatter<A>(c, x, scattered, op);
      found.expect(r, same(scattered, part(expected, r * n, n)), name + ": reduce_scatter of " + std::to_string(n));
      if (n == 24) as_the_table_says<A, comm_operation::reduce_scatter, T>(found, c, before, n * p);
      before = c.counters();
      hd::all_gather<A>(c, scattered, gathered);
      found.expect(r, same(gathered, expected), name + ": all_gather of " + std::to_string(n));
      if (n == 24) as_the_table_says<A, comm_operation::all_gather, T>(found, c, before, n * p);
    }
  });
  found.report();
}

// Sums of floats depend on their grouping; every rank must have grouped them alike.
template <class A>
void same_bits(int p) {
  if (p > most_ranks()) return;
  std::vector<std::vector<float>> results(static_cast<std::size_t>(p));
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    auto x = buffer<float>(c.rank(), 257);
    hd::all_reduce<A>(c, x, hd::plus{});
    results[static_cast<std::size_t>(c.rank())] = x;
  });
  share(results);
  for (const auto& result : results) CHECK(result == results[0]);
}

}  // namespace

TEST_CASE("algorithms of tori and nodes run as their tables say", "[comm][rounds]") {
  runs<algo::torus<3, 4>, int>(12, hd::plus{});
  runs<algo::torus<2, 2, 2>, int>(8, hd::plus{});
  runs<algo::swing_torus<4, 2>, int>(8, hd::plus{});
  runs<algo::swing, int>(10, hd::plus{});
  runs<algo::bounded_pat<2>, int>(11, hd::plus{});
  for (const int p : {12, 16})
    runs<algo::hierarchical<4, algo::bidirectional_ring, algo::bidirectional_ring>, int>(p, hd::plus{});
}

TEST_CASE("nodes whose ranks keep their order join texts", "[comm][rounds]") {
  runs<algo::hierarchical<2, algo::recursive_doubling, algo::recursive_doubling>, word>(8, join{});
  for (const int p : {8, 16})
    runs<algo::hierarchical<4, algo::recursive_doubling, algo::recursive_doubling>, matrix2>(p, product2{});
}

TEST_CASE("an all_reduce has the same bits on every rank", "[comm][rounds]") {
  same_bits<algo::torus<3, 3>>(9);
  same_bits<algo::swing_torus<6>>(6);
  same_bits<algo::bounded_pat<2>>(7);
  same_bits<algo::hierarchical<3, algo::pat, algo::recursive_doubling>>(15);
}
