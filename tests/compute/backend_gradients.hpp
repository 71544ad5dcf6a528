// tests/compute/backend_gradients.hpp: the gradients that a backend's kernels give, against central differences of its own forward
// kernels: no other backend is asked. For backends whose memory is not plainly the host's.
#pragma once

#include "catch.hpp"
#include "compute/backend_trials.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace backend_gradients {

namespace hd = heddle;
namespace co = heddle::compute;
using backend_trials::trial;
using co::transpose;
using numbers = std::vector<double>;

/// One evaluation of a function in T: inputs, output, and where it is wanted the gradients of sum over i of weight[i] out[i].
template <class B, class T>
struct evaluation {
  using space = typename B::space;
  using row = hd::row_view<T, space>;
  using matrix = hd::matrix_view<T, space>;
  trial<B, T>& t;
  B& backend;
  std::vector<row> in, gradient{};  // gradients begin as zeros
  row out, d;
  std::vector<T> weight;
  bool backward;

  static matrix shaped(row x, std::int64_t rows, std::int64_t columns) {
    return {x.address(), hd::dynamic_shape<2>(rows, columns)};
  }
  row zeros(std::int64_t n) { return row_of(std::vector<T>(static_cast<std::size_t>(n), T(0))); }
  matrix zeros(std::int64_t rows, std::int64_t columns) { return shaped(zeros(rows * columns), rows, columns); }
  row row_of(const std::vector<T>& x) { return hd::row_at<space>(t.keep(x), static_cast<std::int64_t>(x.size())); }
  template <class E>
  auto list(std::vector<E> x) {
    return hd::row_at<space>(static_cast<const E*>(t.keep(x)), static_cast<std::int64_t>(x.size()));
  }
  hd::matrix_view<std::int32_t, space> indices(std::int64_t rows, std::int64_t columns) {
    return {t.keep(std::vector<std::int32_t>(static_cast<std::size_t>(rows * columns), -7)),
            hd::dynamic_shape<2>(rows, columns)};
  }
  static hd::matrix_view<const std::int32_t, space> read(hd::matrix_view<std::int32_t, space> x) {
    return {x.address(), x.shape()};
  }
  /// The output of a function that adds to a number: `f(where)`.
  template <class F>
  void number(const F& f) {
    double* const sum = t.keep(numbers{0});
    f(t.number(sum));
    numbers value(1);
    backend.queue().copy(hd::row_at<space>(sum, 1), value);
    backend.queue().wait();
    backend.queue().copy(std::vector<T>{static_cast<T>(value[0])}, out);
    backend.queue().wait();
  }
};

struct outcome {
  numbers out{};
  std::vector<numbers> gradients{};
};

template <class B, class T, class F>
outcome evaluate(const std::vector<numbers>& x, const numbers& weight, const F& f, bool backward) {
  trial<B, T> t;
  std::vector<T> weights(weight.begin(), weight.end());
  evaluation<B, T> e{t, t.backend, {}, {}, {}, {}, weights, backward};
  e.d = e.row_of(weights);
  e.out = e.zeros(static_cast<std::int64_t>(weight.size()));
  for (const numbers& one : x) {
    e.in.push_back(e.row_of(std::vector<T>(one.begin(), one.end())));
    if (backward) e.gradient.push_back(e.zeros(static_cast<std::int64_t>(one.size())));
  }
  f(e);
  const auto values = [&](const auto& row) {
    std::vector<T> y(static_cast<std::size_t>(row.size()));
    t.backend.queue().copy(row, y);
    t.backend.queue().wait();
    return numbers(y.begin(), y.end());
  };
  outcome o{values(e.out), {}};
  for (const auto& g : e.gradient) o.gradients.push_back(values(g));
  return o;
}

/// Inputs and weights are numbers of float, so that both types compute the same function at the same place.
inline numbers of_float(std::int64_t n, std::uint64_t seed) {
  const std::vector<float> x = backend_trials::numbers<float>(n, seed);
  return {x.begin(), x.end()};
}
/// Without numbers near zero, where an activation has no derivative.
inline numbers away_from_zero(std::int64_t n, std::uint64_t seed) {
  numbers x = of_float(n, seed);
  for (double& e : x)
    if (std::abs(e) < 0.0625) e += e < 0 ? -0.0625 : 0.0625;
  return x;
}
/// Without neighbours in value, so that a small step changes no order.
inline numbers far_apart(std::int64_t n, std::uint64_t seed) {
  const numbers x = of_float(n, seed);
  std::vector<std::size_t> order(x.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
  numbers y(x.size());
  for (std::size_t i = 0; i < order.size(); ++i) y[order[i]] = -1.5 + 0.0625 * static_cast<double>(i);
  return y;
}

/// The gradients of `f` at x in double against central differences of fourth order (1e-10), those in float against the same (1e-4).
template <class B, class F>
void check_gradients(const std::string& what, std::vector<numbers> x, std::int64_t outputs, const F& f) {
  CAPTURE(what);
  const numbers weight = of_float(outputs, 99);
  const outcome in_double = evaluate<B, double>(x, weight, f, true), in_float = evaluate<B, float>(x, weight, f, true);
  CHECK(backend_trials::difference(in_float.out, in_double.out) <= 1e-4);
  double largest = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    numbers expected(x[k].size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double given = x[k][i], h = 0x1p-10;
      const auto loss_beside = [&](double by) {
        x[k][i] = given + by;
        const numbers out = evaluate<B, double>(x, weight, f, false).out;
        double sum = 0;
        for (std::size_t j = 0; j < out.size(); ++j) sum += weight[j] * out[j];
        return sum;
      };
      expected[i] = (8 * (loss_beside(h) - loss_beside(-h)) - (loss_beside(2 * h) - loss_beside(-2 * h))) / (12 * h);
      x[k][i] = given;
      largest = (std::max)(largest, std::abs(expected[i]));
    }
    CAPTURE(k);
    CHECK(backend_trials::difference(in_double.gradients.at(k), expected) <= 1e-10);
    CHECK(backend_trials::difference(in_float.gradients.at(k), expected) <= 1e-4);
  }
  CHECK(largest > 0.01);
}

/// Of activations, biases, norms, embeddings, rotary embeddings, images and parts of heads.
template <class B>
void check_gradients_of_rows() {
  const auto gated = [&]<class A>(A, const char* what) {
    check_gradients<B>(what, {away_from_zero(19, 1), of_float(19, 2)}, 19, [](auto& e) {
      co::run<co::ops::gated<A>>(e.backend, e.in[0], e.in[1], e.out);
      if (e.backward)
        co::run<co::ops::gated_backward<A>>(e.backend, e.in[0], e.in[1], e.d, e.gradient[0], e.gradient[1]);
    });
  };
  gated(co::silu{}, "silu"), gated(co::gelu_tanh{}, "gelu_tanh"), gated(co::relu{}, "relu");
  gated(co::clamped_swiglu{}, "clamped_swiglu");
  check_gradients<B>("gelu", {of_float(19, 1)}, 19, [](auto& e) {
    co::run<co::ops::gelu>(e.backend, e.in[0], e.out);
    if (e.backward) co::run<co::ops::gelu_backward>(e.backend, e.in[0], e.d, e.gradient[0]);
  });
  check_gradients<B>("soft_cap", {of_float(19, 1)}, 19, [](auto& e) {
    co::run<co::ops::soft_cap>(e.backend, e.in[0], 0.5f, e.out);
    if (e.backward) co::run<co::ops::soft_cap_backward>(e.backend, e.in[0], e.d, 0.5f, e.gradient[0]);
  });
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 5}, {4, 1}, {1, 19}}) {
    CAPTURE(rows, columns);
    const auto on_rows = [r = rows, c = columns](auto& e, auto x) { return e.shaped(x, r, c); };
    const auto count = rows * columns;
    check_gradients<B>("add_bias", {of_float(columns, 1)}, count, [&](auto& e) {
      co::run<co::ops::add_bias>(e.backend, on_rows(e, e.out), e.in[0]);
      if (e.backward) co::run<co::ops::add_bias_backward>(e.backend, on_rows(e, e.d), e.gradient[0]);
    });
    check_gradients<B>(
        "layer_norm", {of_float(count, 1), of_float(columns, 2), of_float(columns, 3)}, count, [&, n = rows](auto& e) {
          auto mean = e.zeros(n), rstd = e.zeros(n);
          const auto x = on_rows(e, e.in[0]);
          co::run<co::ops::layer_norm>(e.backend, x, e.in[1], e.in[2], 1e-2f, on_rows(e, e.out), mean, rstd);
          if (!e.backward) return;
          co::run<co::ops::layer_norm_backward_input>(e.backend, on_rows(e, e.d), x, e.in[1], mean, rstd,
                                                      on_rows(e, e.gradient[0]));
          co::run<co::ops::layer_norm_backward_weight>(e.backend, on_rows(e, e.d), x, mean, rstd, e.gradient[1],
                                                       e.gradient[2]);
        });
    check_gradients<B>("rms_norm", {of_float(count, 1), of_float(columns, 2)}, count, [&, n = rows](auto& e) {
      auto rstd = e.zeros(n);
      const auto x = on_rows(e, e.in[0]);
      co::run<co::ops::rms_norm>(e.backend, x, e.in[1], 1e-1f, on_rows(e, e.out), rstd);
      if (!e.backward) return;
      co::run<co::ops::rms_norm_backward_input>(e.backend, on_rows(e, e.d), x, e.in[1], rstd,
                                                on_rows(e, e.gradient[0]));
      co::run<co::ops::rms_norm_backward_weight>(e.backend, on_rows(e, e.d), x, rstd, e.gradient[1]);
    });
  }
  check_gradients<B>("embedding and positions", {of_float(4 * 3, 1), of_float(3 * 3, 2)}, 6 * 3, [](auto& e) {
    const auto ids = e.list(std::vector<std::int32_t>{2, 5, 3, 2, -1, 9});
    co::run<co::ops::embedding>(e.backend, ids, e.shaped(e.in[0], 4, 3), 2, e.shaped(e.out, 6, 3));
    co::run<co::ops::add_positions>(e.backend, e.shaped(e.out, 6, 3), e.shaped(e.in[1], 3, 3), 3);
    if (!e.backward) return;
    co::run<co::ops::embedding_backward>(e.backend, ids, e.shaped(e.d, 6, 3), 2, e.shaped(e.gradient[0], 4, 3));
    co::run<co::ops::add_positions_backward>(e.backend, e.shaped(e.d, 6, 3), 3, e.shaped(e.gradient[1], 3, 3));
  });
  const auto rotary = [&]<co::rotary_pairs Pairs>(std::integral_constant<co::rotary_pairs, Pairs>, const char* what) {
    check_gradients<B>(what, {of_float(3 * 10, 1)}, 3 * 10, [](auto& e) {
      const auto where = e.list(std::vector<std::int32_t>{4, 0, 2});
      const auto cosines = e.t.some(5, 2), sines = e.t.some(5, 2);
      const auto heads = [&](auto row) { return co::heads_of(e.shaped(row, 3, 10), 2, 5); };
      co::run<co::ops::rotary<Pairs>>(e.backend, heads(e.in[0]), where, cosines, sines, heads(e.out));
      if (e.backward)
        co::run<co::ops::rotary_backward<Pairs>>(e.backend, heads(e.d), where, cosines, sines, heads(e.gradient[0]));
    });
  };
  rotary(std::integral_constant<co::rotary_pairs, co::rotary_pairs::halves>{}, "rotary, halves");
  rotary(std::integral_constant<co::rotary_pairs, co::rotary_pairs::neighbours>{}, "rotary, neighbours");
  check_gradients<B>("unfold", {of_float(12 * 2, 1)}, 12 * 18, [](auto& e) {
    const co::image_window w{.height = 2, .width = 3, .radius = 1};
    co::run<co::ops::unfold>(e.backend, e.shaped(e.in[0], 12, 2), w, e.shaped(e.out, 12, 18));
    if (e.backward)
      co::run<co::ops::unfold_backward>(e.backend, e.shaped(e.d, 12, 18), w, e.shaped(e.gradient[0], 12, 2));
  });
  check_gradients<B>("mean_of_rows", {of_float(6 * 3, 1)}, 2 * 3, [](auto& e) {
    co::run<co::ops::mean_of_rows>(e.backend, e.shaped(e.in[0], 6, 3), 3, e.shaped(e.out, 2, 3));
    if (e.backward)
      co::run<co::ops::mean_of_rows_backward>(e.backend, e.shaped(e.d, 2, 3), 3, e.shaped(e.gradient[0], 6, 3));
  });
  check_gradients<B>("one head copied to three", {of_float(2 * 6, 1)}, 2 * 15, [](auto& e) {
    co::run<co::ops::copy_heads>(e.backend, co::part_of_heads(e.shaped(e.in[0], 2, 6), 1, 6, 3), 2,
                                 co::part_of_heads(e.shaped(e.out, 2, 15), 3, 5, 1));
    if (e.backward)
      co::run<co::ops::sum_heads>(e.backend, co::part_of_heads(e.shaped(e.d, 2, 15), 3, 5, 1), 2,
                                  co::part_of_heads(e.shaped(e.gradient[0], 2, 6), 1, 6, 3));
  });
}

/// Of cross-entropy and of squared errors, which are numbers.
template <class B>
void check_gradients_of_losses() {
  check_gradients<B>("cross_entropy", {of_float(5 * 4, 1)}, 1, [](auto& e) {
    const auto logits = e.shaped(e.in[0], 5, 4);
    const auto targets = e.list(std::vector<std::int32_t>{3, 0, -1, 2, 3});
    auto m = e.zeros(5), sum = e.zeros(5), picked = e.zeros(5);
    co::run<co::ops::row_max>(e.backend, logits, m);
    co::run<co::ops::row_sum_exp>(e.backend, logits, m, sum);
    co::run<co::ops::pick_target>(e.backend, logits, targets, 0, picked);
    e.number([&](auto where) { co::run<co::ops::cross_entropy_loss>(e.backend, m, sum, picked, targets, where); });
    if (!e.backward) return;
    e.backend.queue().copy(e.in[0], e.gradient[0]);
    co::run<co::ops::cross_entropy_backward>(e.backend, e.shaped(e.gradient[0], 5, 4), m, sum, targets, 0, e.weight[0]);
  });
  check_gradients<B>("cross_entropy below a cap", {of_float(5 * 4, 1)}, 1, [](auto& e) {
    const auto cap = e.weight[0] * 0 + 1 / decltype(+e.weight[0])(2);
    auto below = e.zeros(5 * 4), m = e.zeros(5), sum = e.zeros(5), picked = e.zeros(5);
    const auto logits = e.shaped(below, 5, 4);
    const auto targets = e.list(std::vector<std::int32_t>{3, 0, -1, 2, 3});
    co::run<co::ops::soft_cap>(e.backend, e.in[0], cap, below);
    co::run<co::ops::row_max>(e.backend, logits, m);
    co::run<co::ops::row_sum_exp>(e.backend, logits, m, sum);
    co::run<co::ops::pick_target>(e.backend, logits, targets, 0, picked);
    e.number([&](auto where) { co::run<co::ops::cross_entropy_loss>(e.backend, m, sum, picked, targets, where); });
    if (!e.backward) return;
    e.backend.queue().copy(below, e.gradient[0]);
    co::run<co::ops::capped_cross_entropy_backward>(e.backend, e.shaped(e.gradient[0], 5, 4), m, sum, targets, 0,
                                                    e.weight[0], cap);
  });
  check_gradients<B>("squared_error", {of_float(19, 7)}, 1, [](auto& e) {
    const auto target = e.t.some(19);
    e.number([&](auto where) { co::run<co::ops::squared_error>(e.backend, e.in[0], target, where); });
    if (!e.backward) return;
    e.backend.queue().copy(e.in[0], e.gradient[0]);
    co::run<co::ops::squared_error_backward>(e.backend, e.gradient[0], target, e.weight[0]);
  });
}

/// Of products and of attention.
template <class B>
void check_gradients_of_products() {
  check_gradients<B>("matmul", {of_float(3 * 4, 1), of_float(4 * 2, 2)}, 3 * 2, [](auto& e) {
    const auto a = e.shaped(e.in[0], 3, 4), b = e.shaped(e.in[1], 4, 2), d = e.shaped(e.d, 3, 2);
    constexpr auto no = transpose::no, yes = transpose::yes;
    co::matmul<no, no>(e.backend, a, b, e.shaped(e.out, 3, 2), e.weight[0] * 0);
    if (!e.backward) return;
    co::matmul<no, yes>(e.backend, d, b, e.shaped(e.gradient[0], 3, 4), e.weight[0] * 0);
    co::matmul<yes, no>(e.backend, a, d, e.shaped(e.gradient[1], 4, 2), e.weight[0] * 0);
  });
  static constexpr co::attention_shape s{.batch = 2, .sequence = 3, .heads = 2, .head_dim = 2};
  check_gradients<B>("attention", {of_float(s.rows() * 3 * s.width(), 1)}, s.rows() * s.width(), [&](auto& e) {
    const auto qkv = e.shaped(e.in[0], s.rows(), 3 * s.width()), out = e.shaped(e.out, s.rows(), s.width());
    auto lse = e.zeros(s.heads * s.rows());
    co::run<co::ops::causal_attention>(e.backend, qkv, s, out, lse);
    if (e.backward)
      co::run<co::ops::causal_attention_backward>(e.backend, e.shaped(e.d, s.rows(), s.width()), qkv, out, lse, s,
                                                  e.shaped(e.gradient[0], s.rows(), 3 * s.width()));
  });
  // Grouped queries of width 3, values of width 2; every mask, queries in two slices and in none that have keys.
  for (const bool capped : {false, true})
    check_gradients<B>(
        capped ? "attention by slices, scores below a cap" : "attention by slices",
        {of_float(7 * 12, 1), of_float(5 * 6, 2), of_float(5 * 4, 3)}, 7 * 8, [capped](auto& e) {
          using co::slice_mask;
          const auto slices = e.list(std::vector<co::attention_slice>{{0, 3, 0, 3, slice_mask::causal},
                                                                      {0, 3, 3, 5, slice_mask::full},
                                                                      {3, 5, 1, 5, slice_mask::inverse_causal},
                                                                      {5, 6, 0, 4, slice_mask::bi_causal},
                                                                      {6, 7, 2, 2, slice_mask::full}});
          const auto heads = [&](auto row, std::int64_t rows, std::int64_t n, std::int64_t width) {
            return co::heads_of(e.shaped(row, rows, n * width), n, width);
          };
          const auto q = heads(e.in[0], 7, 4, 3), k = heads(e.in[1], 5, 2, 3), v = heads(e.in[2], 5, 2, 2),
                     out = heads(e.out, 7, 4, 2);
          auto lse = e.zeros(4 * 7);
          const auto scale = e.weight[0] * 0 + 1 / decltype(+e.weight[0])(2), cap = scale / 2;
          const co::key_pages_in<typename B::space> pages{};
          if (capped)
            co::run<co::ops::capped_attention>(e.backend, q, k, v, slices, scale, cap, out, lse, pages);
          else
            co::run<co::ops::attention>(e.backend, q, k, v, slices, scale, out, lse, pages);
          if (!e.backward) return;
          const auto d = heads(e.d, 7, 4, 2), dq = heads(e.gradient[0], 7, 4, 3), dk = heads(e.gradient[1], 5, 2, 3),
                     dv = heads(e.gradient[2], 5, 2, 2);
          if (capped)
            co::run<co::ops::capped_attention_backward>(e.backend, d, q, k, v, out, lse, slices, scale, cap, dq, dk, dv,
                                                        pages);
          else
            co::run<co::ops::attention_backward>(e.backend, d, q, k, v, out, lse, slices, scale, dq, dk, dv, pages);
        });
  // Sinks of four heads; query 6 sees no key, so that all of it goes there.
  check_gradients<B>(
      "attention with sinks", {of_float(7 * 12, 1), of_float(5 * 6, 2), of_float(5 * 4, 3), of_float(4, 4)}, 7 * 8,
      [](auto& e) {
        using co::slice_mask;
        const auto slices = e.list(std::vector<co::attention_slice>{
            {0, 3, 0, 3, slice_mask::causal}, {0, 3, 3, 5, slice_mask::full}, {3, 6, 1, 5, slice_mask::full}});
        const auto heads = [&](auto row, std::int64_t rows, std::int64_t n, std::int64_t width) {
          return co::heads_of(e.shaped(row, rows, n * width), n, width);
        };
        const auto q = heads(e.in[0], 7, 4, 3), k = heads(e.in[1], 5, 2, 3), v = heads(e.in[2], 5, 2, 2),
                   out = heads(e.out, 7, 4, 2);
        auto lse = e.zeros(4 * 7), terms = e.zeros(7 * 4);
        const auto scale = e.weight[0] * 0 + 1 / decltype(+e.weight[0])(2);
        const co::key_pages_in<typename B::space> pages{};
        co::run<co::ops::attention>(e.backend, q, k, v, slices, scale, out, lse, pages);
        co::run<co::ops::attention_sinks>(e.backend, out, e.in[3], lse, out);
        if (!e.backward) return;
        const auto d = heads(e.d, 7, 4, 2);
        co::run<co::ops::attention_sinks_backward>(e.backend, d, out, e.in[3], lse, e.shaped(terms, 7, 4));
        co::run<co::ops::add_bias_backward>(e.backend, e.shaped(terms, 7, 4), e.gradient[3]);
        co::run<co::ops::attention_backward>(e.backend, d, q, k, v, out, lse, slices, scale,
                                             heads(e.gradient[0], 7, 4, 3), heads(e.gradient[1], 5, 2, 3),
                                             heads(e.gradient[2], 5, 2, 2), pages);
      });
}

/// Of the choice of experts, of rows moved to them and their products, and of their balance.
template <class B>
void check_gradients_of_experts() {
  static constexpr std::int64_t tokens = 4, experts = 5, k = 2, width = 3, here = experts - 1;
  const auto whole = [&]<class Rule>(Rule, const char* what) {
    check_gradients<B>(
        what, {of_float(tokens * width, 1), far_apart(tokens * experts, 2), of_float(here * width * 2, 3)}, tokens * 2,
        [](auto& e) {
          using space = typename B::space;
          using stack = hd::view<std::remove_cvref_t<decltype(*e.in[0].address())>, hd::dynamic_shape<3>, space>;
          const auto x = e.shaped(e.in[0], tokens, width), logits = e.shaped(e.in[1], tokens, experts);
          const stack w(e.in[2].address(), hd::dynamic_shape<3>(here, width, 2));
          const auto ids = e.indices(tokens, k), places = e.indices(tokens, k), sources = e.indices(1, tokens * k);
          const auto row_of = [](auto m) { return hd::row_at<space>(m.address(), m.size()); };
          auto weights = e.zeros(tokens, k), moved = e.zeros(tokens * k, width), y = e.zeros(tokens * k, 2);
          std::int64_t* const begins = e.t.keep(std::vector<std::int64_t>(static_cast<std::size_t>(here + 1)));
          co::run<co::ops::top_k<Rule>>(e.backend, logits, ids, weights);
          // The experts from the second on: choices of the first go nowhere.
          co::run<co::ops::route>(e.backend, e.read(ids), 1, hd::row_at<space>(begins, here + 1), row_of(sources),
                                  places);
          const auto offsets = hd::row_at<space>(static_cast<const std::int64_t*>(begins), here + 1);
          co::run<co::ops::permute>(e.backend, x, row_of(e.read(sources)), moved);
          co::grouped_matmul<transpose::no>(e.backend, moved, offsets, w, y, e.weight[0] * 0);
          co::run<co::ops::unpermute>(e.backend, y, e.read(places), weights, e.shaped(e.out, tokens, 2));
          if (!e.backward) return;
          auto dy = e.zeros(tokens * k, 2), dmoved = e.zeros(tokens * k, width), dweights = e.zeros(tokens, k);
          co::run<co::ops::unpermute_backward>(e.backend, e.shaped(e.d, tokens, 2), y, e.read(places), weights, dy,
                                               dweights);
          co::run<co::ops::grouped_matmul_backward_weight>(
              e.backend, moved, dy, offsets, stack(e.gradient[2].address(), hd::dynamic_shape<3>(here, width, 2)),
              e.weight[0] * 0);
          co::grouped_matmul<transpose::yes>(e.backend, dy, offsets, w, dmoved, e.weight[0] * 0);
          co::run<co::ops::permute_backward>(e.backend, dmoved, e.read(places), e.shaped(e.gradient[0], tokens, width));
          co::run<co::ops::top_k_backward<Rule>>(e.backend, logits, e.read(ids), weights, dweights,
                                                 e.shaped(e.gradient[1], tokens, experts));
        });
  };
  whole(co::softmax_of_chosen{}, "experts, softmax of the chosen");
  whole(co::softmax_of_all{}, "experts, softmax of all");
  const auto scored = [&]<class Scores>(Scores, const char* what, const co::grouped_choice& rule) {
    check_gradients<B>(what, {far_apart(tokens * 6, 2)}, tokens * k, [&](auto& e) {
      const auto logits = e.shaped(e.in[0], tokens, 6);
      const auto ids = e.indices(tokens, k);
      auto weights = e.shaped(e.out, tokens, k);
      co::run<co::ops::choose_experts<Scores>>(e.backend, logits, e.zeros(6), rule, ids, weights);
      if (e.backward)
        co::run<co::ops::choose_experts_backward<Scores>>(e.backend, logits, e.read(ids), rule,
                                                          e.shaped(e.d, tokens, k), e.shaped(e.gradient[0], tokens, 6));
    });
  };
  scored(co::sigmoid_scores{}, "experts in groups, sigmoid", {3, 2, 2, true, 1.75});
  scored(co::softmax_scores{}, "experts in groups, softmax", {3, 2, 1, false, 1.5});
  check_gradients<B>("balance of experts", {of_float(tokens * experts, 2)}, 1, [](auto& e) {
    const auto logits = e.shaped(e.in[0], tokens, experts);
    const hd::matrix_view<const std::int32_t, typename B::space> ids(
        e.list(std::vector<std::int32_t>{0, 1, 1, 4, -1, 1, 2, 1}).address(), hd::dynamic_shape<2>(tokens, k));
    e.number([&](auto where) { co::run<co::ops::expert_balance>(e.backend, logits, ids, where); });
    if (e.backward)
      co::run<co::ops::expert_balance_backward>(e.backend, logits, ids, e.weight[0],
                                                e.shaped(e.gradient[0], tokens, experts));
  });
}

}  // namespace backend_gradients
