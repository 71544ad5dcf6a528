// Algorithms with parameters, carried out by ranks: results, and messages and bytes as their tables say.
#include <heddle/collective/algorithm/bidirectional_ring.hpp>
#include <heddle/collective/algorithm/hierarchical.hpp>
#include <heddle/collective/algorithm/pat.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/swing.hpp>
#include <heddle/collective/algorithm/torus.hpp>
#include <heddle/collective/collectives.hpp>
#include <heddle/collective/round_cost.hpp>

#include <atomic>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/support.hpp"

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

// An algorithm of the user's own: rank 0 sends to rank 1, that one to rank 2 and so on, and the last one to all, in four
// blocks. Where it is wrong rank 3 forgets its own contribution to block 2.
template <bool Right, int Number = 0>
struct own_chain {
  static constexpr std::string_view name = Right ? "own_chain" : "forgetful_chain";
  inline static std::atomic<int> asked{0};  // how often this process has made the rounds
  template <comm_operation What>
  static constexpr hd::fold_order order = hd::fold_order::rank;
  template <comm_operation What>
  static constexpr bool offers(int ranks) {
    return What == comm_operation::all_reduce && ranks > 1;
  }
  template <comm_operation What>
  static constexpr hd::round_table rounds(int ranks, int root) {
    if (!std::is_constant_evaluated()) ++asked;
    hd::round_builder made(What, ranks, root, 4, 1);
    for (int r = 0; r + 1 < ranks; ++r)
      for (int b = 0; b < 4; ++b)
        made.send(r, r, r + 1, Right || r != 2 || b != 2 ? hd::arrival::fold_before : hd::arrival::store).block(b);
    for (int r = 0; r + 1 < ranks; ++r) made.send(ranks, ranks - 1, r).blocks(0, 4);
    return made.take();
  }
};

}  // namespace

TEST_CASE("the rounds of one's own algorithm are proved when it is first called, where calls are checked",
          "[comm][rounds][failure]") {
  if (most_ranks() < 6) return;
  std::vector<std::string> texts(6);
  launch(line{6}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    for (int call = 0; call < 2; ++call) {
      std::vector<int> x(100, c.rank() + 1);
      try {
        hd::all_reduce<own_chain<false>>(c, x, hd::plus{});
      } catch (const hd::comm_error& e) {
        texts[static_cast<std::size_t>(c.rank())] += e.what();
      }
    }
  });
  share(texts);
  const std::string expected =
      "heddle: the rounds of the algorithm forgetful_chain are wrong: all_reduce on 6 ranks, item 2: rank 0 ends "
      "without the contribution of rank 3; the item is elements 50 to 74 of 100";
  for (const auto& text : texts) CHECK(text == expected + expected);
  if (transport_test::process() < 6) CHECK(own_chain<false>::asked == 1);

  // Unchecked it runs, and is wrong; nothing is made for a proof.
  std::vector<std::vector<int>> results(6);
  launch(line{6}, options_ms(20'000, hd::checking::off), [&](auto& world) {
    auto& c = world.all();
    std::vector<int> x(100, c.rank() + 1);
    hd::all_reduce<own_chain<false, 1>>(c, x, hd::plus{});
    results[static_cast<std::size_t>(c.rank())] = x;
  });
  share(results);
  for (const auto& x : results)
    for (std::size_t i = 0; i < 100; ++i) CHECK(x[i] == (i / 25 == 2 ? 17 : 21));
  if (transport_test::process() < 6) CHECK((own_chain<false, 1>::asked == (on_threads ? 6 : 1)));

  // A right one is proved once, whatever the sizes.
  launch(line{6}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    for (const std::size_t n : {1u, 7u, 100u}) {
      std::vector<int> x(n, c.rank() + 1);
      hd::all_reduce<own_chain<true>>(c, x, hd::plus{});
      results[static_cast<std::size_t>(c.rank())] = x;
    }
  });
  share(results);
  for (const auto& x : results) CHECK(x == std::vector<int>(100, 21));
  if (transport_test::process() < 6) CHECK(own_chain<true>::asked == 1 + 3 * (on_threads ? 6 : 1));
}

TEST_CASE("heddle's algorithms are not proved again, those made of others' are", "[comm][rounds]") {
  using hd::detail::is_proved;
  STATIC_REQUIRE((is_proved<algo::ring> && is_proved<algo::hierarchical<3>> && is_proved<algo::torus<3, 5>>));
  STATIC_REQUIRE((is_proved<algo::scatter_all_gather<algo::pat>> && is_proved<algo::for_ranks<algo::ring, 8>>));
  STATIC_REQUIRE_FALSE((is_proved<own_chain<true>> || is_proved<algo::for_ranks<own_chain<true>, 8>>));
  STATIC_REQUIRE_FALSE((is_proved<algo::hierarchical<2, algo::ring, own_chain<true>>>));
}

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
