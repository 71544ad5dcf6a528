// Operations by their descriptions: every size is checked, costs are counted, bodies and wrappers of a user's own.
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
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace operations_of_tests {

namespace hd = heddle;
namespace hc = heddle::compute;
namespace ops = heddle::compute::ops;

template <class... Ops>
struct list {};
using all_operations =
    list<ops::layer_norm, ops::layer_norm_backward_input, ops::layer_norm_backward_weight, ops::rms_norm,
         ops::rms_norm_backward_input, ops::rms_norm_backward_weight, ops::row_sum_squares, ops::rms_norm_of_sums,
         ops::rms_norm_row_dot, ops::rms_norm_backward_of_sums, ops::row_max, ops::row_sum_exp, ops::pick_target,
         ops::cross_entropy_backward, ops::weighted_cross_entropy_backward, ops::add_to_softmax, ops::rescale_softmax,
         ops::embedding, ops::embedding_backward, ops::gelu, ops::gelu_backward, ops::add, ops::scale, ops::fill,
         ops::copy, ops::cast<float>, ops::add_bias, ops::add_bias_backward, ops::sum_of_squares, ops::count_nonfinite,
         ops::squared_error, ops::squared_error_backward, ops::cross_entropy_loss, ops::gated<hc::silu>,
         ops::gated_backward<hc::silu>, ops::soft_cap, ops::soft_cap_backward, ops::capped_cross_entropy_backward>;

template <hc::transpose TA>
using products_of = list<ops::matmul<TA, hc::transpose::no>, ops::matmul<TA, hc::transpose::yes, true>,
                         ops::grouped_matmul<TA>, ops::grouped_matmul_backward_weight>;

using hc::detail::most_dims;
using extents_type = std::array<std::int64_t, most_dims>;

// The elements of an argument, or the number: of S where they are the operation's or sums.
template <class A, class S>
using element = std::remove_cv_t<std::remove_pointer_t<typename A::template address<S>>>;
template <class... A>
using memory_of = std::tuple<std::vector<element<A, double>>...>;
// A view of an argument of these extents; the first element for a number.
template <class A, class M>
auto argument(M& memory, const extents_type& extents) {
  using view = typename A::template view<double, hd::host_memory>;
  if constexpr (std::is_pointer_v<view>)
    return memory.data();
  else if constexpr (A::dims[0] == nullptr)
    return memory[0];
  else if constexpr (A::dims[1] == nullptr)
    return view(memory.data(), static_cast<std::size_t>(extents[0]));
  else if constexpr (A::dims[2] == nullptr)
    return view(memory.data(), hd::dynamic_shape<2>(extents[0], extents[1]));
  else
    return view(memory.data(), hd::dynamic_shape<3>(extents[0], extents[1], extents[2]));
}
template <class A, class... D>
extents_type extents(const ops::sizes<D...>& n) {
  extents_type found{};
  for (std::size_t d = 0; d < most_dims; ++d)
    static_cast<void>(((A::dims[d] == &hc::detail::dimension<D> ? found[d] = n[D{}] : 0), ...));
  return found;
}

// Calls Op once for each dimension of each argument, with that one too long, and gives what went wrong.
template <class Op, class... A, class... D>
std::vector<std::string> unchecked_sizes(hc::host<>& backend, ops::signature<A...>*, ops::sizes<D...>*) {
  constexpr std::array<hc::detail::argument_dims, sizeof...(A)> dims{A::dims...};
  std::vector<std::string> wrong;
  const auto uses = [&](const char* dim) {
    int n = 0;
    for (const auto& of : dims)
      for (const char* d : of) n += d == dim;
    return n;
  };
  for (std::size_t i = 0; i <= most_dims * sizeof...(A); ++i) {  // the last: nothing is too long
    std::int64_t size = 2;
    const ops::sizes<D...> n{{(static_cast<void>(D{}), ++size)...}};
    std::array<extents_type, sizeof...(A)> of{extents<A>(n)...};
    const char* const dim = i < most_dims * sizeof...(A) ? dims[i / most_dims][i % most_dims] : nullptr;
    if (dim != nullptr) ++of[i / most_dims][i % most_dims];
    memory_of<A...> memory{std::vector<element<A, double>>(256)...};
    std::string text;
    try {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        hc::run<Op>(backend, argument<A>(std::get<I>(memory), of[I])...);
      }(std::index_sequence_for<A...>{});
    } catch (const hd::layout_error& e) {
      text = e.what();
    }
    const bool bounds = dim == &hc::detail::dimension<ops::experts> || dim == &hc::detail::dimension<ops::offsets>;
    if (text.empty() == (dim != nullptr && (uses(dim) > 1 || bounds))) wrong.push_back(std::to_string(i) + ": " + text);
    if (!text.empty() && text.rfind("heddle: " + std::string(Op::name) + ": ", 0) != 0) wrong.push_back(text);
    if constexpr (requires { Op::turned; }) continue;  // a product says which operand does not fit its result
    // Where another argument has the size first, this one is named.
    const auto first =
        std::find_if(dims.begin(), dims.end(), [&](auto& all) { return all[0] == dim || all[1] == dim; });
    if (!text.empty() && first != dims.begin() + static_cast<std::ptrdiff_t>(i / most_dims) &&
        text.find(Op::arguments[i / most_dims]) == std::string::npos)
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
  friend bool operator<(counted a, counted b) { return ++flops, a.value < b.value; }
  counted& operator+=(counted b) { return *this = *this + b; }
};
inline counted sqrt(counted x) {
  return ++counted::flops, std::sqrt(x.value);
}
inline counted tanh(counted x) {
  return ++counted::flops, std::tanh(x.value);
}
inline counted log(counted x) {
  return ++counted::flops, std::log(x.value);
}
inline counted exp(counted x) {
  return ++counted::flops, std::exp(x.value);
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

  void operator()(ops::row_sum_squares, const v& x, v& sum) const {
    sum = of_rows();
    each([&](auto i, auto, auto at) { sum[i] += x[at] * x[at]; });
  }
  void operator()(ops::rms_norm_of_sums, const v& x, const v& w, const v& sum, S count, S eps, v& y, v& rstd) const {
    using std::sqrt;
    for (std::size_t i = 0; i < rstd.size(); ++i) rstd[i] = S(1) / sqrt(sum[i] / count + eps);
    each([&](auto i, auto j, auto at) { y[at] = x[at] * rstd[i] * w[j]; });
  }
  void operator()(ops::rms_norm_row_dot, const v& dy, const v& x, const v& w, v& sum) const {
    sum = of_rows();
    each([&](auto i, auto j, auto at) { sum[i] += dy[at] * w[j] * x[at]; });
  }
  void operator()(ops::rms_norm_backward_of_sums, const v& dy, const v& x, const v& w, const v& rstd, const v& sum,
                  S count, v& dx) const {
    v back = of_rows();
    for (std::size_t i = 0; i < back.size(); ++i) back[i] = rstd[i] * rstd[i] * sum[i] / count;
    each([&](auto i, auto j, auto at) { dx[at] += rstd[i] * (dy[at] * w[j] - x[at] * back[i]); });
  }

  using ids = std::vector<std::int32_t>;
  void picked_of(const v& logits, const ids& targets, std::int64_t first, v& picked) const {
    each([&](auto i, auto j, auto at) {
      if (targets[i] == first + static_cast<std::int64_t>(j)) picked[i] = logits[at];
    });
  }
  void operator()(ops::row_max, const v& logits, v& m) const {
    m.assign(m.size(), S(-1e300));
    each([&](auto i, auto, auto at) {
      if (m[i] < logits[at]) m[i] = logits[at];
    });
  }
  void operator()(ops::row_sum_exp, const v& logits, const v& m, v& sum) const {
    using std::exp;
    sum = of_rows();
    each([&](auto i, auto, auto at) { sum[i] += exp(logits[at] - m[i]); });
  }
  void operator()(ops::pick_target, const v& logits, const ids& targets, std::int64_t first, v& picked) const {
    picked = of_rows();
    picked_of(logits, targets, first, picked);
  }
  void operator()(ops::weighted_cross_entropy_backward, v& logits, const v& m, const v& sum, const ids& targets,
                  std::int64_t first, const v& scales) const {
    using std::exp;
    v factor = of_rows();
    for (std::size_t i = 0; i < sum.size(); ++i) factor[i] = targets[i] < 0 ? S(0) : scales[i] / sum[i];
    each([&](auto i, auto j, auto at) {
      logits[at] = exp(logits[at] - m[i]) * factor[i];
      if (targets[i] >= 0 && targets[i] == first + static_cast<std::int64_t>(j)) logits[at] = logits[at] - scales[i];
    });
  }
  void operator()(ops::cross_entropy_backward, v& logits, const v& m, const v& sum, const ids& targets,
                  std::int64_t first, S scale) const {
    (*this)(ops::weighted_cross_entropy_backward{}, logits, m, sum, targets, first, v(m.size(), scale));
  }
  void operator()(ops::capped_cross_entropy_backward, v& logits, const v& m, const v& sum, const ids& targets,
                  std::int64_t first, S scale, S cap) const {
    const v before = logits;
    (*this)(ops::cross_entropy_backward{}, logits, m, sum, targets, first, scale);
    each([&](auto, auto, auto at) {
      const S part = before[at] / cap;
      logits[at] = logits[at] * (S(1) - part * part);
    });
  }
  void operator()(ops::add_to_softmax, const v& logits, const ids& targets, std::int64_t first, v& m, v& sum,
                  v& picked) const {
    using std::exp;
    const v before = m;
    each([&](auto i, auto, auto at) {
      if (m[i] < logits[at]) m[i] = logits[at];
    });
    for (std::size_t i = 0; i < m.size(); ++i) sum[i] = sum[i] * exp(before[i] - m[i]);
    each([&](auto i, auto, auto at) { sum[i] += exp(logits[at] - m[i]); });
    picked_of(logits, targets, first, picked);
  }
  void operator()(ops::embedding, const ids& of, const v& table, std::int64_t first, v& out) const {
    const auto words = static_cast<std::int64_t>(table.size()) / columns;
    each([&](auto i, auto j, auto at) {
      const std::int64_t row = of[i] - first;
      out[at] = row < 0 || row >= words ? S(0) : table[static_cast<std::size_t>(row * columns) + j];
    });
  }
  void operator()(ops::embedding_backward, const ids& of, const v& dout, std::int64_t first, v& dtable) const {
    const auto words = static_cast<std::int64_t>(dtable.size()) / columns;
    each([&](auto i, auto j, auto at) {
      const std::int64_t row = of[i] - first;
      if (row >= 0 && row < words) dtable[static_cast<std::size_t>(row * columns) + j] += dout[at];
    });
  }
  // GELU is x / (1 + exp(-z)) with this z and, for its derivative, slope.
  static S inner(S x) { return S(2 * std::sqrt(2 / std::acos(-1.0))) * (x + S(0.044715) * x * x * x); }
  static S slope(S x) { return S(2 * std::sqrt(2 / std::acos(-1.0))) * (S(1) + S(3 * 0.044715) * x * x); }
  void operator()(ops::gelu, const v& x, v& y) const {
    using std::exp;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * (S(1) / (S(1) + exp(S(-1) * inner(x[i]))));
  }
  void operator()(ops::gelu_backward, const v& x, const v& dy, v& dx) const {
    using std::exp;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const S s = S(1) / (S(1) + exp(S(-1) * inner(x[i])));
      dx[i] = dy[i] * (s + x[i] * s * (S(1) - s) * slope(x[i]));
    }
  }
  void operator()(ops::soft_cap, const v& x, S cap, v& y) const {
    using std::tanh;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = cap * tanh(x[i] / cap);
  }
  void operator()(ops::soft_cap_backward, const v& x, const v& dy, S cap, v& dx) const {
    using std::tanh;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const S t = tanh(x[i] / cap);
      dx[i] = dy[i] * (S(1) - t * t);
    }
  }
  void operator()(ops::add, const v& a, const v& b, v& c) const {
    for (std::size_t i = 0; i < a.size(); ++i) c[i] = a[i] + b[i];
  }
  void operator()(ops::scale, v& x, S factor) const {
    for (S& e : x) e = e * factor;
  }
  void operator()(ops::fill, v& x, S value) const { std::fill(x.begin(), x.end(), value); }
  void operator()(ops::copy, const v& x, v& y) const { y = x; }
  void operator()(ops::cast<float>, const v& x, std::vector<float>& y) const {
    if constexpr (std::is_same_v<S, double>)
      std::transform(x.begin(), x.end(), y.begin(), [](S e) { return static_cast<float>(e); });
  }
  void operator()(ops::add_bias, v& y, const v& b) const {
    each([&](auto, auto j, auto at) { y[at] += b[j]; });
  }
  void operator()(ops::add_bias_backward, const v& dy, v& db) const {
    each([&](auto, auto j, auto at) { db[j] += dy[at]; });
  }
  void operator()(ops::gated<hc::silu>, const v& gate, const v& up, v& h) const {
    using std::exp;
    for (std::size_t i = 0; i < h.size(); ++i) h[i] = gate[i] * (S(1) / (S(1) + exp(S(-1) * gate[i]))) * up[i];
  }
  void operator()(ops::gated_backward<hc::silu>, const v& gate, const v& up, const v& dh, v& dgate, v& dup) const {
    using std::exp;
    for (std::size_t i = 0; i < dh.size(); ++i) {
      const S s = S(1) / (S(1) + exp(S(-1) * gate[i]));
      dgate[i] = dh[i] * up[i] * (s + gate[i] * s * (S(1) - s));
      dup[i] = dh[i] * (gate[i] * s);
    }
  }
  static double number(double x) { return x; }
  template <class C>
  static double number(const C& x) {
    return x.value;
  }
  void operator()(ops::sum_of_squares, const v& x, double& out) const {
    S sum(0);
    for (const S& e : x) sum += e * e;
    out += number(sum);
  }
  void operator()(ops::count_nonfinite, const v& x, double& out) const {
    for (const S& e : x) out += std::isfinite(number(e)) ? 0 : 1;
  }
  void operator()(ops::squared_error, const v& x, const v& target, double& out) const {
    S sum(0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const S off = x[i] - target[i];
      sum += off * off;
    }
    out += number(sum);
  }
  void operator()(ops::squared_error_backward, v& x, const v& target, S scale) const {
    const S by = S(2) * scale;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = by * (x[i] - target[i]);
  }
  void operator()(ops::cross_entropy_loss, const v& m, const v& sum, const v& picked, const ids& targets,
                  double& out) const {
    using std::log;
    S loss(0);
    for (std::size_t i = 0; i < m.size(); ++i)
      if (targets[i] >= 0) loss += log(sum[i]) + (m[i] - picked[i]);
    out += number(loss);
  }
  void operator()(ops::rescale_softmax, const v& before, const v& m, v& sum) const {
    using std::exp;
    for (std::size_t i = 0; i < m.size(); ++i) sum[i] = sum[i] * exp(before[i] - m[i]);
  }
};

// An argument with some numbers; ids from the first one on, which is 1.
template <class A, class S, class Sizes>
std::vector<element<A, S>> numbers(const Sizes& n, int seed) {
  using E = element<A, S>;
  const extents_type of = extents<A>(n);
  const std::int64_t count = A::dims[0] == nullptr ? 1 : A::dims[1] == nullptr ? of[0] : of[0] * of[1];
  std::vector<E> x;
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_integral_v<E>)
      x.push_back(static_cast<E>(A::dims[0] == nullptr ? 1 : i + 1));
    else
      x.push_back(E(0.5 + 0.4 * std::sin(static_cast<double>(7 * i + seed))));
  }
  return x;
}
template <class A, class M>
auto& given(M& memory) {
  if constexpr (A::dims[0] == nullptr)
    return memory[0];
  else
    return memory;
}
template <class S, class... D>
definition<S> definition_of(const ops::sizes<D...>& n) {
  return {n.extents.front(), n.extents.back()};
}

// The greatest difference between what the host computes and the definition.
template <class Op, class... A>
double difference(hc::host<>& backend, const typename Op::dims& n, ops::signature<A...>*) {
  auto seed = [last = 0]() mutable { return ++last; };
  memory_of<A...> expected{numbers<A, double>(n, seed())...}, got = expected;
  double most = 0;
  const auto compare = [&](const auto& x, const auto& y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  };
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    definition_of<double>(n)(Op{}, given<A>(std::get<I>(expected))...);
    hc::run<Op>(backend, argument<A>(std::get<I>(got), extents<A>(n))...);
    (compare(std::get<I>(got), std::get<I>(expected)), ...);
  }(std::index_sequence_for<A...>{});
  return most;
}
// How many additions, multiplications, comparisons and exponentials the definition takes.
template <class Op, class... A>
std::int64_t counted_flops(const typename Op::dims& n, ops::signature<A...>*) {
  auto seed = [last = 0]() mutable { return ++last; };
  std::tuple<std::vector<element<A, counted>>...> x{numbers<A, counted>(n, seed())...};
  counted::flops = 0;
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    definition_of<counted>(n)(Op{}, given<A>(std::get<I>(x))...);
  }(std::index_sequence_for<A...>{});
  return counted::flops;
}
// Three rows and so many columns; of operations without columns so many rows.
template <class Sizes>
Sizes sizes_of(Sizes n, std::int64_t columns) {
  n.extents.fill(3);
  n.extents.back() = columns;
  return n;
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
  const auto check = [&]<class Op>(std::type_identity<Op>) {
    const auto wrong = unchecked_sizes<Op>(backend, static_cast<typename Op::takes*>(nullptr),
                                           static_cast<typename Op::dims*>(nullptr));
    INFO(Op::name);
    CHECK(wrong == std::vector<std::string>{});
  };
  each_of(all_operations{}, check);
  each_of(products_of<hc::transpose::no>{}, check);
  each_of(products_of<hc::transpose::yes>{}, check);
}

TEST_CASE("operations are their definitions, which take as many flops as they say", "[compute][operations]") {
  using namespace operations_of_tests;
  hc::host<> backend(2);
  each_of(all_operations{}, [&]<class Op>(std::type_identity<Op>) {
    auto* const takes = static_cast<typename Op::takes*>(nullptr);
    INFO(Op::name);
    for (const std::int64_t columns : {1, 5, 37}) {
      const auto n = sizes_of(typename Op::dims{}, columns), more = sizes_of(typename Op::dims{}, columns + 1);
      CHECK(difference<Op>(backend, n, takes) < 1e-11);
      // Those of each row, such as its root or its target's, are not counted: what another column takes.
      if (columns > 1)
        CHECK(counted_flops<Op>(more, takes) - counted_flops<Op>(n, takes) == Op::flops(more) - Op::flops(n));
    }
  });
  STATIC_REQUIRE(ops::matmul<>::flops({{2, 3, 5}}) == 2 * 2 * 3 * 5);
  STATIC_REQUIRE(ops::grouped_matmul<>::flops({{2, 3, 5, 7, 8}}) == 2 * 2 * 3 * 5);
  STATIC_REQUIRE(hc::bytes_moved<ops::matmul<hc::transpose::yes, hc::transpose::no, true>, hd::bf16>({{2, 3, 5}}) ==
                 2 * 10 + 2 * 15 + 2 * 4 * 6);
  STATIC_REQUIRE(hc::bytes_moved<ops::rms_norm, hd::bf16>({{2, 3}}) == 12 + 6 + 12 + 8);
  STATIC_REQUIRE(hc::bytes_moved<ops::rms_norm_backward_input, hd::bf16>({{2, 3}}) == 12 + 12 + 6 + 8 + 2 * 12);
  STATIC_REQUIRE(hc::bytes_moved<ops::layer_norm_backward_weight, float>({{2, 3}}) == 24 + 24 + 8 + 8 + 2 * 24);
  // Attention of 2 rows of 4 heads of 8 to 3 keys of 2 heads, with values of 5 and one slice.
  constexpr auto q = hc::head_rows<float>{nullptr, 2, 4, 8, 32}, k = hc::head_rows<float>{nullptr, 3, 2, 8, 16},
                 v = hc::head_rows<float>{nullptr, 3, 2, 5, 10}, out = hc::head_rows<float>{nullptr, 2, 4, 5, 20};
  const std::vector<hc::attention_slice> slices(1);
  const std::vector<float> lse(8);
  const auto n = hc::dims_of<ops::attention>(q, k, v, std::span(slices), 1.0f, out, std::span(lse), hc::key_pages{});
  CHECK(n.extents == std::array<std::int64_t, 7>{2, 4, 8, 3, 2, 5, 1});
  CHECK(hc::bytes_moved<ops::attention, hd::bf16>(n) ==
        2 * (64 + 48 + 30 + 40) + static_cast<std::int64_t>(sizeof(hc::attention_slice)) + 4 * 8);
  CHECK(hc::dims_of<ops::attention_backward>(out, q, k, v, out, std::span(lse), std::span(slices), 1.0f, q, k, v,
                                             hc::key_pages{})
            .extents == n.extents);
  CHECK(ops::attention::flops(n, 6) == 6 * 4 * (2 * 8 + 2 * 5));  // each pair: a score, and its share of the values
  CHECK(ops::attention_backward::flops(n, 6) == 2 * ops::attention::flops(n, 6));
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
