// Products of scaled operands of 8 bits on a CUDA backend against the host's emulation.
#pragma once

#include "compute/backend_trials.hpp"

#include <heddle/compute/float8_products.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/cuda/memory.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace float8_trials {

using namespace backend_trials;

/// The largest difference between a product of operands in 8 bits and the host's; `Out`: float or bf16.
template <class Tested, class Out, transpose TA, transpose TB>
double float8_difference(std::int64_t m, std::int64_t n, std::int64_t k, float beta) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  const auto a = numbers<float>(m * k, 1), b = numbers<float>(k * n, 2), c = numbers<float>(m * n, 3);
  const hd::dynamic_shape<2> of_a(ta ? k : m, ta ? m : k), of_b(tb ? n : k, tb ? k : n), of_c(m, n);

  co::float8_products<co::host<>> host(1);
  auto expected = c;
  for (float& x : expected) x = static_cast<float>(Out(x));
  const hd::matrix_view<const float> left(a.data(), of_a), right(b.data(), of_b);
  host.template scaled_matmul<TA, TB, co::float8_operand::gradient, co::float8_operand::value>(
      left, right, hd::matrix_view<float>(expected.data(), of_c), host.greatest(left), host.greatest(right), beta);

  Tested backend;
  auto& queue = backend.queue();
  using memory = hd::cuda_memory;
  hd::buffer<float, memory> x(queue, m * k), y(queue, k * n), most(queue, 2);
  hd::buffer<Out, memory> z(queue, m * n);
  std::vector<Out> got(c.begin(), c.end());
  queue.copy(a, x);
  queue.copy(b, y);
  queue.copy(got, z);
  const hd::matrix_view<const float, memory> on_left(x.address(), of_a), on_right(y.address(), of_b);
  const auto one = [&](std::int64_t i) { return hd::row_at<memory>(most.address() + i, 1); };
  co::run<co::ops::find_greatest>(backend, on_left, one(0));
  co::run<co::ops::find_greatest>(backend, on_right, one(1));
  co::run<co::ops::scaled_product<TA, TB, hd::float8_e5m2, hd::float8_e4m3, Out>>(
      backend, on_left, on_right, hd::matrix_view<Out, memory>(z.address(), of_c), one(0), one(1), beta);
  queue.copy(z, got);
  queue.wait();
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(got[i])) - static_cast<double>(expected[i]));
    worst = error <= worst ? worst : error;  // a NaN is the worst
  }
  return worst;
}
/// The same of products with a scale for each row.
template <class Tested, class Out, transpose TA, transpose TB>
double float8_rows_difference(std::int64_t m, std::int64_t n, std::int64_t k, float beta) {
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  constexpr transpose columns_of_b = tb ? transpose::no : transpose::yes;
  auto a = numbers<float>(m * k, 1), b = numbers<float>(k * n, 2);
  const auto c = numbers<float>(m * n, 3);
  // Rows of very different sizes: one scale would lose the small ones.
  for (std::int64_t i = 0; i < m * k; ++i) a[static_cast<std::size_t>(i)] *= (ta ? i % m : i / k) % 3 == 0 ? 1e-4f : 1;
  for (std::int64_t i = 0; i < k * n; ++i) b[static_cast<std::size_t>(i)] *= (tb ? i / k : i % n) % 2 == 0 ? 1e-3f : 1;
  const hd::dynamic_shape<2> of_a(ta ? k : m, ta ? m : k), of_b(tb ? n : k, tb ? k : n), of_c(m, n);

  co::float8_products<co::host<>, hd::float8_rows> host(1);
  auto expected = c;
  for (float& x : expected) x = static_cast<float>(Out(x));
  const hd::matrix_view<const float> left(a.data(), of_a), right(b.data(), of_b);
  std::vector<float> rows(static_cast<std::size_t>(m)), columns(static_cast<std::size_t>(n));
  host.template greatest_of_rows<TA>(left, rows);
  host.template greatest_of_rows<columns_of_b>(right, columns);
  host.template scaled_matmul<TA, TB, co::float8_operand::gradient, co::float8_operand::value>(
      left, right, hd::matrix_view<float>(expected.data(), of_c), rows, columns, beta);

  co::float8_products<Tested, hd::float8_rows> backend;
  auto& queue = backend.queue();
  using memory = hd::cuda_memory;
  hd::buffer<float, memory> x(queue, m * k), y(queue, k * n);
  hd::buffer<Out, memory> z(queue, m * n);
  std::vector<Out> got(c.begin(), c.end());
  queue.copy(a, x);
  queue.copy(b, y);
  queue.copy(got, z);
  const hd::matrix_view<const float, memory> on_left(x.address(), of_a), on_right(y.address(), of_b);
  const hd::matrix_view<Out, memory> on_result(z.address(), of_c);
  const auto most = backend.template greatest_of<TA, TB>(on_left, on_right);
  if constexpr (std::is_same_v<Out, float>)
    backend.template scaled_matmul<TA, TB, co::float8_operand::gradient, co::float8_operand::value>(
        on_left, on_right, on_result, most, beta);
  else
    co::run<co::ops::row_scaled_product<TA, TB, hd::float8_e4m3, hd::float8_e4m3, Out>>(
        backend, on_left, on_right, on_result, hd::row_at<memory>(most.address(), m),
        hd::row_at<memory>(most.address() + m, n), beta);
  std::vector<float> found(static_cast<std::size_t>(m + n));
  queue.copy(most, found);
  queue.copy(z, got);
  queue.wait();
  rows.insert(rows.end(), columns.begin(), columns.end());
  double worst = found == rows ? 0 : 1e300;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(got[i])) - static_cast<double>(expected[i]));
    worst = error <= worst ? worst : error;
  }
  return worst;
}
/// The worst for some sizes; `ByRows`: of products with a scale for each row.
template <class Tested, class Out, bool ByRows = false>
double worst_float8_difference() {
  double worst = 0;
  const auto note = [&](double x) { worst = x <= worst ? worst : x; };
  const auto compare = [&]<transpose TA, transpose TB>(std::int64_t m, std::int64_t n, std::int64_t k, float beta) {
    if constexpr (ByRows)
      note(float8_rows_difference<Tested, Out, TA, TB>(m, n, k, beta));
    else
      note(float8_difference<Tested, Out, TA, TB>(m, n, k, beta));
  };
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{5, 3, 7}, {16, 32, 48}, {1, 20, 100}, {70, 70, 70}, {2, 2, 0}, {9, 600, 300}}) {
    if (!ByRows && n == 600) continue;
    for (const float beta : {0.0f, 1.0f}) {
      compare.template operator()<transpose::no, transpose::no>(m, n, k, beta);
      compare.template operator()<transpose::no, transpose::yes>(m, n, k, beta);
      compare.template operator()<transpose::yes, transpose::no>(m, n, k, beta);
    }
  }
  return worst;
}

}  // namespace float8_trials
