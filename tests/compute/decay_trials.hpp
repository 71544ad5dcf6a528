// tests/compute/decay_trials.hpp: linear attention with decays by another backend, forward and backward, and by the host's.
#pragma once

#include "catch.hpp"

#include <heddle/compute/decay_attention.hpp>
#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace decay_trials {

namespace hd = heddle;
namespace co = heddle::compute;

// All results of `decay_attention`, its gates and its gradients, in elements of sums.
template <class T, class Backend>
std::vector<hd::sum_of_type<T>> results(Backend& b, co::decay_heads of, std::int64_t rows) {
  using S = hd::sum_of_type<T>;
  using space = hd::space_of<Backend>;
  const hd::counter_random random(77, 0);
  std::uint64_t at = 0;
  std::vector<hd::buffer<T, space>> held;
  std::vector<hd::buffer<S, space>> sums;
  const auto copy = [&]<class E>(std::vector<hd::buffer<E, space>>& to, std::int64_t n, bool drawn) {
    std::vector<E> x(static_cast<std::size_t>(n));
    for (E& e : x) e = drawn ? static_cast<E>(static_cast<S>(random.normal(at++))) : E(0);
    to.emplace_back(b.queue(), n);
    b.queue().copy(std::span<const E>(x), hd::row_at<space>(to.back().address(), n));
    b.queue().wait();
    return to.back().address();
  };
  const auto matrix = [&](std::int64_t columns, bool drawn) {
    return hd::matrix_view<T, space>(copy(held, rows * columns, drawn), hd::dynamic_shape<2>(rows, columns));
  };
  const auto read_only = [](hd::matrix_view<T, space> m) { return hd::matrix_view<const T, space>(m); };
  const auto q = matrix(of.queries(), true), d_out = matrix(of.queries(), true);
  const auto k = matrix(of.keys(), true), v = matrix(of.keys(), true), gates = matrix(of.keys(), true);
  const auto out = matrix(of.queries(), false), dq = matrix(of.queries(), false);
  const auto dk = matrix(of.keys(), false), dv = matrix(of.keys(), false), dg = matrix(of.keys(), false);
  const hd::matrix_view<S, space> decays(copy(sums, rows * of.keys(), false), hd::dynamic_shape<2>(rows, of.keys()));
  const std::int64_t elements = 2 * of.state();
  S *const states = copy(sums, elements, true), *const began = copy(sums, elements, true),
           *const d_states = copy(sums, elements, true);
  // The second half of the rows continues state 1, the first begins state 0.
  const std::vector<co::state_rows> listed{
      {static_cast<std::int32_t>(rows / 2), static_cast<std::int32_t>(rows - rows / 2), 1, 0},
      {0, static_cast<std::int32_t>(rows / 2), 0, 1}};
  hd::buffer<co::state_rows, space> there(b.queue(), 2);
  b.queue().copy(std::span<const co::state_rows>(listed), hd::row_at<space>(there.address(), 2));
  co::state_sequences<space> sequences;
  sequences.listed = hd::row_at<space>(static_cast<const co::state_rows*>(there.address()), 2);
  const hd::matrix_view<const S, space> of_gates(decays);
  co::gate_decays(b, read_only(gates), 3.0, decays);
  co::decay_attention(b, of, sequences, read_only(q), read_only(k), read_only(v), of_gates,
                      hd::row_at<space>(states, elements), out);
  co::decay_attention_backward(b, of, sequences, read_only(d_out), read_only(q), read_only(k), read_only(v), of_gates,
                               hd::row_at<space>(static_cast<const S*>(began), elements),
                               hd::row_at<space>(d_states, elements), dq, dk, dv, dg);
  co::gate_decays_backward(b, read_only(gates), 3.0, dg);
  std::vector<S> all;
  const auto take = [&]<class E>(const E* from, std::int64_t n) {
    std::vector<E> x(static_cast<std::size_t>(n));
    b.queue().copy(hd::row_at<space>(from, n), std::span<E>(x));
    b.queue().wait();
    for (const E e : x) all.push_back(static_cast<S>(e));
  };
  for (const auto& m : {out, dq, dk, dv, dg}) take(static_cast<const T*>(m.address()), m.size());
  take(static_cast<const S*>(states), elements);
  take(static_cast<const S*>(d_states), elements);
  return all;
}

template <class T, class Backend>
void compare_with_host(double tolerance) {
  for (const auto& [of, rows] :
       {std::pair(co::decay_heads{2, 3, 11, 0.3}, 13), std::pair(co::decay_heads{1, 1, 64, 0.1}, 6)}) {
    CAPTURE(of.size, rows);
    Backend b;
    co::host<> host(1);
    const auto got = results<T>(b, of, rows), expected = results<T>(host, of, rows);
    REQUIRE(got.size() == expected.size());
    int wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      wrong += !(got[i] == Approx(expected[i]).epsilon(tolerance).margin(tolerance));
    CHECK(wrong == 0);
  }
}

template <class Backend>
void compare_all_with_host() {
  compare_with_host<double, Backend>(1e-11);
  compare_with_host<float, Backend>(1e-3);
}

}  // namespace decay_trials
