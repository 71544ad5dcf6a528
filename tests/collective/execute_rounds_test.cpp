// Every algorithm that heddle has, executed by ranks, against the definition of each collective.
#include <heddle/collective/collectives.hpp>

#include "comm/support.hpp"

using namespace comm_test;
using hd::comm_operation;

namespace {

using hd::detail::round_source;

// All algorithms' rounds for one collective, as values: one test for all of them compiles once.
template <comm_operation What, class... As>
std::vector<const round_source*> sources(hd::type_list<As...>) {
  std::vector<const round_source*> all;
  const auto add = [&]<class A>(hd::type_list<A>) {
    if constexpr (hd::detail::offers_anywhere<A, What>()) all.push_back(&hd::detail::round_source_of<A, What>);
  };
  (add(hd::type_list<As>{}), ...);
  return all;
}

struct known {
  comm_operation what;
  std::vector<const round_source*> algorithms;
};
template <comm_operation... Whats>
std::vector<known> known_of() {
  return {known{Whats, sources<Whats>(hd::known_algorithms{})}...};
}
const std::vector<known>& everything() {
  static const std::vector<known> all =
      known_of<comm_operation::all_reduce, comm_operation::reduce, comm_operation::broadcast,
               comm_operation::reduce_scatter, comm_operation::all_gather, comm_operation::all_to_all,
               comm_operation::gather, comm_operation::scatter, comm_operation::scan, comm_operation::exclusive_scan>();
  return all;
}

// Element `index` of rank `rank`: whole numbers, so that sums of floats do not round.
template <class T>
T element(int rank, std::int64_t index) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>((rank * 31 + index * 7) % 211);
  else
    return value<T>(rank, index);
}
template <class T>
std::vector<T> elements(int rank, std::int64_t first, std::int64_t count) {
  std::vector<T> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(element<T>(rank, first + i));
  return x;
}
template <class T, class Op>
std::vector<T> fold_of(int ranks, std::int64_t first, std::int64_t count, const Op& op) {
  std::vector<T> x = elements<T>(0, first, count);
  for (int r = 1; r < ranks; ++r)
    for (std::int64_t i = 0; i < count; ++i)
      x[static_cast<std::size_t>(i)] = op(x[static_cast<std::size_t>(i)], element<T>(r, first + i));
  return x;
}

// What rank r gives to a collective of n elements (n per block where ranks hold blocks), and what it must get.
template <class T>
struct sides {
  std::vector<T> in, out;
  hd::block_sizes sizes;
  std::int64_t own_in = 0, own_out = 0;  // where the other side lies in place
  bool can_be_in_place = false;
  bool program_in_place = false;
};
template <class T, class Op>
sides<T> sides_of(comm_operation what, int p, int r, int root, std::int64_t n, const Op& op) {
  sides<T> s;
  s.sizes = hd::block_sizes::equal(n);
  switch (what) {
    case comm_operation::all_reduce:
      s = {elements<T>(r, 0, n), fold_of<T>(p, 0, n, op), hd::block_sizes::vector(n), 0, 0, true, true};
      break;
    case comm_operation::reduce:
      s = {elements<T>(r, 0, n),
           r == root ? fold_of<T>(p, 0, n, op) : std::vector<T>{},
           hd::block_sizes::vector(n),
           0,
           0,
           r == root,
           true};
      break;
    case comm_operation::broadcast:
      s = {r == root ? elements<T>(root, 0, n) : std::vector<T>(static_cast<std::size_t>(n)),
           elements<T>(root, 0, n),
           hd::block_sizes::vector(n),
           0,
           0,
           true,
           true};
      break;
    case comm_operation::scan:
      s = {elements<T>(r, 0, n), fold_of<T>(r + 1, 0, n, op), hd::block_sizes::vector(n), 0, 0, true, true};
      break;
    case comm_operation::exclusive_scan:
      s = {elements<T>(r, 0, n),
           r > 0 ? fold_of<T>(r, 0, n, op) : std::vector<T>(static_cast<std::size_t>(n), Op::template identity<T>()),
           hd::block_sizes::vector(n),
           0,
           0,
           true,
           true};
      break;
    case comm_operation::reduce_scatter:
      s.in = elements<T>(r, 0, n * p);
      s.out = fold_of<T>(p, r * n, n, op);
      s.own_in = r * n;
      s.can_be_in_place = n > 0;
      s.program_in_place = true;
      break;
    case comm_operation::all_gather:
    case comm_operation::gather:
      s.in = elements<T>(r, 0, n);
      if (what == comm_operation::all_gather || r == root)
        for (int q = 0; q < p; ++q)
          for (const T& e : elements<T>(q, 0, n)) s.out.push_back(e);
      s.own_out = r * n;
      s.can_be_in_place = !s.out.empty();
      break;
    case comm_operation::scatter:
      if (r == root) s.in = elements<T>(root, 0, n * p);
      s.out = elements<T>(root, r * n, n);
      s.own_in = r * n;
      s.can_be_in_place = r == root && n > 0;
      break;
    default:  // all_to_all
      s.in = elements<T>(r, 0, n * p);
      for (int q = 0; q < p; ++q)
        for (const T& e : elements<T>(q, r * n, n)) s.out.push_back(e);
      break;
  }
  return s;
}

template <class T, class Op>
void laws_of(auto& c, const known& k, const round_source& a, int root, std::int64_t n, const Op& op,
             hd::collective_plans& plans, notes& notes) {
  const int p = c.size(), r = c.rank();
  std::string at(to_string(k.what));
  at += " by ";
  at += a.name;
  at += " p=" + std::to_string(p) + " root=" + std::to_string(root) + " n=" + std::to_string(n);
  sides<T> s = sides_of<T>(k.what, p, r, root, n, op);
  const std::vector<T> expected = s.out, given = s.in;
  const auto run = [&](const T* in, T* out, bool in_place) {
    auto& plan = plans.find(a, k.what, p, r, root, in_place);
    const auto& bound = plan.bound(s.sizes);
    hd::execute_rounds<T>(c, bound, in, out, plans.template scratch<T>(bound.scratch), op);
  };
  if (k.what == comm_operation::broadcast) {
    run(nullptr, s.in.data(), true);
    notes.expect(r, s.in == expected, at);
    return;
  }
  std::vector<T> out(expected.size());
  run(given.data(), out.data(), false);
  notes.expect(r, out == expected, at);
  notes.expect(r, s.in == given, at + ": the input was changed");

  // In place: the shorter side is the own block of the longer one.
  if (s.can_be_in_place) {
    std::vector<T> longer = s.in.size() >= out.size() ? s.in : std::vector<T>(out.size());
    std::copy(s.in.begin(), s.in.end(), longer.begin() + s.own_out);
    run(longer.data() + s.own_out, s.program_in_place ? longer.data() : longer.data() + s.own_in, s.program_in_place);
    const auto result = part(longer, s.own_in, static_cast<std::int64_t>(expected.size()));
    notes.expect(r, result == expected, at + " in place");
  } else {
    run(given.data(), out.data(), false);
  }
}

template <class T, class Op>
void laws(int ranks, bool commutative, std::vector<std::int64_t> counts) {
  notes found(ranks);
  launch(line{ranks}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    hd::collective_plans plans;
    for (const known& k : everything())
      for (const round_source* a : k.algorithms) {
        if (!a->offers(ranks) || (a->order == hd::fold_order::any && !commutative)) continue;
        const bool rooted = k.what == comm_operation::reduce || k.what == comm_operation::broadcast ||
                            k.what == comm_operation::gather || k.what == comm_operation::scatter;
        for (const std::int64_t n : counts)
          laws_of<T>(c, k, *a, rooted ? static_cast<int>((n + 3) % ranks) : 0, n, Op{}, plans, found);
      }
  });
  found.report();
}

std::vector<std::int64_t> few(int p) {
  return {0, p + 1};
}
std::vector<std::int64_t> many(int p) {
  return {0, 1, p - 1, p, p + 1, 1000};
}

}  // namespace

TEST_CASE("algorithms give what the collectives' definitions say: sums of int", "[comm][rounds][law]") {
  for (const int p : rank_counts({1, 2, 3, 4, 6, 7})) laws<int, hd::plus>(p, true, few(p));
}
TEST_CASE("algorithms give what the collectives' definitions say: sums of float", "[comm][rounds][law]") {
  for (const int p : rank_counts({2, 5})) laws<float, hd::plus>(p, true, few(p));
}
TEST_CASE("algorithms that keep the order join words", "[comm][rounds][law]") {
  for (const int p : rank_counts({1, 2, 3, 5, 8})) laws<word, join>(p, false, few(p));
}
TEST_CASE("algorithms that keep the order multiply matrices", "[comm][rounds][law]") {
  for (const int p : rank_counts({3, 6})) laws<matrix2, product2>(p, false, few(p));
}
TEST_CASE("sums of int by every algorithm, all counts, up to 16 ranks", "[comm][rounds][law][slow]") {
  for (const int p : rank_counts(16)) laws<int, hd::plus>(p, true, many(p));
}
TEST_CASE("sums of float by every algorithm, all counts, up to 16 ranks", "[comm][rounds][law][slow]") {
  for (const int p : rank_counts(16)) laws<float, hd::plus>(p, true, many(p));
}
TEST_CASE("joined words by every algorithm that keeps the order, all counts, up to 16 ranks",
          "[comm][rounds][law][slow]") {
  for (const int p : rank_counts(16)) laws<word, join>(p, false, many(p));
}
TEST_CASE("products of matrices by every algorithm that keeps the order, all counts, up to 16 ranks",
          "[comm][rounds][law][slow]") {
  for (const int p : rank_counts(16)) laws<matrix2, product2>(p, false, many(p));
}
