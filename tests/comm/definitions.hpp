// Every collective of a communicator against its definition, element by element: for all planes and transports.
#pragma once

#include "support.hpp"

namespace comm_test {

template <class T, class Op>
void reductions(auto& c, std::int64_t n, const Op& op, notes& notes) {
  const int p = c.size(), r = c.rank();
  const std::string at = "p=" + std::to_string(p) + " n=" + std::to_string(n);
  std::vector<T> expected(static_cast<std::size_t>(n * p));
  for (std::int64_t i = 0; i < n * p; ++i) expected[static_cast<std::size_t>(i)] = folded<T>(p, i, op);
  const auto head = part(expected, 0, n);

  auto x = buffer<T>(r, n);
  std::vector<T> y(x.size());
  c.all_reduce(std::span<const T>(x), std::span(y), op);
  notes.expect(r, same(y, head), "all_reduce " + at);
  notes.expect(r, x == buffer<T>(r, n), "all_reduce changed its input " + at);
  c.all_reduce(std::span(x), op);
  notes.expect(r, same(x, head), "all_reduce in place " + at);

  const int root = static_cast<int>(n) % p;
  x = buffer<T>(r, n);
  std::vector<T> z(r == root ? x.size() : 0);
  c.reduce(x, z, op, root);
  if (r == root) notes.expect(r, same(z, head), "reduce " + at);
  c.reduce(x, std::span<T>(x), op, root);
  notes.expect(r, same(x, r == root ? head : buffer<T>(r, n)), "reduce in place " + at);

  x = buffer<T>(r, n * p);
  std::vector<T> w(static_cast<std::size_t>(n));
  c.reduce_scatter(x, w, op);
  notes.expect(r, same(w, part(expected, r * n, n)), "reduce_scatter " + at);
  c.reduce_scatter(std::span<const T>(x),
                   std::span(x).subspan(static_cast<std::size_t>(r * n), static_cast<std::size_t>(n)), op);
  notes.expect(r, same(part(x, r * n, n), part(expected, r * n, n)), "reduce_scatter in place " + at);

  // Uneven: rank q gets n + q - 1 elements, none if that is negative.
  std::vector<std::int64_t> counts(static_cast<std::size_t>(p)), offsets(counts.size() + 1);
  for (std::size_t q = 0; q < counts.size(); ++q) {
    counts[q] = (std::max)(std::int64_t{0}, n + static_cast<std::int64_t>(q) - 1);
    offsets[q + 1] = offsets[q] + counts[q];
  }
  const auto mine = static_cast<std::size_t>(r);
  x = buffer<T>(r, offsets.back());
  std::vector<T> v(static_cast<std::size_t>(counts[mine]));
  c.reduce_scatter_v(x, v, counts, op);
  std::vector<T> wanted;
  for (std::int64_t i = 0; i < counts[mine]; ++i) wanted.push_back(folded<T>(p, offsets[mine] + i, op));
  notes.expect(r, same(v, wanted), "reduce_scatter_v " + at);
}

template <class T>
void exchanges(auto& c, std::int64_t n, notes& notes) {
  const int p = c.size(), r = c.rank();
  const std::string at = "p=" + std::to_string(p) + " n=" + std::to_string(n);
  const int root = static_cast<int>(n + 1) % p;
  const auto size = static_cast<std::size_t>(n);
  const auto all = static_cast<std::size_t>(n * p);

  auto x = buffer<T>(r, n);
  c.broadcast(std::span(x), root);
  notes.expect(r, x == buffer<T>(root, n), "broadcast " + at);

  std::vector<T> expected;
  for (int q = 0; q < p; ++q)
    for (const T& e : buffer<T>(q, n)) expected.push_back(e);
  x = buffer<T>(r, n);
  std::vector<T> y(all);
  c.all_gather(x, y);
  notes.expect(r, y == expected, "all_gather " + at);
  std::vector<T> z(all);
  const auto own = std::span(z).subspan(static_cast<std::size_t>(r * n), size);
  std::copy(x.begin(), x.end(), own.begin());
  c.all_gather(own, std::span(z));
  notes.expect(r, z == expected, "all_gather in place " + at);

  std::vector<T> g(r == root ? all : 0);
  c.gather(x, g, root);
  if (r == root) notes.expect(r, g == expected, "gather " + at);
  std::vector<T> s(size);
  c.scatter(g, s, root);
  notes.expect(r, s == x, "scatter of gather " + at);

  const auto to_all = buffer<T>(r, n * p);
  std::vector<T> from_all(all), back(all);
  c.all_to_all(to_all, from_all);
  for (int q = 0; q < p; ++q)
    notes.expect(r, part(from_all, q * n, n) == part(buffer<T>(q, n * p), r * n, n), "all_to_all " + at);
  c.all_to_all(from_all, back);
  notes.expect(r, back == to_all, "all_to_all twice " + at);
}

template <class T>
void uneven_exchanges(auto& c, std::int64_t n, notes& notes) {
  const int p = c.size(), r = c.rank();
  const std::string at = "p=" + std::to_string(p) + " n=" + std::to_string(n);
  const auto count = [&](int q) { return q % 3 == 1 ? std::int64_t{0} : n + q; };
  std::vector<std::int64_t> counts;
  std::vector<T> expected;
  for (int q = 0; q < p; ++q) {
    counts.push_back(count(q));
    for (const T& e : buffer<T>(q, count(q))) expected.push_back(e);
  }
  const auto x = buffer<T>(r, count(r));
  std::vector<T> y(expected.size());
  c.all_gather_v(x, y, counts);
  notes.expect(r, y == expected, "all_gather_v " + at);

  const int root = p - 1;
  std::vector<T> g(r == root ? expected.size() : 0);
  c.gather_v(x, g, r == root ? std::span<const std::int64_t>(counts) : std::span<const std::int64_t>{}, root);
  if (r == root) notes.expect(r, g == expected, "gather_v " + at);
  std::vector<T> s(x.size());
  c.scatter_v(g, counts, s, root);
  notes.expect(r, s == x, "scatter_v of gather_v " + at);

  // Rank a sends (a + 2 b) % 5 * n / 4 elements to rank b; element k is value(a, 1000 b + k).
  const auto volume = [&](int a, int b) { return (a + 2 * b) % 5 * n / 4; };
  std::vector<std::int64_t> send_counts, recv_counts;
  std::vector<T> in, expected_out;
  for (int q = 0; q < p; ++q) {
    send_counts.push_back(volume(r, q));
    recv_counts.push_back(volume(q, r));
    for (std::int64_t k = 0; k < volume(r, q); ++k) in.push_back(value<T>(r, 1000 * q + k));
    for (std::int64_t k = 0; k < volume(q, r); ++k) expected_out.push_back(value<T>(q, 1000 * r + k));
  }
  std::vector<T> out(expected_out.size());
  c.all_to_all_v(in, send_counts, out, recv_counts);
  notes.expect(r, out == expected_out, "all_to_all_v " + at);
}

template <class T, class Op>
void everything(auto& c, std::int64_t n, const Op& op, notes& notes) {
  reductions<T>(c, n, op, notes);
  exchanges<T>(c, n, notes);
  uneven_exchanges<T>(c, n, notes);
}

}  // namespace comm_test
