// Expressions over sharded tensors: values against serial formulas, gradients against their central differences, on
// meshes known at compile time and at run time, and the steps that are taken with them.
#include "catch.hpp"
#include "gradient_trials.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/adamw_parameter.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/value_and_gradient.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/on_ranks.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace gradient_trials;

namespace {

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

struct cube {
  template <class T>
  static T value(T x) {
    return x * x * x;
  }
  template <class T>
  static T derivative(T x) {
    return 3 * x * x;
  }
};

// An operator of one's own, which notes how often it runs and what is left of its operand in backward.
struct noted : op::elementwise {
  static constexpr int most = 1;
};
struct notes {
  int forwards = 0;
  std::size_t elements_in_backward = 99;
};
struct noting_backend : hc::host<> {
  notes found{};
};

}  // namespace

template <>
struct heddle::compute::operator_kernel<noted> : heddle::compute::elementwise_operator {
  template <class C, class S, class Y>
  static void forward(C& c, S&, Y& y, const auto& x) {
    ++c.backend.found.forwards;
    hc::run<hc::ops::copy>(c.backend, x.elements(), y.elements());
  }
  template <class C, class S, class Y, class G>
  static void backward(C& c, S&, const auto& dy, const Y&, G& g, const auto& x) {
    c.backend.found.elements_in_backward = x.elements().size();
    hc::run<hc::ops::copy>(c.backend, dy.elements(), std::get<0>(g).elements());
  }
};

TEST_CASE("a perceptron's gradients equal those of one rank and central differences", "[compute][gradient][ranks]") {
  constexpr std::int64_t b = 5, i = 3, h = 7, o = 4;  // no axis of more than one rank divides them
  const std::vector<numbers> x{random_numbers(b * i, 1), random_numbers(i * h, 2), random_numbers(h, 3),
                               random_numbers(h * o, 4), random_numbers(o, 5)};
  const loss_function loss = [&](const std::vector<numbers>& v) {
    double sum = 0;
    for (std::int64_t s = 0; s < b; ++s) {
      numbers y(v[4]);
      for (std::int64_t k = 0; k < h; ++k) {
        double z = v[2][at(k)];
        for (std::int64_t j = 0; j < i; ++j) z += v[0][at(s * i + j)] * v[1][at(j * h + k)];
        for (std::int64_t c = 0; c < o; ++c) y[at(c)] += gelu(z) * v[3][at(k * o + c)];
      }
      // The result is used four times: y^2, silu(y) y^3, -0.5 y, and y^3 alone.
      for (const double e : y) sum += e * e + e / (1 + std::exp(-e)) * e * e * e - 0.5 * e + e * e * e;
    }
    return sum / (b * o);
  };
  check(loss, x, [&](auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      const auto part = [&]<class L>(std::type_identity<L>, std::size_t k, auto shape) {
        return spread<L>(x[k], shape).part(L{mesh}, world.rank());
      };
      const auto in = part(std::type_identity<rows<M>>{}, 0, hd::shape<b, i>{});
      const auto w = part(std::type_identity<column<M>>{}, 1, hd::shape{i, h});
      const auto bias = part(std::type_identity<row<M>>{}, 2, hd::shape{h});
      const auto v = part(std::type_identity<row<M>>{}, 3, hd::shape{h, o});
      const auto last = part(std::type_identity<copies<M>>{}, 4, hd::shape{o});
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto in, auto w, auto bias, auto v, auto last) {
            const auto hidden = hd::apply<op::gelu>(hd::add_bias(hd::einsum<"bi,ih->bh">(in, w), bias));
            const auto y = hd::add_bias(hd::redistribute<rows<M>>(hd::einsum<"bh,ho->bo">(hidden, v)), last);
            const auto cubes = hd::apply<op::map<cube>>(y);
            const auto all = hd::apply<op::add>(hd::apply<op::multiply>(y, y),
                                                hd::apply<op::multiply>(hd::apply<op::silu>(y), cubes),
                                                hd::apply<op::scale>(y, -0.5), cubes);
            return hd::mean(all);
          },
          in, w, bias, v, last);
    });
  });
}

TEST_CASE("a language model whose tied vocabulary is split equals one rank", "[compute][gradient][ranks]") {
  constexpr std::int64_t b = 3, s = 4, d = 6, v = 7;
  const std::vector<std::int32_t> ids{0, 3, 6, 1, 2, 2, 5, 4, 6, 0, 1, 3}, labels{3, 6, 1, 0, 2, -1, 4, 6, 0, 1, 3, 5};
  const std::vector<numbers> x{random_numbers(v * d, 6), random_numbers(d, 7), random_numbers(s * d, 8)};
  const loss_function loss = [&](const std::vector<numbers>& w) {
    double sum = 0;
    for (std::int64_t r = 0; r < b * s; ++r) {
      numbers e(at(d)), logits(at(v));
      double square = 1e-3 * d;
      for (std::int64_t k = 0; k < d; ++k) {
        e[at(k)] = w[0][at(ids[at(r)] * d + k)] + w[2][at(r % s * d + k)];
        square += e[at(k)] * e[at(k)];
      }
      double all = 0;
      for (std::int64_t c = 0; c < v; ++c) {
        for (std::int64_t k = 0; k < d; ++k)
          logits[at(c)] += e[at(k)] / std::sqrt(square / d) * w[1][at(k)] * w[0][at(c * d + k)];
        all += std::exp(logits[at(c)]);
      }
      if (labels[at(r)] >= 0) sum += std::log(all) - logits[at(labels[at(r)])];
    }
    return sum / (b * s);
  };
  check(loss, x, [&](auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      const int rank = world.rank();
      const auto table = spread<row<M>>(x[0], hd::shape{v, d}).part(row<M>{mesh}, rank);
      const auto weight = spread<norm<M>>(x[1], hd::shape{d}).part(norm<M>{mesh}, rank);
      const auto positions = spread<norm<M>>(x[2], hd::shape{s, d}).part(norm<M>{mesh}, rank);
      using tokens = hd::view<const std::int32_t, hd::shape<b, s>>;
      const auto in = hd::shard_of(tokens(ids.data(), {}), rows<M>{mesh}, rank);
      const auto out = hd::shard_of(tokens(labels.data(), {}), rows<M>{mesh}, rank);
      auto [value, dtable, dweight, dpositions, dids, dlabels] = hd::value_and_gradient(
          backend, world,
          [](auto table, auto weight, auto positions, auto in, auto out) {
            const auto e = hd::redistribute<stream<M>>(hd::apply<op::embedding<2>>(table, in));  // all_reduce over tp
            const auto x0 = hd::apply<op::add_of<"bsd,sd->bsd">>(e, positions);
            const auto normed = hd::redistribute<rows<M>>(hd::apply<op::rms_norm<2>>(x0, weight, 1e-3));
            const auto logits = hd::einsum<"bsd,vd->bsv">(normed, table);
            return hd::mean(hd::apply<op::cross_entropy<2>>(logits, out));
          },
          table, weight, positions, in, out);
      // Backward leaves sums over dp only: tp splits the table, and the norm's values are repeated, not copied.
      static_assert(std::same_as<typename decltype(dtable)::layout_type, hd::dual<row<M>>>);
      static_assert(std::same_as<typename decltype(dweight)::layout_type,
                                 hd::layout<M, hd::partial<hd::plus, dp>, hd::identical<tp>>>);
      static_assert(std::same_as<decltype(dids), hc::no_gradient>);
      return std::tuple{std::move(value), std::move(dtable), std::move(dweight), std::move(dpositions)};
    });
  });
}

TEST_CASE("attention, norms and softmax over split heads equal one rank", "[compute][gradient][ranks]") {
  constexpr std::int64_t b = 3, h = 4, s = 3, d = 3;
  const std::int64_t n = b * h * s * d;
  const std::vector<numbers> x{random_numbers(n, 9), random_numbers(n, 10), random_numbers(n, 12),
                               random_numbers(d, 13), random_numbers(d, 14)};
  const loss_function loss = [&](const std::vector<numbers>& w) {
    double sum = 0;
    for (std::int64_t g = 0; g < b * h; ++g) {
      const auto element = [&](const numbers& a, std::int64_t r, std::int64_t c) { return a[at((g * s + r) * d + c)]; };
      numbers out(at(s * d));
      for (std::int64_t r = 0; r < s; ++r) {
        numbers p(at(r + 1));
        double all = 0;
        for (std::int64_t t = 0; t <= r; ++t) {
          double score = 0;
          for (std::int64_t c = 0; c < d; ++c) score += element(w[0], r, c) * element(w[1], t, c);
          all += p[at(t)] = std::exp(score / std::sqrt(double(d)));
        }
        for (std::int64_t t = 0; t <= r; ++t)
          for (std::int64_t c = 0; c < d; ++c) out[at(r * d + c)] += p[at(t)] / all * element(w[2], t, c);
      }
      // sum over rows of softmax(layer_norm(out)) * silu(q) k, and of out summed over its rows
      for (std::int64_t r = 0; r < s; ++r) {
        double mean = 0, variance = 1e-5, all = 0;
        numbers normed(at(d));
        for (std::int64_t c = 0; c < d; ++c) mean += out[at(r * d + c)] / d;
        for (std::int64_t c = 0; c < d; ++c) variance += std::pow(out[at(r * d + c)] - mean, 2) / d;
        for (std::int64_t c = 0; c < d; ++c) {
          normed[at(c)] = (out[at(r * d + c)] - mean) / std::sqrt(variance) * w[3][at(c)] + w[4][at(c)];
          all += std::exp(normed[at(c)]);
        }
        for (std::int64_t c = 0; c < d; ++c) {
          const double q = element(w[0], r, c);
          sum += std::exp(normed[at(c)]) / all * (q / (1 + std::exp(-q)) * element(w[1], r, c)) + out[at(r * d + c)];
        }
      }
    }
    return sum;
  };
  check(loss, x, [&](auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      const auto whole = [&](std::size_t k) {
        return spread<heads<M>>(x[k], hd::shape{b, h, s, d}).part(heads<M>{mesh}, world.rank());
      };
      const auto q = whole(0), k = whole(1), v = whole(2);
      const auto weight = spread<copies<M>>(x[3], hd::shape<d>{}).part(copies<M>{mesh}, world.rank());
      const auto bias = spread<copies<M>>(x[4], hd::shape{d}).part(copies<M>{mesh}, world.rank());
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto q, auto k, auto v, auto weight, auto bias) {
            const auto out = hd::apply<op::attention>(q, k, v);
            const auto p = hd::apply<op::softmax<3>>(hd::apply<op::layer_norm<3>>(out, weight, bias));
            const auto first = hd::sum(hd::apply<op::multiply>(p, hd::apply<op::gated<>>(q, k)));
            const auto second = hd::sum(hd::einsum<"bhsd->dbh">(out));
            return hd::apply<op::add>(first, second);
          },
          q, k, v, weight, bias);
    });
  });
}

TEST_CASE("vjp: values of any shape and products with their gradients equal definitions on every mesh",
          "[compute][gradient][ranks]") {
  constexpr std::int64_t b = 5, i = 3, o = 4;
  const numbers x = random_numbers(b * i, 1), w = random_numbers(i * o, 2), dy = random_numbers(b * o, 3);
  // y = softmax(x w) by rows, whose backward reads y.
  numbers y(at(b * o)), dx(at(b * i)), dw(at(i * o));
  for (std::int64_t r = 0; r < b; ++r) {
    numbers e(at(o));
    double sum = 0, product = 0;
    for (std::int64_t c = 0; c < o; ++c) {
      double z = 0;
      for (std::int64_t k = 0; k < i; ++k) z += x[at(r * i + k)] * w[at(k * o + c)];
      sum += e[at(c)] = std::exp(z);
    }
    for (std::int64_t c = 0; c < o; ++c) product += (y[at(r * o + c)] = e[at(c)] / sum) * dy[at(r * o + c)];
    for (std::int64_t c = 0; c < o; ++c) {
      const double dz = y[at(r * o + c)] * (dy[at(r * o + c)] - product);
      for (std::int64_t k = 0; k < i; ++k) {
        dx[at(r * i + k)] += dz * w[at(k * o + c)];
        dw[at(k * o + c)] += dz * x[at(r * i + k)];
      }
    }
  }
  const auto compare = [&](auto mesh) {
    using M = decltype(mesh);
    const auto found = on_all(mesh, [&](auto& backend, auto& world) {
      const auto in = spread<rows<M>>(x, hd::shape{b, i}).part(rows<M>{mesh}, world.rank());
      // The weights are a temporary that the pull keeps.
      auto [value, pull] = hd::vjp<hd::reduced_gradients>(
          backend, world, [](auto in, auto w) { return hd::apply<op::softmax<1>>(hd::einsum<"bi,io->bo">(in, w)); }, in,
          spread<copies<M>>(w, hd::shape{i, o}).part(copies<M>{mesh}, world.rank()));
      using dual = hd::dual<typename decltype(value)::layout_type>;
      static_assert(std::same_as<dual, typename std::remove_cvref_t<decltype(pull)>::layout_type>);
      const auto seed = [&] { return spread<dual>(dy, hd::shape{b, o}).part(dual{mesh}, world.rank()); };
      auto wrong = spread<dual>(dy, hd::shape{o, b}).part(dual{mesh}, world.rank());
      CHECK_THROWS_AS(pull(std::move(wrong)), hd::layout_error);
      auto [d_in, d_w] = pull(seed());
      CHECK_THROWS_AS(pull(seed()), hd::config_error);
      return std::tuple(std::move(value), std::move(d_in), std::move(d_w));
    });
    INFO(to_string(mesh));
    CHECK(worst_difference(found[0], y) < 1e-14);
    CHECK(worst_difference(found[1], dx) < 1e-13);
    CHECK(worst_difference(found[2], dw) < 1e-13);
  };
  compare(fixed{});
  for (const int d : {1, 3}) compare(flexible(d, 4 - d));
}

TEST_CASE("constants get no gradient and unused operands zeros", "[compute][gradient][ranks]") {
  const auto results = hd::testing::on_ranks(fixed{}, [](auto& world) {
    hc::host<> backend;
    hd::sharded<double, 1, copies<fixed>> x(copies<fixed>{}, hd::shape{3}, world.rank()),
        w(copies<fixed>{}, hd::shape{3}, world.rank()), unused(copies<fixed>{}, hd::shape{2}, world.rank());
    for (auto& e : x.elements()) e = 2;
    for (auto& e : w.elements()) e = 3;
    const auto f = [](auto x, auto w, auto) { return hd::sum(hd::apply<op::multiply>(x, w)); };
    auto [value, dx, dw, nothing] =
        hd::value_and_gradient<hd::reduced_gradients>(backend, world, f, hd::constant(x), w, unused);
    static_assert(std::same_as<decltype(dx), hc::no_gradient>);
    // Copies are differentiated once: 6 * 3, not four times that; and the gradient is x, not 4 x.
    return std::tuple{value.elements()[0], dw.elements()[0], nothing.elements()[1], x.elements()[0]};
  });
  INFO(to_string(results));
  CHECK(results.all_are(std::tuple{18.0, 2.0, 0.0, 2.0}));
}

TEST_CASE("a constant keeps the temporary it was made of", "[compute][gradient][ranks]") {
  const auto results = hd::testing::on_ranks(fixed{}, [](auto& world) {
    hc::host<> backend;
    hd::sharded<double, 1, copies<fixed>> w(copies<fixed>{}, hd::shape{3}, world.rank()),
        given(copies<fixed>{}, hd::shape{3}, world.rank());
    for (auto& e : w.elements()) e = 2;
    for (auto& e : given.elements()) e = 3;
    const auto kept = hd::constant(std::move(given));
    const std::size_t left = given.elements().size();
    given = hd::sharded<double, 1, copies<fixed>>(copies<fixed>{}, hd::shape{3}, world.rank());
    const auto f = [](auto w, auto x) { return hd::sum(hd::apply<op::multiply>(w, x)); };
    auto [value, dw, none] = hd::value_and_gradient<hd::reduced_gradients>(backend, world, f, w, kept);
    return std::tuple{value.elements()[0], dw.elements()[1], left};
  });
  INFO(to_string(results));
  CHECK(results.all_are(std::tuple{18.0, 3.0, std::size_t{0}}));
}

TEST_CASE("a value is computed once, and released if backward does not read it", "[compute][gradient]") {
  using alone = hd::mesh<hd::axis<dp, 1>>;
  const auto results = hd::testing::on_ranks(alone{}, [](auto& world) {
    hd::sharded<double, 1, copies<alone>> x(copies<alone>{}, hd::shape{3}, world.rank());
    for (auto& e : x.elements()) e = 2;
    noting_backend once, anew;
    auto [value, dx] = hd::value_and_gradient(
        once, world,
        [](auto x) {
          const auto h = hd::apply<noted>(hd::apply<op::multiply>(x, x));
          return hd::sum(hd::apply<op::add>(h, h, x));
        },
        x);
    auto [again, dagain] = hd::value_and_gradient(
        anew, world,
        [](auto x) {
          // Two factors, one type: these are two values.
          return hd::sum(hd::apply<op::add>(hd::apply<noted>(hd::apply<op::scale>(x, 3.0)),
                                            hd::apply<noted>(hd::apply<op::scale>(x, 5.0))));
        },
        x);
    return std::tuple{value.elements()[0], dx.elements()[2],     once.found.forwards, once.found.elements_in_backward,
                      again.elements()[0], dagain.elements()[2], anew.found.forwards};
  });
  INFO(to_string(results));
  CHECK(results.all_are(std::tuple{30.0, 9.0, 1, std::size_t{0}, 48.0, 8.0, 2}));
}

TEST_CASE("queries may be split along the sequence", "[compute][gradient][ranks]") {
  const auto x = random_numbers(2 * 3 * 5 * 2, 17), y = random_numbers(2 * 3 * 5 * 2, 18);
  const auto run = [&](const flexible& mesh) {
    return on_all(mesh, [&](auto& backend, auto& world) {
      using split = hd::layout<flexible, hd::shard<0, dp>, hd::shard<2, tp>>;
      const auto q = spread<split>(x, hd::shape{2, 3, 5, 2}).part(split{mesh}, world.rank());
      const auto k = spread<rows<flexible>>(y, hd::shape{2, 3, 5, 2}).part(rows<flexible>{mesh}, world.rank());
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto q, auto k) {
            const auto out = hd::apply<op::attention>(q, k, k);
            return hd::sum(hd::apply<op::multiply>(out, out));
          },
          q, k);
    });
  };
  const auto alone = run(flexible{1, 1});
  for (const auto& [d, t] : std::vector<std::pair<int, int>>{{1, 2}, {2, 3}, {1, 5}}) {
    const auto found = run(flexible{d, t});
    CAPTURE(d, t);
    for (std::size_t k = 0; k < 3; ++k) CHECK(worst_difference(found[k], alone[k]) < 1e-12);
  }
}

TEST_CASE("an axis of one rank is no mistake", "[compute][gradient][ranks]") {
  using flat = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>;
  using open_sum = hd::layout<flat, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;  // of one term
  const auto x = random_numbers(5 * 3, 19), w = random_numbers(3 * 4, 20);
  const auto run = [&]<class L>(std::type_identity<L>, auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      const auto in = spread<L>(x, hd::shape{5, 3}).part(L{mesh}, world.rank());
      const auto weight = spread<column<M>>(w, hd::shape{3, 4}).part(column<M>{mesh}, world.rank());
      return hd::value_and_gradient<hd::reduced_gradients>(
          backend, world,
          [](auto in, auto weight) { return hd::mean(hd::einsum<"bi,io->bo">(hd::apply<op::gelu>(in), weight)); }, in,
          weight);
    });
  };
  const auto found = run(std::type_identity<open_sum>{}, flat{}),
             wanted = run(std::type_identity<rows<fixed>>{}, fixed{});
  for (std::size_t k = 0; k < 3; ++k) CHECK(worst_difference(found[k], wanted[k]) < 1e-14);
}

TEST_CASE("tensors say what is wrong with them", "[compute][apply][ranks]") {
  const auto results = hd::testing::on_ranks(fixed{}, [](auto& world) {
    hc::host<> backend;
    std::vector<std::string> texts;
    const auto text_of = [&](const auto& f) {
      try {
        f();
        texts.emplace_back("nothing");
      } catch (const hd::layout_error& e) {
        texts.emplace_back(e.what());
      }
    };
    hd::sharded<double, 2, rows<fixed>> x(rows<fixed>{}, hd::shape{4, 3}, world.rank()),
        y(rows<fixed>{}, hd::shape{4, 5}, world.rank()), gone(rows<fixed>{}, hd::shape{4, 3}, world.rank()),
        other(rows<fixed>{}, hd::shape{4, 3}, (world.rank() + 1) % 4);
    hd::sharded<double, 2, copies<fixed>> table(copies<fixed>{}, hd::shape{3, 2}, world.rank());
    hd::sharded<std::int32_t, 1, copies<fixed>> ids(copies<fixed>{}, hd::shape{1}, world.rank());
    using padded = hd::layout<fixed, hd::shard<0, hd::split::padded<>, dp>>;
    hd::sharded<double, 2, padded> wide(padded{}, hd::shape{5, 3}, world.rank());
    static_cast<void>(std::move(gone).release());
    ids.elements()[0] = 3;
    text_of([&] { hd::apply<op::add>(backend, world, x, y); });
    text_of([&] { hd::apply<op::gelu>(backend, world, gone); });
    text_of([&] { hd::apply<op::gelu>(backend, world, other); });
    text_of([&] { hd::apply<op::embedding<1>>(backend, world, table, ids); });
    text_of([&] { hd::apply<op::softmax<1>>(backend, world, wide); });
    return texts;
  });
  INFO(to_string(results));
  REQUIRE(results.ok());
  const auto& texts = results[3];
  CHECK_THAT(texts[0], Catch::Matchers::Contains("operand 1 should be of shape 4 x 3, got 4 x 5"));
  CHECK_THAT(texts[1], Catch::Matchers::Contains("were moved away or released"));
  CHECK_THAT(texts[2], Catch::Matchers::Contains("an operand is rank 0's part"));
  CHECK_THAT(texts[3], Catch::Matchers::Contains("ids should be in [0, 3), got 3"));
  CHECK_THAT(texts[4], Catch::Matchers::Contains("the memory of an operand is padded"));
}

TEST_CASE("steps with reduced gradients equal AdamW's definition on every mesh", "[compute][adamw][ranks]") {
  const auto start = random_numbers(6, 15), data = random_numbers(15, 16);
  // The gradient of the mean of (x w)^2 is 2 x^T x w / (5 * 2).
  numbers w = start, m(6), v(6);
  for (int step = 1; step <= 2; ++step) {
    numbers g(6);
    for (std::int64_t r = 0; r < 5; ++r)
      for (std::int64_t c = 0; c < 2; ++c) {
        double y = 0;
        for (std::int64_t k = 0; k < 3; ++k) y += data[at(r * 3 + k)] * w[at(k * 2 + c)];
        for (std::int64_t k = 0; k < 3; ++k) g[at(k * 2 + c)] += 2 * y * data[at(r * 3 + k)] / 10;
      }
    for (std::size_t i = 0; i < 6; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      w[i] -= 0.1 * 0.01 * w[i] +
              0.1 * (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.999, step))) + 1e-8);
    }
  }
  const auto trained = [&](auto mesh) {
    using M = decltype(mesh);
    return on_all(mesh, [&](auto& backend, auto& world) {
      auto weights = spread<column<M>>(start, hd::shape{3, 2}).part(column<M>{mesh}, world.rank());
      const auto x = spread<rows<M>>(data, hd::shape{5, 3}).part(rows<M>{mesh}, world.rank());
      auto moments = hd::zero_moments(weights);
      for (int step = 1; step <= 2; ++step) {
        const auto f = [](auto w, auto in) {
          const auto y = hd::einsum<"bi,io->bo">(in, w);
          return hd::mean(hd::apply<op::multiply>(y, y));
        };
        auto [loss, dw, dx] =
            hd::value_and_gradient<hd::reduced_gradients>(backend, world, f, weights, hd::constant(x));
        hd::adamw_step(backend, world, weights, dw, moments, {.lr = 0.1, .weight_decay = 0.01, .step = step});
      }
      return std::tuple{std::move(weights)};
    });
  };
  CHECK(worst_difference(trained(flexible{1, 1})[0], w) < 1e-10);
  CHECK(worst_difference(trained(flexible{2, 2})[0], w) < 1e-10);
  CHECK(worst_difference(trained(flexible{4, 2})[0], w) < 1e-10);
  CHECK(worst_difference(trained(fixed{})[0], w) < 1e-10);
}

TEST_CASE("a step refuses moments of another tensor", "[compute][adamw]") {
  const auto results = hd::testing::on_ranks(fixed{}, [](auto& world) {
    hc::host<> backend;
    hd::sharded<double, 1, copies<fixed>> w(copies<fixed>{}, hd::shape{3}, world.rank()),
        g(copies<fixed>{}, hd::shape{4}, world.rank());
    auto moments = hd::zero_moments(w);
    hd::adamw_step(backend, world, w, g, moments, {});
  });
  CHECK_THAT(results.error, Catch::Matchers::Contains("the gradient should be rank"));
}
