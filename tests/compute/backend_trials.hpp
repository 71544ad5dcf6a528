// Each facet of a backend with numbers that are the same for every backend: what came out of its kernels, to be compared with what
// comes out of the host's.
#pragma once

#include "catch.hpp"

#include <heddle/compute/chunked_cross_entropy.hpp>
#include <heddle/compute/ops/expert_choice.hpp>
#include <heddle/compute/facets.hpp>

#include <heddle/compute/ops/head_parts.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/core/random.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace backend_trials {

namespace hd = heddle;
namespace co = heddle::compute;
using co::transpose;

/// A backend for a test, with one thread where it takes some of the host's.
template <class B>
B made_backend() {
  if constexpr (std::is_constructible_v<B, int>)
    return B(1);
  else
    return B();
}

/// Whether trials are of numbers that bf16 has, whatever their type.
inline bool& rounds_numbers() {
  static bool rounds = false;
  return rounds;
}
struct numbers_of_bf16 {
  numbers_of_bf16() { rounds_numbers() = true; }
  numbers_of_bf16(const numbers_of_bf16&) = delete;
  ~numbers_of_bf16() { rounds_numbers() = false; }
};
// Numbers in [-1, 1), the same for every backend and element type.
template <class T>
std::vector<T> numbers(std::int64_t n, std::uint64_t seed) {
  const hd::counter_random random(seed, 0);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double number = static_cast<double>(random.bits(i)[0]) / 2147483648.0 - 1.0;
    x[i] = rounds_numbers() ? hd::converted<T>(static_cast<float>(hd::converted<hd::bf16>(number)))
                            : hd::converted<T>(number);
  }
  return x;
}

/// Where arrays of trials begin: behind 0, 1, ... elements of their own, up to one less than this, one array after another. 1: all at the
/// beginning of memory.
inline std::int64_t& starts_of_arrays() {
  static std::int64_t count = 1;
  return count;
}

// A backend with memory for a test, and what came out of its kernels.
template <class B, class T>
class trial {
 public:
  using space = typename B::space;
  using row = hd::row_view<T, space>;
  using matrix = hd::matrix_view<T, space>;
  using sum = hd::sum_of_type<T>;
  using sum_row = hd::row_view<sum, space>;
  using sum_matrix = hd::matrix_view<sum, space>;
  B backend = made_backend<B>();

  template <class E>
  E* keep(const std::vector<E>& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    const std::int64_t before = static_cast<std::int64_t>(kept_.size()) % starts_of_arrays();
    auto memory = std::make_shared<hd::buffer<E, space>>(backend.queue(), n + before);
    kept_.push_back(memory);
    E* const at = n == 0 ? memory->address() : memory->address() + before;
    backend.queue().copy(values, hd::row_at<space>(at, n));
    return at;
  }
  row some(std::int64_t n) { return hd::row_at<space>(keep(numbers<T>(n, ++seed_)), n); }
  /// Statistics, or gradients of weights.
  sum_row sums(std::int64_t n) { return hd::row_at<space>(keep(numbers<sum>(n, ++seed_)), n); }
  sum_matrix sums(std::int64_t rows, std::int64_t columns) {
    return {keep(numbers<sum>(rows * columns, ++seed_)), hd::dynamic_shape<2>(rows, columns)};
  }
  sum_row positive(std::int64_t n) {
    auto x = numbers<sum>(n, ++seed_);
    for (sum& e : x) e = std::abs(e) + sum(0.1);
    return hd::row_at<space>(keep(x), n);
  }
  matrix some(std::int64_t rows, std::int64_t columns) {
    return {keep(numbers<T>(rows * columns, ++seed_)), hd::dynamic_shape<2>(rows, columns)};
  }
  co::token_ids_in<space> ids(std::int64_t n, std::int32_t below) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(below)) - 1;
    return hd::row_at<space>(static_cast<const std::int32_t*>(keep(x)), n);
  }
  co::number_in<space> number(double* at) {
    if constexpr (std::is_same_v<space, hd::host_memory>)
      return at;
    else
      return {at, {}};
  }
  template <class E>
  void note(const std::string& name, const hd::vector_view<E, space>& x) {
    note_elements(name, x.address(), x.size());
  }
  template <class E>
  void note(const std::string& name, std::span<E> x) {
    note_elements(name, x.data(), static_cast<std::int64_t>(x.size()));
  }
  template <class E>
  void note(const std::string& name, const hd::matrix_view<E, space>& x) {
    note_elements(name, x.address(), x.size());
  }
  void note(const std::string& name, double x) { results.emplace_back(name, std::vector<double>{x}); }

  std::vector<std::pair<std::string, std::vector<double>>> results;

 private:
  template <class E>
  void note_elements(const std::string& name, const E* at, std::int64_t n) {
    std::vector<std::remove_const_t<E>> out(static_cast<std::size_t>(n));
    backend.queue().copy(hd::row_at<space>(at, n), out);
    backend.queue().wait();
    std::vector<double> values;
    for (const auto& e : out) values.push_back(static_cast<double>(e));
    results.emplace_back(name, values);
  }
  std::vector<std::shared_ptr<void>> kept_;
  std::uint64_t seed_ = 0;
};

template <class B, class T>
auto elementwise(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  using S = hd::sum_of_type<T>;
  const std::int64_t n = rows * columns;
  const auto a = t.some(n), b = t.some(n);
  auto y = t.some(n), d = t.some(n);
  co::run<co::ops::gelu>(t.backend, a, y), t.note("gelu", y);
  co::run<co::ops::gelu_backward>(t.backend, a, b, y), t.note("gelu_backward", y);
  co::run<co::ops::soft_cap>(t.backend, a, S(0.7), y), t.note("soft_cap", y);
  co::run<co::ops::soft_cap_backward>(t.backend, a, b, S(0.7), y), t.note("soft_cap_backward", y);
  co::run<co::ops::add>(t.backend, a, b, y), t.note("add", y);
  co::run<co::ops::add>(t.backend, y, b, y), t.note("add in place", y);
  co::run<co::ops::scale>(t.backend, y, S(0.3)), t.note("scale", y);
  co::run<co::ops::copy>(t.backend, a, y), t.note("copy", y);
  co::run<co::ops::fill>(t.backend, y, S(2.5)), t.note("fill", y);
  co::run<co::ops::gated<co::silu>>(t.backend, a, b, y), t.note("silu", y);
  co::run<co::ops::gated<co::gelu_tanh>>(t.backend, a, b, y), t.note("gelu_tanh", y);
  co::run<co::ops::gated<co::relu>>(t.backend, a, b, y), t.note("relu", y);
  co::run<co::ops::gated_backward<co::silu>>(t.backend, a, b, b, y, d), t.note("silu, gate", y), t.note("silu, up", d);
  co::run<co::ops::gated_backward<co::relu>>(t.backend, a, b, b, y, d), t.note("relu, gate", y), t.note("relu, up", d);
  const auto gates = t.some(n), ups = t.some(n);  // beyond the limits, too
  co::run<co::ops::scale>(t.backend, gates, S(9)), co::run<co::ops::scale>(t.backend, ups, S(9));
  co::run<co::ops::gated<co::clamped_swiglu>>(t.backend, gates, ups, y), t.note("clamped_swiglu", y);
  co::run<co::ops::gated_backward<co::clamped_swiglu>>(t.backend, gates, ups, b, y, d);
  t.note("clamped_swiglu, gate", y), t.note("clamped_swiglu, up", d);
  auto m = t.some(rows, columns), other = t.some(rows, columns);
  auto bias = t.some(columns);
  co::run<co::ops::add_bias>(t.backend, m, bias), t.note("add_bias", m);
  auto of_bias = t.sums(columns);
  co::run<co::ops::add_bias_backward>(t.backend, m, of_bias), t.note("add_bias_backward", of_bias);
  const auto ids = t.ids(rows, 9);
  auto table = t.some(5, columns);
  co::run<co::ops::embedding>(t.backend, ids, table, 2, m), t.note("embedding", m);
  auto of_table = t.sums(5, columns);
  co::run<co::ops::embedding_backward>(t.backend, ids, other, 2, of_table), t.note("embedding_backward", of_table);
  const std::int64_t sequence = rows % 3 == 0 && rows > 0 ? rows / 3 : rows;
  auto positions = t.some(sequence + 1, columns);
  co::run<co::ops::add_positions>(t.backend, m, positions, sequence), t.note("add_positions", m);
  auto of_positions = t.sums(sequence + 1, columns);
  co::run<co::ops::add_positions_backward>(t.backend, m, sequence, of_positions),
      t.note("add_positions_backward", of_positions);
  // Two heads of five elements in rows of twelve; the tables turn the first four of each.
  if (columns >= 12) {
    const auto x = t.some(rows, 12);
    auto z = t.some(rows, 12);
    const auto cosines = t.sums(9, 2), sines = t.sums(9, 2);
    std::vector<std::int32_t> at(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<std::int32_t>(i * 5 % 9);
    const auto where = hd::row_at<typename B::space>(static_cast<const std::int32_t*>(t.keep(at)), rows);
    const auto from = co::heads_of(x, 2, 5, 1);
    auto to = co::heads_of(z, 2, 5, 2);
    using co::rotary_pairs;
    co::run<co::ops::rotary<rotary_pairs::halves>>(t.backend, from, where, cosines, sines, to),
        t.note("rotary, halves", z);
    co::run<co::ops::rotary<rotary_pairs::neighbours>>(t.backend, from, where, cosines, sines, to),
        t.note("neighbours", z);
    co::run<co::ops::rotary_backward<rotary_pairs::halves>>(t.backend, from, where, cosines, sines, to),
        t.note("back", z);
    co::run<co::ops::rotary_backward<rotary_pairs::neighbours>>(t.backend, from, where, cosines, sines, to),
        t.note("back, n", z);
  }
  return t.results;
}

template <class B, class T>
auto norms(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  using S = hd::sum_of_type<T>;
  const auto x = t.some(rows, columns), dy = t.some(rows, columns);
  auto y = t.some(rows, columns);
  const auto w = t.some(columns), b = t.some(columns);
  auto mean = t.sums(rows), rstd = t.sums(rows), dw = t.sums(columns), db = t.sums(columns);
  co::run<co::ops::layer_norm>(t.backend, x, w, b, S(1e-5), y, mean, rstd);
  t.note("layer_norm", y), t.note("mean", mean), t.note("rstd", rstd);
  // In place, and once more onto that in another place, where B has that in one.
  const auto copied = [&](auto& from, auto& to) {
    co::run<co::ops::copy>(t.backend, hd::row_at<typename B::space>(from.address(), from.size()),
                           hd::row_at<typename B::space>(to.address(), to.size()));
  };
  auto z = t.some(rows, columns);
  co::run<co::ops::layer_norm_backward_input>(t.backend, dy, x, w, mean, rstd, y);
  if constexpr (co::offers<B, T, co::norm_onto_facet>)
    co::run<co::ops::layer_norm_backward_onto>(t.backend, dy, x, w, mean, rstd, y, z);
  else
    copied(y, z), co::run<co::ops::layer_norm_backward_input>(t.backend, dy, x, w, mean, rstd, z);
  t.note("layer_norm_backward_input", z);
  co::run<co::ops::layer_norm_backward_weight>(t.backend, dy, x, mean, rstd, dw, db), t.note("dw", dw),
      t.note("db", db);
  co::run<co::ops::rms_norm>(t.backend, x, w, S(1e-5), y, rstd), t.note("rms_norm", y), t.note("its rstd", rstd);
  co::run<co::ops::rms_norm_backward_input>(t.backend, dy, x, w, rstd, y);
  if constexpr (co::offers<B, T, co::norm_onto_facet>)
    co::run<co::ops::rms_norm_backward_onto>(t.backend, dy, x, w, rstd, y, z);
  else
    copied(y, z), co::run<co::ops::rms_norm_backward_input>(t.backend, dy, x, w, rstd, z);
  t.note("rms_norm_backward_input", z);
  co::run<co::ops::rms_norm_backward_weight>(t.backend, dy, x, rstd, dw), t.note("rms_norm_backward_weight", dw);
  auto sum = t.sums(rows);
  const S count = static_cast<S>(2 * columns + 1);  // as if others had the rest
  co::run<co::ops::row_sum_squares>(t.backend, x, sum), t.note("row_sum_squares", sum);
  co::run<co::ops::rms_norm_of_sums>(t.backend, x, w, sum, count, S(1e-5), y, rstd), t.note("rms_norm_of_sums", y);
  t.note("rstd of sums", rstd);
  co::run<co::ops::rms_norm_row_dot>(t.backend, dy, x, w, sum), t.note("rms_norm_row_dot", sum);
  co::run<co::ops::rms_norm_backward_of_sums>(t.backend, dy, x, w, rstd, sum, count, y);
  t.note("rms_norm_backward_of_sums", y);
  return t.results;
}

template <class B, class T>
auto cross_entropy(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  auto logits = t.some(rows, columns);
  auto m = t.sums(rows), sum = t.sums(rows), picked = t.sums(rows);
  const auto targets = t.ids(rows, static_cast<std::int32_t>(columns) + 5);
  co::run<co::ops::row_max>(t.backend, logits, m), t.note("row_max", m);
  co::run<co::ops::row_sum_exp>(t.backend, logits, m, sum), t.note("row_sum_exp", sum);
  co::run<co::ops::pick_target>(t.backend, logits, targets, 1, picked), t.note("pick_target", picked);
  auto total = t.keep(std::vector<double>{0.25});
  const auto ones = t.positive(rows);
  co::run<co::ops::cross_entropy_loss>(t.backend, m, ones, picked, targets, t.number(total));
  t.note("cross_entropy_loss", hd::row_at<typename B::space>(total, 1));
  auto again = t.some(rows, columns);
  co::run<co::ops::row_max>(t.backend, again, m), co::run<co::ops::row_sum_exp>(t.backend, again, m, sum);
  co::run<co::ops::weighted_cross_entropy_backward>(t.backend, again, m, sum, targets, 1, t.sums(rows));
  t.note("cross_entropy_backward with a factor for each row", again);
  auto below = t.some(rows, columns);
  co::run<co::ops::row_max>(t.backend, below, m), co::run<co::ops::row_sum_exp>(t.backend, below, m, sum);
  co::run<co::ops::capped_cross_entropy_backward>(t.backend, below, m, sum, targets, 1, hd::sum_of_type<T>(0.1),
                                                  hd::sum_of_type<T>(7));
  t.note("cross_entropy_backward below a cap", below);
  co::run<co::ops::row_max>(t.backend, logits, m), co::run<co::ops::row_sum_exp>(t.backend, logits, m, sum);
  co::run<co::ops::cross_entropy_backward>(t.backend, logits, m, sum, targets, 1, hd::sum_of_type<T>(0.1));
  t.note("cross_entropy_backward", logits);
  return t.results;
}

// The cross-entropy of x words' with logits of `chunk` words at a time, and its gradients; with those of all words for no chunk.
template <class B, class T>
auto cross_entropy_of_words(std::int64_t rows, std::int64_t columns, std::int64_t chunk) {
  trial<B, T> t;
  constexpr auto no = transpose::no, yes = transpose::yes;
  const auto x = t.some(rows, 6), words = t.some(columns, 6);
  auto dx = t.some(rows, 6), dwords = t.some(columns, 6);
  auto m = t.some(rows), sum = t.some(rows), picked = t.some(rows);
  const auto targets = t.ids(rows, static_cast<std::int32_t>(columns) + 5);
  if (chunk > 0) {
    const auto room = t.some(rows * chunk);
    co::chunked_cross_entropy<T>(t.backend, x, words, targets, 1, room, m, sum, picked);
    co::chunked_cross_entropy_backward<T>(t.backend, x, words, targets, 1, m, sum, T(0.1), room, dx, dwords);
  } else {
    auto logits = t.some(rows, columns);
    co::matmul<no, yes>(t.backend, x, words, logits, T(0));
    co::run<co::ops::row_max>(t.backend, logits, m);
    co::run<co::ops::row_sum_exp>(t.backend, logits, m, sum);
    co::run<co::ops::pick_target>(t.backend, logits, targets, 1, picked);
    co::run<co::ops::cross_entropy_backward>(t.backend, logits, m, sum, targets, 1, T(0.1));
    co::matmul<no, no>(t.backend, logits, words, dx, T(0));
    co::matmul<yes, no>(t.backend, logits, x, dwords, T(1));
  }
  t.note("m", m), t.note("sum", sum), t.note("picked", picked), t.note("dx", dx), t.note("dwords", dwords);
  return t.results;
}
// What is not finite, in two chunks: NaN, infinities, rows of -inf alone, numbers that make the sum before vanish.
template <class B>
auto chunks_not_finite() {
  const double inf = (std::numeric_limits<double>::infinity)(), nan = std::numeric_limits<double>::quiet_NaN();
  trial<B, double> t;
  using space = typename B::space;
  const auto matrix = [&](const std::vector<double>& x) {
    return hd::matrix_view<double, space>(t.keep(x), hd::dynamic_shape<2>(6, 2));
  };
  const auto first = matrix({nan, 1, inf, -inf, 0, -800, -inf, -inf, -inf, -inf, 1, 2});
  const auto second = matrix({2, 3, 1, 2, 800, 1e-300, 5, -inf, -inf, -inf, nan, -inf});
  const auto row = [&](double value) { return hd::row_at<space>(t.keep(std::vector<double>(6, value)), 6); };
  auto m = row(-inf), sum = row(0), picked = row(0);
  const std::vector<std::int32_t> ids{0, 1, 2, 3, -1, 4};
  const auto targets = hd::row_at<space>(static_cast<const std::int32_t*>(t.keep(ids)), 6);
  co::run<co::ops::add_to_softmax>(t.backend, first, targets, 0, m, sum, picked);
  t.note("m", m), t.note("sum", sum), t.note("picked", picked);
  auto before = row(0), of_first = row(0);
  co::run<co::ops::copy>(t.backend, m, before), co::run<co::ops::copy>(t.backend, sum, of_first);
  co::run<co::ops::add_to_softmax>(t.backend, second, targets, 2, m, sum, picked);
  t.note("m of all", m), t.note("sum of all", sum), t.note("picked of all", picked);
  co::run<co::ops::rescale_softmax>(t.backend, before, m, of_first), t.note("the first sum in units of all", of_first);
  return t.results;
}

template <class B, class T>
auto sums_and_steps(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  const std::int64_t n = rows * columns;
  auto p = t.some(n), m = t.some(n), v = t.positive(n);
  const auto g = t.some(n);
  const co::adamw_step step{.lr = 0.01, .weight_decay = 0.1, .step = 3, .grad_scale = 0.7};
  t.note("sum_of_squares", co::sum_of<co::ops::sum_of_squares>(t.backend, g));
  t.note("all_finite", co::all_finite(t.backend, g) ? 1 : 0);
  co::run<co::ops::adamw>(t.backend, p, g, m, v, step), t.note("adamw", p), t.note("m", m), t.note("v", v);
  co::run<co::ops::undo_adamw>(t.backend, p, g, m, v, step), t.note("undo_adamw", p), t.note("m before", m),
      t.note("v before", v);
  auto bad = t.some(n);
  const auto infinity = std::vector<T>{(std::numeric_limits<T>::infinity)()};
  const auto nan = std::vector<T>{std::numeric_limits<T>::quiet_NaN()};
  if (n > 2) {
    t.backend.queue().copy(infinity, hd::part_of_row<typename B::space>(bad, n - 1, 1));
    t.backend.queue().copy(nan, hd::part_of_row<typename B::space>(bad, n / 2, 1));
  }
  double* const sum = t.keep(std::vector<double>{1.5, 10});
  co::run<co::ops::sum_of_squares>(t.backend, g, t.number(sum)),
      co::run<co::ops::count_nonfinite>(t.backend, bad, t.number(sum + 1));
  t.note("sums that are added to", hd::row_at<typename B::space>(sum, 2));
  t.note("all_finite of these", co::all_finite(t.backend, bad) ? 1 : 0);
  co::run<co::ops::squared_error>(t.backend, g, p, t.number(sum)),
      t.note("squared_error", hd::row_at<typename B::space>(sum, 1));
  co::run<co::ops::squared_error_backward>(t.backend, p, g, T(0.25)), t.note("squared_error_backward", p);
  // Master weights in T, weights and gradients in bf16.
  using half = hd::bf16;
  std::vector<half> narrow;
  for (const T x : numbers<T>(n, 77)) narrow.push_back(half(static_cast<float>(x)));
  const auto small = hd::row_at<typename B::space>(t.keep(narrow), n);
  const auto weights = hd::row_at<typename B::space>(t.keep(narrow), n);
  co::run<co::ops::master_adamw<half, half>>(t.backend, p, weights, small, m, v, step),
      t.note("adamw on master weights", p), t.note("rounded", weights);
  co::cast(t.backend, p, weights), t.note("cast", weights);
  co::cast(t.backend, small, p), t.note("cast back", p);
  return t.results;
}

template <class B, class T>
auto products(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  constexpr auto no = transpose::no, yes = transpose::yes;
  const auto a = t.some(rows, columns), b = t.some(columns, 6), c = t.some(rows, 6);
  auto ab = t.some(rows, 6), ct = t.some(columns, 6), cbt = t.some(rows, columns), bta = t.some(6, rows);
  co::matmul<no, no>(t.backend, a, b, ab, T(0.5)), t.note("a b", ab);
  co::matmul<yes, no>(t.backend, a, c, ct, T(0)), t.note("a' c", ct);
  co::matmul<no, yes>(t.backend, c, b, cbt, T(1)), t.note("c b'", cbt);
  co::matmul<yes, yes>(t.backend, b, a, bta, T(0)), t.note("b' a'", bta);
  // Memory that begins where no vector does.
  const auto longer = t.some(1, rows * columns + 1);
  const hd::matrix_view<T, typename B::space> odd(longer.address() + 1, hd::dynamic_shape<2>(rows, columns));
  co::matmul<no, no>(t.backend, odd, b, ab, T(0)), t.note("a b, not aligned", ab);
  return t.results;
}

// Operands of 16 bits into sums of float and into their own type; without any terms, too.
template <class B, class Half>
auto products_of_halves(std::int64_t rows, std::int64_t columns) {
  trial<B, float> t;
  using space = typename B::space;
  const auto halves = [&](std::int64_t m, std::int64_t n, std::uint64_t seed) {
    std::vector<Half> x;
    for (const float e : numbers<float>(m * n, seed)) x.push_back(Half(e));
    return hd::matrix_view<Half, space>(t.keep(x), hd::dynamic_shape<2>(m, n));
  };
  constexpr auto no = transpose::no, yes = transpose::yes;
  const auto a = halves(rows, columns, 1), b = halves(columns, 6, 2), c = halves(rows, 6, 3);
  auto sums = t.some(rows, 6), of_columns = t.some(columns, 6), wide = t.some(rows, columns);
  co::matmul<no, no>(t.backend, a, b, sums, 0.5f), t.note("a b", sums);
  co::matmul<yes, no>(t.backend, a, c, of_columns, 0.0f), t.note("a' c", of_columns);
  co::matmul<no, yes>(t.backend, c, b, wide, 1.0f), t.note("c b'", wide);
  co::matmul<no, no>(t.backend, a, b, c, 0.5f), t.note("a b, rounded", hd::row_at<space>(c.address(), c.size()));
  co::matmul<no, yes>(t.backend, c, b, a, 0.0f), t.note("c b', rounded", hd::row_at<space>(a.address(), a.size()));
  return t.results;
}

// Products with what is behind them: in one where B has that and `Fused`, else one after the other.
template <class B, class T, bool Fused = co::offered<co::fused_product_facet, B, T>>
auto products_with_ends(std::int64_t rows, std::int64_t columns) {
  trial<B, T> t;
  constexpr auto no = transpose::no, yes = transpose::yes;
  const auto x = t.some(rows, 6), w = t.some(6, columns), turned = t.some(columns, 6), dy = t.some(rows, columns);
  const auto bias = t.some(columns);
  auto y = t.some(rows, columns), z = t.some(rows, columns), h = t.some(rows, columns), dz = t.some(rows, 6);
  auto dw = t.sums(6, columns), dturned = t.sums(columns, 6);
  auto db = t.sums(columns), db_turned = t.sums(columns);
  const auto all = [](const auto& m) { return hd::row_at<typename B::space>(m.address(), m.size()); };
  auto& k = t.backend;
  if constexpr (Fused) {
    co::run<co::ops::matmul_add_bias<no, no>>(k, x, w, bias, y), t.note("x w + b", y);
    co::run<co::ops::matmul_add_bias<no, yes>>(k, x, turned, bias, y), t.note("x w' + b", y);
    co::run<co::ops::matmul_add_bias_gelu<no, no>>(k, x, w, bias, z, h), t.note("before", z), t.note("gelu", h);
    co::run<co::ops::matmul_add_bias_gelu<no, yes>>(k, x, turned, bias, z, h), t.note("before, w'", z),
        t.note("gelu, w'", h);
    co::run<co::ops::matmul_gelu_backward<no, yes>>(k, dy, w, x, dz), t.note("dz", dz);
    co::run<co::ops::matmul_gelu_backward<no, no>>(k, dy, turned, x, dz), t.note("dz, w'", dz);
    co::run<co::ops::matmul_add_bias_backward<co::summed_operand::right>>(k, x, dy, dw, db);
    co::run<co::ops::matmul_add_bias_backward<co::summed_operand::left>>(k, dy, x, dturned, db_turned);
  } else {
    co::matmul<no, no>(k, x, w, y, T(0)), co::run<co::ops::add_bias>(k, y, bias), t.note("x w + b", y);
    co::matmul<no, yes>(k, x, turned, y, T(0)), co::run<co::ops::add_bias>(k, y, bias), t.note("x w' + b", y);
    for (const bool is_turned : {false, true}) {
      if (is_turned)
        co::matmul<no, yes>(k, x, turned, z, T(0));
      else
        co::matmul<no, no>(k, x, w, z, T(0));
      co::run<co::ops::add_bias>(k, z, bias), co::run<co::ops::gelu>(k, all(z), all(h));
      t.note(is_turned ? "before, w'" : "before", z), t.note(is_turned ? "gelu, w'" : "gelu", h);
    }
    co::matmul<no, yes>(k, dy, w, dz, T(0)), co::run<co::ops::gelu_backward>(k, all(x), all(dz), all(dz)),
        t.note("dz", dz);
    co::matmul<no, no>(k, dy, turned, dz, T(0)), co::run<co::ops::gelu_backward>(k, all(x), all(dz), all(dz)),
        t.note("dz, w'", dz);
    co::matmul<yes, no>(k, x, dy, dw, T(1)), co::run<co::ops::add_bias_backward>(k, dy, db);
    co::matmul<yes, no>(k, dy, x, dturned, T(1)), co::run<co::ops::add_bias_backward>(k, dy, db_turned);
  }
  t.note("dw", dw), t.note("db", db), t.note("dw'", dturned), t.note("db'", db_turned);
  return t.results;
}

template <class B, class T>
auto attention(std::int64_t rows) {
  trial<B, T> t;
  const co::attention_shape s{.batch = 2, .sequence = rows, .heads = 2, .head_dim = 3};
  const auto qkv = t.some(s.rows(), 3 * s.width()), dout = t.some(s.rows(), s.width());
  auto out = t.some(s.rows(), s.width()), dqkv = t.some(s.rows(), 3 * s.width());
  auto lse = t.some(s.heads * s.rows());
  co::run<co::ops::causal_attention>(t.backend, qkv, s, out, lse), t.note("attention", out), t.note("lse", lse);
  co::run<co::ops::causal_attention_backward>(t.backend, dout, qkv, out, lse, s, dqkv),
      t.note("attention_backward", dqkv);
  // The same by slices, over heads inside wider rows.
  const auto causal = co::causal_sequences(s.batch, s.sequence);
  const auto slices = hd::row_at<typename B::space>(static_cast<const co::attention_slice*>(t.keep(causal)),
                                                    static_cast<std::int64_t>(causal.size()));
  const auto third = [&](std::int64_t i) { return co::heads_of(qkv, s.heads, s.head_dim, i * s.width()); };
  co::run<co::ops::attention>(t.backend, third(0), third(1), third(2), slices, T(0.5),
                              co::heads_of(out, s.heads, s.head_dim), lse, co::key_pages_in<typename B::space>{});
  t.note("attention by slices", out);
  return t.results;
}

// Grouped queries, every mask, queries in several slices and in none, values of another width, pages; heads inside wider rows.
template <class B>
auto sliced_attention(const std::vector<std::int32_t>& order, double cap = 0, bool with_sinks = false) {
  trial<B, double> t;
  using space = typename B::space;
  const std::int64_t queries = 13, keys = 12;
  const auto wide = t.some(queries, 20), k_rows = t.some(keys, 8), v_rows = t.some(keys, 11), d = t.some(queries, 12);
  auto out_rows = t.some(queries, 12), dq_rows = t.some(queries, 16), dk_rows = t.some(keys, 8),
       dv_rows = t.some(keys, 6);
  auto lse = t.some(4 * queries);
  const auto q = co::heads_of(wide, 4, 4, 3);
  const auto k = co::heads_of(k_rows, 2, 4), v = co::heads_of(v_rows, 2, 3, 5);
  const auto out = co::heads_of(out_rows, 4, 3);
  using co::slice_mask;
  const std::vector<co::attention_slice> slices{{0, 5, 0, 4, slice_mask::causal},
                                                {0, 5, 4, 8, slice_mask::inverse_causal},
                                                {5, 7, 1, 9, slice_mask::full},
                                                {7, 10, 0, 6, slice_mask::bi_causal},
                                                {10, 12, 3, 3, slice_mask::full}};
  const auto listed = hd::row_at<space>(static_cast<const co::attention_slice*>(t.keep(slices)),
                                        static_cast<std::int64_t>(slices.size()));
  co::key_pages_in<space> pages;
  if (!order.empty()) {
    const auto n = static_cast<std::int64_t>(order.size());
    if constexpr (std::is_same_v<space, hd::host_memory>)
      pages = {{static_cast<const std::int32_t*>(t.keep(order)), order.size()}, 3};
    else
      pages = {hd::row_at<space>(static_cast<const std::int32_t*>(t.keep(order)), n), 3};
  }
  const auto of_out = co::heads_of(d, 4, 3), dq = co::heads_of(dq_rows, 4, 4), dk = co::heads_of(dk_rows, 2, 4),
             dv = co::heads_of(dv_rows, 2, 3);
  if (cap > 0)
    co::run<co::ops::capped_attention>(t.backend, q, k, v, listed, 0.4, cap, out, lse, pages);
  else
    co::run<co::ops::attention>(t.backend, q, k, v, listed, 0.4, out, lse, pages);
  if (with_sinks) {
    const auto sinks = t.some(4);
    auto terms = t.some(queries, 4);
    co::run<co::ops::attention_sinks>(t.backend, out, sinks, lse, out);
    co::run<co::ops::attention_sinks_backward>(t.backend, of_out, out, sinks, lse, terms);
    t.note("terms of sinks", terms);
  }
  t.note("out", out_rows), t.note("lse", lse);
  if (cap > 0)
    co::run<co::ops::capped_attention_backward>(t.backend, of_out, q, k, v, out, lse, listed, 0.4, cap, dq, dk, dv,
                                                pages);
  else
    co::run<co::ops::attention_backward>(t.backend, of_out, q, k, v, out, lse, listed, 0.4, dq, dk, dv, pages);
  t.note("dq", dq_rows), t.note("dk", dk_rows), t.note("dv", dv_rows);
  return t.results;
}
// Sinks of heads of five elements, inside wider rows.
template <class B, class T>
auto sinks_of_heads(std::int64_t rows, std::int64_t heads) {
  trial<B, T> t;
  const auto x = t.some(rows, heads * 5 + 2), dout = t.some(rows, heads * 5);
  const auto sinks = t.some(heads);
  auto lse = t.sums(rows * heads);
  auto y = t.some(rows, heads * 5), terms = t.some(rows, heads);
  const auto out = co::heads_of(y, heads, 5);
  co::run<co::ops::attention_sinks>(t.backend, co::heads_of(x, heads, 5, 1), sinks, lse, out);
  t.note("out with sinks", y), t.note("lse with sinks", lse);
  co::run<co::ops::attention_sinks_backward>(t.backend, co::heads_of(dout, heads, 5), out, sinks, lse, terms);
  t.note("terms of sinks", terms);
  return t.results;
}
/// Tables of pages of three rows to try with `sliced_attention`: none, some, and one that lists a page again.
inline const std::vector<std::vector<std::int32_t>> trial_pages{{}, {3, 0, 2}, {3, 0, 3, 1, 0}};

// Scores that are -inf, as those of products that overflow, and queries that see no other.
template <class B>
auto attention_of_overflows() {
  trial<B, float> t;
  using space = typename B::space;
  const auto column = [&](std::vector<float> x) {
    return hd::matrix_view<float, space>(t.keep(x), hd::dynamic_shape<2>(static_cast<std::int64_t>(x.size()), 1));
  };
  const auto q = column({1e20f, 1e20f, 1}), k = column({-1e20f, 1e-20f, 2}), v = column({3, 5, 7}),
             d = column({1, 2, 3});
  auto out = column({9, 9, 9}), dq = column({9, 9, 9}), dk = column({9, 9, 9}), dv = column({9, 9, 9});
  auto lse = t.some(3);
  const auto causal = co::causal_sequences(1, 3);
  const auto slices = hd::row_at<space>(static_cast<const co::attention_slice*>(t.keep(causal)), 1);
  const auto head = [](const hd::matrix_view<float, space>& x) { return co::heads_of(x, 1, 1); };
  co::run<co::ops::attention>(t.backend, head(q), head(k), head(v), slices, 1.0f, head(out), lse,
                              co::key_pages_in<typename B::space>{}),
      t.note("out", out), t.note("lse", lse);
  co::run<co::ops::attention_backward>(t.backend, head(d), head(q), head(k), head(v), head(out), lse, slices, 1.0f,
                                       head(dq), head(dk), head(dv), co::key_pages_in<typename B::space>{});
  t.note("dq", dq), t.note("dk", dk), t.note("dv", dv);
  return t.results;
}

// NaN, infinities, and numbers whose exponentials are one or the other.
template <class B>
auto not_finite() {
  const double inf = (std::numeric_limits<double>::infinity)(), nan = std::numeric_limits<double>::quiet_NaN();
  trial<B, double> t;
  const std::vector<double> x{nan, 1, inf, -inf, 0, -800, 800, 1e-300, 5, nan, nan, 2};
  const hd::matrix_view<double, typename B::space> m(t.keep(x), hd::dynamic_shape<2>(4, 3));
  const auto row = hd::row_at<typename B::space>(m.address(), 12);
  auto y = t.some(12), top = t.some(4);
  co::run<co::ops::row_max>(t.backend, m, top), t.note("row_max", top);
  co::run<co::ops::gelu>(t.backend, row, y), t.note("gelu", y);
  co::run<co::ops::gelu_backward>(t.backend, row, row, y), t.note("gelu_backward", y);
  co::run<co::ops::gated<co::relu>>(t.backend, row, row, y), t.note("relu", y);
  return t.results;
}

// The largest difference, in parts of 1 + |expected|; infinities and NaN must be the same.
inline double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return (std::numeric_limits<double>::infinity)();
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isfinite(expected[i]) && std::isfinite(got[i]))
      most = (std::max)(most, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
    else if (!(got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))))
      return (std::numeric_limits<double>::infinity)();
  }
  return most;
}

template <class Results>
void check(const Results& got, const Results& expected, double tolerance, std::size_t count) {
  REQUIRE(got.size() == expected.size());
  REQUIRE(got.size() == count);
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(got[k].first, tolerance);
    CHECK(got[k].first == expected[k].first);
    CHECK(difference(got[k].second, expected[k].second) <= tolerance);
  }
}

// Choice of experts, rows moved by it, how evenly and how often experts are chosen, grouped products. `limits`: choices of the heaviest
// weights, which have equals where they are rounded.
template <class B, class T>
auto experts(std::int64_t tokens, std::int64_t count, std::int64_t k, std::int64_t width, bool limits = true) {
  trial<B, T> t;
  using space = typename B::space;
  using sum = hd::sum_of_type<T>;
  using indices = hd::matrix_view<const std::int32_t, space>;
  const auto whole = [&](std::int64_t rows, std::int64_t columns) {
    const std::vector<std::int32_t> none(static_cast<std::size_t>(rows * columns), -7);
    return hd::matrix_view<std::int32_t, space>(t.keep(none), hd::dynamic_shape<2>(rows, columns));
  };
  const auto row_of = [](auto m) { return hd::row_at<space>(m.address(), m.size()); };
  const auto logits = t.some(tokens, count), d = t.some(tokens, k);
  auto dlogits = t.some(tokens, count), weights = t.some(tokens, k);
  const auto ids = whole(tokens, k), places = whole(tokens, k), kept = whole(tokens, k), sources = whole(1, tokens * k);
  const auto rules = [&]<class Rule>(Rule, const std::string& name) {
    co::run<co::ops::top_k<Rule>>(t.backend, logits, ids, weights);
    t.note("top_k, " + name, row_of(ids)), t.note("its weights", weights);
    co::run<co::ops::top_k_backward<Rule>>(t.backend, logits, ids, weights, d, dlogits),
        t.note("top_k_backward", dlogits);
  };
  rules(co::softmax_of_chosen{}, "of chosen"), rules(co::softmax_of_all{}, "of all");
  // The experts from the second on.
  const std::int64_t here = count - 1, first = 1;
  const auto offsets =
      hd::row_at<space>(t.keep(std::vector<std::int64_t>(static_cast<std::size_t>(here + 1), -7)), here + 1);
  const auto places_in = indices(places.address(), places.shape());
  co::run<co::ops::route>(t.backend, indices(ids.address(), ids.shape()), first, offsets, row_of(sources), places);
  t.note("offsets", offsets), t.note("sources", row_of(sources)), t.note("places", row_of(places));
  const auto x = t.some(tokens, width), dout = t.some(tokens, width);
  auto y = t.some(tokens * k, width), dy = t.some(tokens * k, width), out = t.some(tokens, width);
  auto dw = t.some(tokens, k);
  const auto sources_in = row_of(hd::matrix_view<const std::int32_t, space>(sources.address(), sources.shape()));
  co::run<co::ops::permute>(t.backend, x, sources_in, y), t.note("permute", y);
  co::run<co::ops::permute_backward>(t.backend, y, places_in, out), t.note("permute_backward", out);
  co::run<co::ops::unpermute>(t.backend, y, places_in, weights, out), t.note("unpermute", out);
  co::run<co::ops::unpermute_backward>(t.backend, dout, y, places_in, weights, dy, dw),
      t.note("unpermute_backward", dy);
  t.note("of its weights", dw);
  co::run<co::ops::unpermute_backward>(t.backend, dout, y, places_in, weights, y, dw),
      t.note("unpermute_backward in place", y);
  double* const balance = t.keep(std::vector<double>{0.5});
  const auto chosen = indices(ids.address(), ids.shape());
  co::run<co::ops::expert_balance>(t.backend, logits, chosen, t.number(balance)),
      t.note("balance", hd::row_at<space>(balance, 1));
  co::run<co::ops::expert_balance_backward>(t.backend, logits, chosen, sum(0.25), dlogits),
      t.note("expert_balance_backward", dlogits);
  for (const std::int64_t most : {0, 1, 3}) {
    if (!limits) break;
    co::run<co::ops::limit_choices<co::keep_heaviest>>(t.backend, chosen, weights, count, most, kept);
    t.note("the heaviest", row_of(kept));
    co::run<co::ops::limit_choices<co::keep_first>>(t.backend, chosen, weights, count, most, kept),
        t.note("first", row_of(kept));
  }
  const hd::view<T, hd::dynamic_shape<3>, space> stack(t.some(here * width, 5).address(),
                                                       hd::dynamic_shape<3>(here, width, 5));
  const hd::view<sum, hd::dynamic_shape<3>, space> dstack(t.sums(here * width, 5).address(),
                                                          hd::dynamic_shape<3>(here, width, 5));
  auto z = t.some(tokens * k, 5);
  const auto bounds = [&] {
    if constexpr (std::is_same_v<space, hd::host_memory>)
      return std::span<const std::int64_t>(offsets);
    else
      return hd::row_at<space>(static_cast<const std::int64_t*>(offsets.address()), here + 1);
  }();
  co::grouped_matmul<transpose::no>(t.backend, dy, bounds, stack, z, sum(0.5)), t.note("grouped", z);
  co::grouped_matmul<transpose::yes>(t.backend, z, bounds, stack, dy, sum(0)), t.note("grouped, transposed", dy);
  co::run<co::ops::grouped_matmul_backward_weight>(t.backend, dy, z, bounds, dstack, sum(1));
  t.note("of weights", hd::row_at<space>(dstack.address(), dstack.size()));
  return t.results;
}

// Grouped products of sizes that matrix instructions take, where T has 16 bits: experts without rows and with many.
template <class B, class T>
auto grouped_products(std::int64_t from_width, std::int64_t to_width) {
  trial<B, T> t;
  using space = typename B::space;
  using sum = hd::sum_of_type<T>;
  const std::vector<std::int64_t> ends{0, 0, 3, 150, 150, 281};
  const auto rows = ends.back(), experts = std::ssize(ends) - 1;
  const auto offsets =
      hd::row_at<space>(static_cast<const std::int64_t*>(t.keep(ends)), static_cast<std::int64_t>(ends.size()));
  const hd::view<T, hd::dynamic_shape<3>, space> stack(t.some(experts * from_width, to_width).address(),
                                                       hd::dynamic_shape<3>(experts, from_width, to_width));
  const hd::view<sum, hd::dynamic_shape<3>, space> dstack(t.sums(experts * from_width, to_width).address(),
                                                          hd::dynamic_shape<3>(experts, from_width, to_width));
  // A row behind those of all groups is left as it is.
  const auto x = t.some(rows + 1, from_width), dy = t.some(rows + 1, to_width);
  auto y = t.some(rows + 1, to_width), dx = t.some(rows + 1, from_width);
  for (const sum beta : {sum(0), sum(0.5)}) {
    co::grouped_matmul<transpose::no>(t.backend, x, offsets, stack, y, beta), t.note("grouped", y);
    co::grouped_matmul<transpose::yes>(t.backend, dy, offsets, stack, dx, beta), t.note("grouped, transposed", dx);
    co::run<co::ops::grouped_matmul_backward_weight>(t.backend, x, dy, offsets, dstack, beta);
    t.note("of weights", hd::row_at<space>(dstack.address(), dstack.size()));
  }
  return t.results;
}

// Attention as decoding asks for it: one or few rows of each sequence, keys in pages in any order, some of them infinitely far or not numbers.
template <class B, class T>
auto few_queries(std::int64_t heads, std::int64_t kv_heads, std::int64_t width, std::int64_t out_width,
                 std::int64_t missing, bool odd_numbers) {
  trial<B, T> t;
  using space = typename B::space;
  struct sequence {
    std::int64_t rows, keys;
  };
  constexpr std::int64_t page = 8;
  std::vector<co::attention_slice> slices;
  std::int64_t rows = 0, pages = 0, most = 0;
  for (const auto& [n, keys] : {sequence{1, 1}, {1, 64}, {2, 65}, {1, 200}, {3, 131}, {1, 0}}) {
    slices.push_back({rows, rows + n, pages * page, pages * page + keys, co::slice_mask::causal});
    rows += n, pages += (keys + page - 1) / page, most = (std::max)(most, keys);
  }
  // Of a tree: two rows that see what came before, and of its last keys one each.
  slices.push_back({rows, rows + 2, pages * page, pages * page + 70, co::slice_mask::full});
  slices.push_back({rows, rows + 1, pages * page + 71, pages * page + 72, co::slice_mask::full});
  slices.push_back({rows + 1, rows + 2, pages * page + 73, pages * page + 75, co::slice_mask::full});
  rows += 2, pages += 10;
  std::vector<std::int32_t> places;
  for (std::int64_t p = 0; p < pages; ++p) places.push_back(static_cast<std::int32_t>((p * 11 + 3) % pages));
  auto q = numbers<T>(rows * heads * width, 1), k = numbers<T>(pages * page * kv_heads * width, 2);
  if (odd_numbers) {
    k[5] = std::numeric_limits<T>::quiet_NaN();
    q[static_cast<std::size_t>(3 * heads * width)] = std::numeric_limits<T>::infinity();
  }
  const auto matrix = [&](std::vector<T>& x, std::int64_t n) {
    return hd::matrix_view<T, space>{t.keep(x), hd::dynamic_shape<2>(n, std::ssize(x) / n)};
  };
  const auto values = t.some(pages * page, kv_heads * out_width);
  auto out = t.some(rows, heads * out_width);
  auto lse = t.some(heads * rows);
  const co::key_pages_in<space> where{hd::row_at<space>(static_cast<const std::int32_t*>(t.keep(places)), pages), page,
                                      most - missing};
  co::run<co::ops::attention>(
      t.backend, co::heads_of(matrix(q, rows), heads, width), co::heads_of(matrix(k, pages * page), kv_heads, width),
      co::heads_of(values, kv_heads, out_width),
      hd::row_at<space>(static_cast<const co::attention_slice*>(t.keep(slices)), std::ssize(slices)), T(0.3),
      co::heads_of(out, heads, out_width), lse, where);
  t.note("attention of few queries", out), t.note("lse", lse);
  return t.results;
}
// The host, named so that nothing is instantiated before B is known: nvcc 13.0 fails on packs of what is.
template <class B>
struct host_beside {
  using type = co::host<>;
};

/// The same on B and on the host. `missing`: keys that one query sees beyond what was said.
template <class B, class T>
void compare_few_queries_with_host(double tolerance) {
  using host = typename host_beside<B>::type;
  struct sizes {
    std::int64_t heads, kv_heads, width, out_width, missing = 0;
    bool odd_numbers = false;
  };
  for (const auto& [heads, kv_heads, width, out_width, missing, odd_numbers] :
       {sizes{1, 1, 4, 4}, sizes{4, 2, 3, 3}, sizes{6, 1, 8, 5}, sizes{10, 2, 6, 6, 100}, sizes{2, 2, 4, 4, 0, true}}) {
    CAPTURE(heads, kv_heads, width, out_width, missing, odd_numbers);
    check(few_queries<B, T>(heads, kv_heads, width, out_width, missing, odd_numbers),
          few_queries<host, T>(heads, kv_heads, width, out_width, missing, odd_numbers), tolerance, 2);
  }
}

// Rows of a cache and of a table.
template <class B, class T>
auto cached_rows(std::int64_t columns) {
  trial<B, T> t;
  auto table = t.some(9, columns), x = t.some(4, columns);
  const auto rows =
      hd::row_at<typename B::space>(static_cast<const std::int32_t*>(t.keep(std::vector<std::int32_t>{5, 0, 8, 3})), 4);
  co::run<co::ops::add_rows>(t.backend, x, table, rows), t.note("add_rows", x);
  if (columns >= 8) {
    co::run<co::ops::store_rows>(t.backend, co::heads_of(x, 2, 3, 1), rows, co::heads_of(table, 2, 3, 2)),
        t.note("store_rows", table);
  }
  return t.results;
}

// Images.
template <class B, class T>
auto images(std::int64_t columns) {
  trial<B, T> t;
  const co::image_window w{.height = 3, .width = 4, .radius = 1};
  const auto image = t.some(24, columns);
  auto unfolded = t.some(24, 9 * columns), back = t.some(24, columns), mean = t.some(6, columns);
  co::run<co::ops::unfold>(t.backend, image, w, unfolded), t.note("unfold", unfolded);
  co::run<co::ops::unfold_backward>(t.backend, unfolded, w, back), t.note("unfold_backward", back);
  co::run<co::ops::mean_of_rows>(t.backend, image, 4, mean), t.note("mean_of_rows", mean);
  co::run<co::ops::mean_of_rows_backward>(t.backend, mean, 4, back), t.note("mean_of_rows_backward", back);
  return t.results;
}

// Grouped choice of experts, its backward and its bias, and parts of heads.
template <class B, class T>
auto biased_experts_and_heads(std::int64_t tokens, std::int64_t count, std::int64_t k, co::grouped_choice rule,
                              bool with_nan) {
  trial<B, T> t;
  using space = typename B::space;
  auto logits = t.some(tokens, count);
  const auto d = t.some(tokens, k);
  auto bias = t.some(count), counts = t.positive(count);
  if (with_nan) {
    auto x = numbers<T>(tokens * count, 77);
    for (std::size_t i = 3; i < x.size(); i += 5) x[i] = std::numeric_limits<T>::quiet_NaN();
    for (std::size_t i = 2; i < x.size(); i += 7) x[i] = x[i / 2];
    logits = {t.keep(x), hd::dynamic_shape<2>(tokens, count)};
  }
  auto dlogits = t.some(tokens, count), weights = t.some(tokens, k);
  std::int32_t* const ids = t.keep(std::vector<std::int32_t>(static_cast<std::size_t>(tokens * k), 0));
  const hd::dynamic_shape<2> choices(tokens, k);
  const auto scored = [&]<class Scores>(Scores, const std::string& name) {
    co::run<co::ops::choose_experts<Scores>>(t.backend, logits, bias, rule,
                                             hd::matrix_view<std::int32_t, space>(ids, choices), weights);
    t.note("choose_experts, " + name, hd::row_at<space>(ids, tokens * k)), t.note("its weights", weights);
    co::run<co::ops::choose_experts_backward<Scores>>(
        t.backend, logits, hd::matrix_view<const std::int32_t, space>(ids, choices), rule, d, dlogits);
    t.note("choose_experts_backward", dlogits);
  };
  scored(co::sigmoid_scores{}, "sigmoid"), scored(co::softmax_scores{}, "softmax");
  co::run<co::ops::balance_bias>(t.backend, counts, T(0.125), bias), t.note("balance_bias", bias);
  const auto x = t.some(tokens, 12), one = t.some(tokens, 6);
  auto y = t.some(tokens, 15), sum = t.some(tokens, 2);
  co::run<co::ops::copy_heads>(t.backend, co::part_of_heads(x, 3, 4, 1), 2, co::part_of_heads(y, 3, 5, 3)),
      t.note("copy_heads", y);
  co::run<co::ops::copy_heads>(t.backend, co::part_of_heads(one, 1, 6, 4), 2, co::part_of_heads(y, 3, 5)),
      t.note("from one head", y);
  co::run<co::ops::sum_heads>(t.backend, co::part_of_heads(x, 3, 4, 2), 2, co::part_of_heads(sum, 1, 2)),
      t.note("sum_heads", sum);
  return t.results;
}

template <class B>
auto stochastic_rounding(std::int64_t n) {
  trial<B, float> t;
  using space = typename B::space;
  const co::stochastic rounding{hd::counter_random(3, 9), 5};
  auto p = t.some(n), m = t.some(n), v = t.positive(n);
  const auto g = t.some(n);
  const auto weights = hd::row_at<space>(t.keep(std::vector<hd::bf16>(static_cast<std::size_t>(n))), n);
  co::run<co::ops::stochastic_cast>(t.backend, g, weights, rounding), t.note("cast, stochastic", weights);
  co::run<co::ops::stochastic_adamw<float>>(t.backend, p, weights, g, m, v,
                                            co::adamw_step{.lr = 0.01, .weight_decay = 0.1, .step = 2}, rounding);
  t.note("weights, stochastic", weights), t.note("master weights", p);
  return t.results;
}

/// The facets that few layers need, on B against the host's backend: experts, images, stochastic rounding.
template <class B, class T>
void compare_experts_and_rows_with_host(double tolerance) {
  using host = typename host_beside<B>::type;
  for (const auto& [tokens, count, k, width] : std::vector<std::array<std::int64_t, 4>>{
           {0, 4, 2, 3}, {1, 2, 1, 1}, {5, 3, 3, 4}, {13, 8, 2, 7}, {70, 5, 2, 64}, {3, 200, 6, 2}}) {
    CAPTURE(tokens, count, k, width);
    check(experts<B, T>(tokens, count, k, width), experts<host, T>(tokens, count, k, width), tolerance, 26);
  }
  struct choice {
    std::int64_t tokens, count, k;
    co::grouped_choice rule;
    bool with_nan = false;
  };
  for (const auto& [tokens, count, k, rule, with_nan] :
       {choice{0, 4, 2, {}}, choice{5, 1, 1, {}}, choice{9, 6, 3, {3, 2, 2, true, 1.7}},
        choice{9, 6, 2, {3, 1, 1, false, 1}}, choice{11, 12, 4, {4, 2, 9, true, 2.5}},
        choice{300, 32, 5, {8, 3, 2, true, 2.5}}, choice{40, 12, 4, {4, 2, 2, true, 1}, true}}) {
    CAPTURE(tokens, count, k, rule.groups, with_nan);
    check(biased_experts_and_heads<B, T>(tokens, count, k, rule, with_nan),
          biased_experts_and_heads<host, T>(tokens, count, k, rule, with_nan), tolerance, 10);
  }
  for (const std::int64_t columns : {1, 8, 70}) {
    CAPTURE(columns);
    check(images<B, T>(columns), images<host, T>(columns), tolerance, 4);
  }
}

/// The sizes that are tried.
inline const std::vector<std::pair<std::int64_t, std::int64_t>> trial_sizes{{0, 5},    {1, 1},   {7, 13},   {6, 64},
                                                                            {33, 100}, {2, 700}, {3, 5003}, {200, 3}};

/// Every facet in T on B against the host's backend, products and attention to a tolerance of their own and at these sizes.
template <class B, class T>
void compare_with_host(double tolerance, double of_products,
                       const std::vector<std::pair<std::int64_t, std::int64_t>>& sizes_of_products = trial_sizes,
                       const std::vector<std::int64_t>& sequences = {0, 1, 6, 37}) {
  using host = typename host_beside<B>::type;
  for (const auto& [rows, columns] : trial_sizes) {
    CAPTURE(rows, columns);
    check(elementwise<B, T>(rows, columns), elementwise<host, T>(rows, columns), tolerance, columns >= 12 ? 29 : 25);
    check(norms<B, T>(rows, columns), norms<host, T>(rows, columns), tolerance, 15);
    check(cross_entropy<B, T>(rows, columns), cross_entropy<host, T>(rows, columns), tolerance, 7);
    check(sums_and_steps<B, T>(rows, columns), sums_and_steps<host, T>(rows, columns), tolerance, 16);
    check(cached_rows<B, T>(columns), cached_rows<host, T>(columns), tolerance, columns >= 8 ? 2 : 1);
  }
  for (const auto& [rows, columns] : sizes_of_products) {
    CAPTURE(rows, columns);
    check(products<B, T>(rows, columns), products<host, T>(rows, columns), of_products, 5);
  }
  for (const std::int64_t sequence : sequences) {
    CAPTURE(sequence);
    check(attention<B, T>(sequence), attention<host, T>(sequence), of_products, 4);
  }
}

/// Products of 16-bit operands and stochastic rounding on B against the host's: sums differ by their order only, what is rounded after
/// by one unit in the last place.
template <class B>
void compare_halves_with_host() {
  using host = typename host_beside<B>::type;
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5}, {4, 0}, {1, 1}, {7, 13}, {33, 100}}) {
    CAPTURE(rows, columns);
    check(products_of_halves<B, hd::bf16>(rows, columns), products_of_halves<host, hd::bf16>(rows, columns), 0x1p-7, 5);
    check(products_of_halves<B, hd::f16>(rows, columns), products_of_halves<host, hd::f16>(rows, columns), 0x1p-10, 5);
  }
  for (const std::int64_t n : {0, 1, 300}) {
    CAPTURE(n);
    check(stochastic_rounding<B>(n), stochastic_rounding<host>(n), 1e-6, 3);
  }
}

// Sums of squares and counts of what is not finite, and a step of master weights in float with gradients in float.
template <class B, class T>
auto sums_and_masters(std::int64_t n) {
  trial<B, T> t;
  using space = typename B::space;
  auto x = t.some(n), weights = t.some(n);
  const auto infinity = std::vector<T>{(std::numeric_limits<T>::infinity)()};
  double* const sum = t.keep(std::vector<double>{1.5, 10});
  co::run<co::ops::sum_of_squares>(t.backend, x, t.number(sum));
  if (n > 2) t.backend.queue().copy(infinity, hd::part_of_row<space>(x, n / 2, 1));
  co::run<co::ops::count_nonfinite>(t.backend, x, t.number(sum + 1)), t.note("sums", hd::row_at<space>(sum, 2));
  t.note("all_finite", co::all_finite(t.backend, x) ? 1 : 0);
  auto p = t.sums(n), m = t.sums(n), v = t.positive(n);
  const auto g = t.sums(n);
  co::run<co::ops::master_adamw<T, hd::sum_of_type<T>>>(
      t.backend, p, weights, g, m, v, co::adamw_step{.lr = 0.01, .weight_decay = 0.1, .step = 3, .grad_scale = 0.7});
  t.note("masters", p), t.note("weights", weights), t.note("m", m), t.note("v", v);
  return t.results;
}
/// Grouped products of bf16 on B, which matrix instructions may take, against the host's and those of double of the same numbers.
template <class B>
void compare_grouped_products_of_bf16() {
  const numbers_of_bf16 now;
  for (const auto& [from, to] : std::vector<std::pair<std::int64_t, std::int64_t>>{{8, 64}, {72, 8}, {136, 200}}) {
    CAPTURE(from, to);
    const auto got = grouped_products<B, hd::bf16>(from, to);
    check(got, grouped_products<typename host_beside<B>::type, hd::bf16>(from, to), 0x1p-7, 6);
    check(got, grouped_products<typename host_beside<B>::type, double>(from, to), 0x1p-7, 6);
  }
}

/// The facets of models in bf16 on B: to the host's, but for the order of sums; and to those of double of the same numbers, but for
/// some units in the last place of bf16, 2^-8 each.
template <class B>
void compare_bf16_with_host_and_double() {
  using half = hd::bf16;
  using host = typename host_beside<B>::type;
  const numbers_of_bf16 now;
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5}, {4, 0}, {1, 1}, {3, 8}, {7, 13}, {6, 300}}) {
    CAPTURE(rows, columns);
    const auto all_of = []<class A, class T>(A*, T*, std::int64_t m, std::int64_t n) {
      auto all = elementwise<A, T>(m, n);
      for (auto& other : {norms<A, T>(m, n), cross_entropy<A, T>(m, n), sums_and_masters<A, T>(m * n)})
        all.insert(all.end(), other.begin(), other.end());
      return all;
    };
    const std::size_t count = (columns >= 12 ? 29u : 25u) + 15 + 7 + 6;
    const auto got = all_of(static_cast<B*>(nullptr), static_cast<half*>(nullptr), rows, columns);
    check(got, all_of(static_cast<host*>(nullptr), static_cast<half*>(nullptr), rows, columns), 0x1p-7, count);
    check(got, all_of(static_cast<host*>(nullptr), static_cast<double*>(nullptr), rows, columns), 0x1p-6, count);
  }
  for (const auto& [tokens, count, k, width] : std::vector<std::array<std::int64_t, 4>>{
           {0, 4, 2, 3}, {5, 2, 1, 7}, {9, 5, 3, 16}, {4, 9, 6, 24}, {70, 6, 2, 33}}) {
    CAPTURE(tokens, count, k, width);
    check(experts<B, half>(tokens, count, k, width), experts<host, half>(tokens, count, k, width), 0x1p-7, 26);
    check(experts<B, half>(tokens, count, k, width, false), experts<host, double>(tokens, count, k, width, false),
          0x1p-5, 20);
  }
  for (const auto& [rows, heads] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 2}, {3, 0}, {1, 1}, {9, 4}}) {
    CAPTURE(rows, heads);
    check(sinks_of_heads<B, half>(rows, heads), sinks_of_heads<host, half>(rows, heads), 0x1p-7, 3);
    check(sinks_of_heads<B, half>(rows, heads), sinks_of_heads<host, double>(rows, heads), 0x1p-6, 3);
  }
}

/// Products with a bias, GELU or sums of columns behind them on B against the same in steps on the host.
template <class B, class T>
void compare_ends_with_host(double tolerance) {
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 5}, {4, 0}, {1, 1}, {7, 13}, {8, 16}, {33, 100}, {64, 72}}) {
    CAPTURE(rows, columns);
    check(products_with_ends<B, T>(rows, columns), products_with_ends<typename host_beside<B>::type, T>(rows, columns),
          tolerance, 12);
  }
}

/// The cross-entropy in chunks of words on B against that of all words on the host.
template <class B, class T>
void compare_chunks_with_host(double tolerance) {
  using host = typename host_beside<B>::type;
  for (const auto& [rows, columns, chunk] : std::vector<std::array<std::int64_t, 3>>{
           {0, 5, 1}, {3, 0, 1}, {1, 1, 1}, {7, 13, 1}, {7, 13, 5}, {6, 64, 64}, {33, 100, 32}, {2, 700, 1000}}) {
    CAPTURE(rows, columns, chunk);
    check(cross_entropy_of_words<B, T>(rows, columns, chunk), cross_entropy_of_words<host, T>(rows, columns, 0),
          tolerance, 5);
  }
  check(chunks_not_finite<B>(), chunks_not_finite<host>(), 1e-12, 7);
}

/// Masks, pages, and numbers that are not finite, on B against the host's backend.
template <class B>
void compare_corners_with_host() {
  using host = typename host_beside<B>::type;
  for (const auto& pages : trial_pages) {
    CAPTURE(pages);
    check(sliced_attention<B>(pages), sliced_attention<host>(pages), 1e-10, 5);
    check(sliced_attention<B>(pages, 0.3), sliced_attention<host>(pages, 0.3), 1e-10, 5);
    check(sliced_attention<B>(pages, 0, true), sliced_attention<host>(pages, 0, true), 1e-10, 6);
  }
  check(attention_of_overflows<B>(), attention_of_overflows<host>(), 1e-6, 5);
  check(not_finite<B>(), not_finite<host>(), 1e-10, 4);
}

}  // namespace backend_trials
