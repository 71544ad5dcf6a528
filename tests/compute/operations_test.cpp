// Operations by their descriptions alone: every size is checked, costs are those that a serial definition counts, wrappers and backends of a user's own.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/compute/facets.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace operations_of_tests {

namespace hd = heddle;
namespace hc = heddle::compute;
namespace ops = heddle::compute::ops;

template <class... Ops>
struct list {};
using row_operations = list<ops::layer_norm, ops::layer_norm_backward_input, ops::layer_norm_backward_weight,
                            ops::rms_norm, ops::rms_norm_backward_input, ops::rms_norm_backward_weight>;

// A view of an argument of these extents; 1 for a number.
template <class A>
auto argument(std::vector<double>& memory, const std::array<std::int64_t, 2>& extents) {
  using view = typename A::template view<double, hd::host_memory>;
  if constexpr (A::dims[0] == nullptr)
    return view(1);
  else if constexpr (A::dims[1] == nullptr)
    return view(memory.data(), static_cast<std::size_t>(extents[0]));
  else
    return view(memory.data(), hd::dynamic_shape<2>(extents[0], extents[1]));
}

// Calls Op once for each dimension of each argument, with that one too long, and gives what went wrong.
template <class Op, class... A, class... D>
std::vector<std::string> unchecked_sizes(hc::host<>& backend, ops::signature<A...>*, ops::sizes<D...>*) {
  constexpr std::array<std::array<const char*, 2>, sizeof...(A)> dims{A::dims...};
  constexpr std::array<const char*, sizeof...(D)> all{&hc::detail::dimension<D>...};
  std::vector<std::string> wrong;
  const auto uses = [&](const char* dim) {
    int n = 0;
    for (const auto& of : dims)
      for (const char* d : of) n += d == dim;
    return n;
  };
  for (std::size_t i = 0; i <= 2 * sizeof...(A); ++i) {  // the last: nothing is too long
    std::array<std::array<std::int64_t, 2>, sizeof...(A)> extents{};
    for (std::size_t a = 0; a < sizeof...(A); ++a)
      for (std::size_t d = 0; d < 2; ++d)
        for (std::size_t k = 0; k < all.size(); ++k)
          if (dims[a][d] == all[k]) extents[a][d] = 3 + static_cast<std::int64_t>(k) + (2 * a + d == i);
    const char* const dim = i < 2 * sizeof...(A) ? dims[i / 2][i % 2] : nullptr;
    std::array<std::vector<double>, sizeof...(A)> memory;
    memory.fill(std::vector<double>(64, 1.0));
    std::string text;
    try {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        hc::run<Op>(backend, argument<A>(memory[I], extents[I])...);
      }(std::index_sequence_for<A...>{});
    } catch (const hd::layout_error& e) {
      text = e.what();
    }
    if (text.empty() == (dim != nullptr && uses(dim) > 1)) wrong.push_back(std::to_string(i) + ": " + text);
    if (!text.empty() && text.rfind("heddle: " + std::string(Op::name) + ": ", 0) != 0) wrong.push_back(text);
    if (!text.empty() && dims[i / 2] != dims[0] && text.find(Op::arguments[i / 2]) == std::string::npos)
      wrong.push_back(text);
  }
  return wrong;
}

// A number that counts what is done with it.
struct counted {
  double value = 0;
  inline static std::int64_t flops = 0;
  counted(double x) : value(x) {}
  friend counted operator+(counted a, counted b) { return ++flops, a.value + b.value; }
  friend counted operator-(counted a, counted b) { return ++flops, a.value - b.value; }
  friend counted operator*(counted a, counted b) { return ++flops, a.value * b.value; }
  friend counted operator/(counted a, counted b) { return ++flops, a.value / b.value; }
  counted& operator+=(counted b) { return *this = *this + b; }
};
inline counted sqrt(counted x) {
  return std::sqrt(x.value);
}

// The definitions, of one row after another: arguments in the order of the operations.
template <class S>
struct definition {
  using v = std::vector<S>;
  std::int64_t rows, columns;
  template <class F>
  void each(F&& f) const {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        f(static_cast<std::size_t>(i), static_cast<std::size_t>(j), static_cast<std::size_t>(i * columns + j));
  }
  v of_rows() const { return v(static_cast<std::size_t>(rows), S(0)); }
  S n() const { return S(static_cast<double>(columns)); }
  void operator()(ops::layer_norm, const v& x, const v& w, const v& b, S eps, v& y, v& mean, v& rstd) const {
    using std::sqrt;
    v rough = of_rows(), rest = of_rows(), squares = of_rows();
    each([&](auto i, auto, auto at) { rough[i] += x[at]; });
    for (S& r : rough) r = r / n();
    each([&](auto i, auto, auto at) { rest[i] += x[at] - rough[i]; });
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = rough[i] + rest[i] / n();
    each([&](auto i, auto, auto at) {
      const S d = x[at] - mean[i];
      squares[i] += d * d;
    });
    for (std::size_t i = 0; i < mean.size(); ++i) rstd[i] = S(1) / sqrt(squares[i] / n() + eps);
    each([&](auto i, auto j, auto at) { y[at] = (x[at] - mean[i]) * rstd[i] * w[j] + b[j]; });
  }
  void operator()(ops::layer_norm_backward_input, const v& dy, const v& x, const v& w, const v& mean, const v& rstd,
                  v& dx) const {
    v g = of_rows(), gn = of_rows();
    each([&](auto i, auto j, auto at) { g[i] += dy[at] * w[j]; });
    each([&](auto i, auto j, auto at) { gn[i] += dy[at] * w[j] * ((x[at] - mean[i]) * rstd[i]); });
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = g[i] / n(), gn[i] = gn[i] / n();
    each([&](auto i, auto j, auto at) {
      dx[at] += rstd[i] * (dy[at] * w[j] - g[i] - (x[at] - mean[i]) * rstd[i] * gn[i]);
    });
  }
  void operator()(ops::layer_norm_backward_weight, const v& dy, const v& x, const v& mean, const v& rstd, v& dw,
                  v& db) const {
    each([&](auto i, auto j, auto at) {
      dw[j] += dy[at] * ((x[at] - mean[i]) * rstd[i]);
      db[j] += dy[at];
    });
  }
  void operator()(ops::rms_norm, const v& x, const v& w, S eps, v& y, v& rstd) const {
    using std::sqrt;
    v squares = of_rows();
    each([&](auto i, auto, auto at) { squares[i] += x[at] * x[at]; });
    for (std::size_t i = 0; i < rstd.size(); ++i) rstd[i] = S(1) / sqrt(squares[i] / n() + eps);
    each([&](auto i, auto j, auto at) { y[at] = x[at] * rstd[i] * w[j]; });
  }
  void operator()(ops::rms_norm_backward_input, const v& dy, const v& x, const v& w, const v& rstd, v& dx) const {
    v gn = of_rows();
    each([&](auto i, auto j, auto at) { gn[i] += dy[at] * w[j] * (x[at] * rstd[i]); });
    for (S& g : gn) g = g / n();
    each([&](auto i, auto j, auto at) { dx[at] += rstd[i] * (dy[at] * w[j] - x[at] * rstd[i] * gn[i]); });
  }
  void operator()(ops::rms_norm_backward_weight, const v& dy, const v& x, const v& rstd, v& dw) const {
    each([&](auto i, auto j, auto at) { dw[j] += dy[at] * (x[at] * rstd[i]); });
  }
};

// An argument of the operation's own sizes, with some numbers.
template <class A, class S, class... D>
std::vector<S> numbers(const ops::sizes<D...>& n, int seed) {
  const std::int64_t count = A::dims[0] == nullptr ? 1 : A::template bytes<std::byte>(n);
  std::vector<S> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(S(0.5 + 0.4 * std::sin(static_cast<double>(7 * i + seed))));
  return x;
}
template <class A, class S>
auto& given(std::vector<S>& x) {
  if constexpr (A::dims[0] == nullptr)
    return x[0];
  else
    return x;
}
template <class A>
std::array<std::int64_t, 2> extents(const auto& n) {
  const auto of = [&](const char* dim) {
    return dim == &hc::detail::dimension<ops::rows> ? n[ops::rows{}] : n[ops::columns{}];
  };
  return {of(A::dims[0]), of(A::dims[1])};
}

// The greatest difference between what the host computes and the definition.
template <class Op, class... A>
double difference(hc::host<>& backend, const typename Op::dims& n, ops::signature<A...>*) {
  int seed = 0;
  std::vector<double> expected[] = {numbers<A, double>(n, ++seed)...}, got[sizeof...(A)];
  std::copy(std::begin(expected), std::end(expected), std::begin(got));
  double most = 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    definition<double>{n[ops::rows{}], n[ops::columns{}]}(Op{}, given<A>(expected[I])...);
    hc::run<Op>(backend, [&] {
      if constexpr (A::dims[0] == nullptr)
        return got[I][0];
      else
        return argument<A>(got[I], extents<A>(n));
    }()...);
    for (std::size_t a = 0; a < sizeof...(A); ++a)
      for (std::size_t i = 0; i < got[a].size(); ++i) most = std::max(most, std::abs(got[a][i] - expected[a][i]));
  }(std::index_sequence_for<A...>{});
  return most;
}
// How many additions and multiplications the definition takes.
template <class Op, class... A>
std::int64_t counted_flops(const typename Op::dims& n, ops::signature<A...>*) {
  int seed = 0;
  std::vector<counted> x[] = {numbers<A, counted>(n, ++seed)...};
  counted::flops = 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    definition<counted>{n[ops::rows{}], n[ops::columns{}]}(Op{}, given<A>(x[I])...);
  }(std::index_sequence_for<A...>{});
  return counted::flops;
}
template <class... Ops, class F>
void each_of(list<Ops...>, F&& f) {
  (f(std::type_identity<Ops>{}), ...);
}

// A user's operation and backend: y = x[shift elements on], in turn.
struct elements {};
struct rotated : ops::operation {
  static constexpr const char* name = "rotated";
  static constexpr const char* arguments[] = {"by", "x", "y"};
  using dims = ops::sizes<elements>;
  using takes = ops::signature<ops::in_ids<elements>, ops::in<elements>, ops::out<elements>>;
};
struct own_backend {
  int calls = 0;
};
template <class T>
void body(rotated, own_backend& backend, std::int64_t n, const std::int32_t* by, const T* x, T* y) {
  ++backend.calls;
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[(i + by[i]) % n];
}

// One that counts what its backend runs.
struct counting : hc::host<> {
  int calls = 0;
  template <class Op, class T, class... V>
    requires hc::offered<Op, hc::host<>, T>
  void run(const V&... v) {
    ++calls;
    hc::run<Op>(static_cast<hc::host<>&>(*this), v...);
  }
};
}  // namespace operations_of_tests

TEST_CASE("operations check every size that two of their arguments share", "[compute][operations]") {
  using namespace operations_of_tests;
  hc::host<> backend;
  each_of(row_operations{}, [&]<class Op>(std::type_identity<Op>) {
    const auto wrong = unchecked_sizes<Op>(backend, static_cast<typename Op::takes*>(nullptr),
                                           static_cast<typename Op::dims*>(nullptr));
    INFO(Op::name);
    CHECK(wrong == std::vector<std::string>{});
  });
}

TEST_CASE("operations are their definitions, which take as many flops as they say", "[compute][operations]") {
  using namespace operations_of_tests;
  hc::host<> backend(2);
  each_of(row_operations{}, [&]<class Op>(std::type_identity<Op>) {
    auto* const takes = static_cast<typename Op::takes*>(nullptr);
    INFO(Op::name);
    for (const std::int64_t columns : {1, 5, 37}) {
      const typename Op::dims n{{3, columns}}, more{{3, columns + 1}};
      CHECK(difference<Op>(backend, n, takes) < 1e-11);
      // Those of each row, such as its root, are not counted: what another column takes.
      CHECK(counted_flops<Op>(more, takes) - counted_flops<Op>(n, takes) == Op::flops(more) - Op::flops(n));
    }
    CHECK(Op::flops({{0, 5}}) == 0);
  });
  STATIC_REQUIRE(hc::bytes_moved<ops::rms_norm, hd::bf16>({{2, 3}}) == 12 + 6 + 12 + 8);
  STATIC_REQUIRE(hc::bytes_moved<ops::rms_norm_backward_input, hd::bf16>({{2, 3}}) == 12 + 12 + 6 + 8 + 2 * 12);
  STATIC_REQUIRE(hc::bytes_moved<ops::layer_norm_backward_weight, float>({{2, 3}}) == 24 + 24 + 8 + 8 + 2 * 24);
}

TEST_CASE("a user's operation, backend and wrapper", "[compute][operations]") {
  using namespace operations_of_tests;
  STATIC_REQUIRE(hc::offers<own_backend, float, rotated>);
  STATIC_REQUIRE_FALSE(hc::offers<hc::host<>, float, rotated>);
  STATIC_REQUIRE_FALSE(hc::offers<own_backend, float, ops::rms_norm>);
  own_backend own;
  const std::vector<std::int32_t> by{1, 1, 0};
  const std::vector<float> x{1, 2, 3};
  std::vector<float> y(3);
  hc::run<rotated>(own, std::span(by), std::span(x), std::span(y));
  CHECK(y == std::vector<float>{2, 3, 3});
  CHECK_THROWS_WITH(hc::run<rotated>(own, std::span(by), std::span(x).first(2), std::span(y)),
                    "heddle: rotated: elements of x should be 3, got 2");
  CHECK(own.calls == 1);

  STATIC_REQUIRE(hc::offers<counting, float, hc::rms_norm_facet>);
  STATIC_REQUIRE_FALSE(hc::offers<counting, float, rotated>);
  counting wrapper;
  std::vector<double> a{3, 4}, w{1, 2}, out(2), rstd(1);
  hc::run<ops::rms_norm>(wrapper, compute_test::matrix(a, 1, 2), w, 0.0, compute_test::matrix(out, 1, 2),
                         std::span(rstd));
  CHECK(wrapper.calls == 1);
  CHECK(out[1] == Approx(8 / std::sqrt(12.5)));
}
