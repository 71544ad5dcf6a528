#include <heddle/layout/operations.hpp>
#include <heddle/layout/token_operations.hpp>
#include <heddle/testing/propagation_laws.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
namespace op = hd::op;

// Law: for every operator and every legal combination of layouts, what the ranks compute from their parts is what the
// result's layout says of the result of the whole. Layouts are values here; kernels are the definition, with loops.
namespace {
namespace ht = hd::testing;
using ht::law_index, ht::law_part, ht::law_call;
using dense = ht::law_tensor;

// The kernel, the shapes of the operands, and what more the law needs to know.
struct law_case : ht::propagation_case {
  ht::law_kernel compute;
  law_case(ht::law_kernel kernel, std::vector<law_index> of, law_index places_below = {}) : compute(std::move(kernel)) {
    shapes = std::move(of);
    below = std::move(places_below);
  }
  law_case&& with_merge(void (*f)(double*, const double*)) && {
    merge = f;
    return std::move(*this);
  }
  // Of operands with many dimensions, or three: there are too many combinations.
  law_case&& with_one_policy(bool all_roles = true) && {
    second_policy = false;
    identical = second_operator = all_roles;
    check_repair_of = 199;
    return std::move(*this);
  }
};
void merge_softmax(double* a, const double* b) {
  const auto m =
      hd::merge_softmax{}(hd::softmax_state<double>{a[0], a[1], a[2]}, hd::softmax_state<double>{b[0], b[1], b[2]});
  a[0] = m.largest, a[1] = m.sum, a[2] = m.value;
}
void merge_larger(double* a, const double* b) {
  const auto m = hd::take_larger{}(hd::indexed_value<double>{a[0], static_cast<std::int64_t>(a[1])},
                                   hd::indexed_value<double>{b[0], static_cast<std::int64_t>(b[1])});
  a[0] = m.value, a[1] = static_cast<double>(m.index);
}
#define CHECK_LAW(K, CASE, LEGAL, ...)                                            \
  do {                                                                            \
    const law_case checked = CASE;                                                \
    const auto r = ht::propagation_law<__VA_ARGS__, K>(checked.compute, checked); \
    INFO(#__VA_ARGS__ << ": " << r.combinations << " combinations");              \
    CHECK(r.what == "");                                                          \
    CHECK(r.cases == LEGAL);                                                      \
  } while (false)

// ---- kernels
// -------------------------------------------------------------------------------------------------------------
law_index without(law_index at, std::size_t dim) {
  at.erase(at.begin() + static_cast<std::ptrdiff_t>(dim));
  return at;
}
law_index with(law_index at, std::size_t dim, std::int64_t i) {
  at[dim] = i;
  return at;
}
template <class F>
std::vector<dense> pointwise(const law_call& c, F f) {
  dense out(c.operands[0].tensor.extents);
  for (std::size_t e = 0; e < out.values.size(); ++e) {
    std::array<double, 3> x{};
    for (std::size_t o = 0; o < c.operands.size(); ++o) x[o] = c.operands[o].tensor.values[e];
    out.values[e] = f(x);
  }
  return {out};
}
// Of an operand's element: its number in the whole tensor.
std::int64_t number_of(const law_part& p, const law_index& at) {
  std::int64_t n = 0;
  for (std::size_t d = 0; d < at.size(); ++d) n = n * p.whole[d] + p.places[d][static_cast<std::size_t>(at[d])];
  return n;
}
template <class F>
std::vector<dense> by_number(const law_call& c, F f) {
  dense out(c.operands[0].tensor.extents);
  ht::for_each_index(out.extents,
                     [&](const law_index& at) { out(at) = f(c.operands[0].tensor(at), number_of(c.operands[0], at)); });
  return {out};
}
template <class F>
std::vector<dense> reduced(const law_call& c, std::size_t dim, double start, F f) {
  dense out(without(c.operands[0].tensor.extents, dim));
  std::fill(out.values.begin(), out.values.end(), start);
  ht::for_each_index(c.operands[0].tensor.extents,
                     [&](const law_index& at) { f(out(without(at, dim)), c.operands[0].tensor(at)); });
  return {out};
}
// `f(line)` changes what lies along `dim`.
template <class F>
std::vector<dense> along(const dense& x, std::size_t dim, F f) {
  dense out = x;
  ht::for_each_index(with(x.extents, dim, 1), [&](const law_index& at) {
    std::vector<double> line;
    for (std::int64_t i = 0; i < x.extents[dim]; ++i) line.push_back(x(with(at, dim, i)));
    f(line);
    for (std::int64_t i = 0; i < x.extents[dim]; ++i) out(with(at, dim, i)) = line[static_cast<std::size_t>(i)];
  });
  return {out};
}
// Where a place of the whole lies in this part's dimension, or -1.
std::int64_t find_place(const law_part& p, std::size_t dim, double global) {
  const auto& list = p.places[dim];
  const auto it = std::find(list.begin(), list.end(), static_cast<std::int64_t>(global));
  return it == list.end() ? -1 : it - list.begin();
}
}  // namespace

TEST_CASE("elementwise operators compute with parts what they compute with the whole", "[layout][operations][law]") {
  const law_index s{5, 4};
  CHECK_LAW(1,
            (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return std::exp(x[0]); }); }, {s}, {}}),
            44, op::elementwise);
  CHECK_LAW(2,
            (law_case{[](const law_call& c) {
                        return pointwise(c, [](auto x) { return x[0] > x[1] ? x[0] : std::sin(x[1]); });
                      },
                      {s, s},
                      {}}),
            44, op::elementwise);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return -3 * x[0]; }); }, {s}, {}}),
            57, op::scale);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return 3 * x[0]; }); }, {s}, {}}), 70,
            op::scale_up);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return std::exp(x[0]); }); }, {s}, {}}),
            57, op::monotone);
  CHECK_LAW(
      2, (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return x[0] + 2 * x[1]; }); }, {s, s}, {}}),
      57, op::add);
  CHECK_LAW(2,
            (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return x[0] * x[1]; }); }, {s, s}, {}}),
            72, op::multiply);
  CHECK_LAW(
      2,
      (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return std::max(x[0], x[1]); }); }, {s, s}}),
      57, op::combine<hd::maximum>);
  CHECK_LAW(2, (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return x[0] * x[1]; }); }, {s, s}}),
            57, op::combine<hd::multiplies>);
  CHECK_LAW(3,
            (law_case{[](const law_call& c) { return pointwise(c, [](auto x) { return x[0] > 0 ? x[1] : x[2]; }); },
                      {s, s, s},
                      {3, 0, 0}}
                 .with_one_policy()),
            36, op::select);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        return by_number(c, [](double, std::int64_t n) { return std::sin(double(n)); });
                      },
                      {s},
                      {}}),
            44, op::random);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        return by_number(c, [](double x, std::int64_t n) { return n * 7 % 3 == 0 ? 0 : x; });
                      },
                      {s},
                      {}}),
            57, op::dropout);
}

namespace {
std::vector<dense> with_bias(const law_call& c, double (*f)(double, double)) {
  dense out(c.operands[0].tensor.extents);
  ht::for_each_index(
      out.extents, [&](const law_index& at) { out(at) = f(c.operands[0].tensor(at), c.operands[1].tensor({at[1]})); });
  return {out};
}
}  // namespace

TEST_CASE("operators that broadcast do too", "[layout][operations][law]") {
  const std::vector<law_index> shapes{{5, 4}, {4}};
  CHECK_LAW(
      2,
      (law_case{[](const law_call& c) { return with_bias(c, [](double x, double y) { return x + y; }); }, shapes, {}}),
      57, op::add_of<"bh,h->bh">);
  CHECK_LAW(
      2,
      (law_case{[](const law_call& c) { return with_bias(c, [](double x, double y) { return x * y; }); }, shapes, {}}),
      72, op::multiply_of<"bh,h->bh">);
  CHECK_LAW(
      2,
      (law_case{[](const law_call& c) { return with_bias(c, [](double x, double y) { return std::exp(x * y); }); },
                shapes,
                {}}),
      44, op::elementwise_of<"bh,h->bh">);
}

TEST_CASE("reductions give partial values of their operator", "[layout][operations][law]") {
  const std::vector<law_index> shapes{{5, 4, 3}};
  CHECK_LAW(
      1,
      (law_case{[](const law_call& c) { return reduced(c, 1, 0, [](double& a, double x) { a += x; }); }, shapes, {}}),
      93, op::reduce<hd::plus, 1>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        return reduced(c, 1, -INFINITY, [](double& a, double x) { a = std::max(a, x); });
                      },
                      shapes}),
            93, op::reduce<hd::maximum, 1>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) { return reduced(c, 0, 1, [](double& a, double x) { a *= x; }); }, shapes}),
            93, op::reduce<hd::multiplies, 0>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        auto out = reduced(c, 2, 0, [](double& a, double x) { a += x; });
                        for (double& e : out[0].values) e /= static_cast<double>(c.operands[0].whole[2]);
                        return out;
                      },
                      shapes,
                      {}}),
            93, op::mean<2>);
  CHECK_LAW(
      1,
      (law_case{
          [](const law_call& c) { return reduced(c, 0, 0, [](double& a, double x) { a += x * x; }); }, shapes, {}}),
      76, op::sum_of_squares<0>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        dense out(without(c.operands[0].tensor.extents, 1), 2);
                        const hd::indexed_value<double> none;
                        for (std::size_t e = 0; e < out.values.size(); e += 2)
                          out.values[e] = none.value, out.values[e + 1] = 1e6;
                        ht::for_each_index(c.operands[0].tensor.extents, [&](const law_index& at) {
                          const double mine[]{
                              c.operands[0].tensor(at),
                              static_cast<double>(c.operands[0].places[1][static_cast<std::size_t>(at[1])])};
                          merge_larger(&out(without(at, 1)), mine);
                        });
                        return std::vector<dense>{out};
                      },
                      shapes}
                 .with_merge(merge_larger)),
            76, op::largest_with_index<1>);
}

namespace {
void softmax_line(std::vector<double>& line) {
  double all = 0;
  for (double& e : line) {
    e = std::exp(e);
    all += e;
  }
  for (double& e : line) e /= all;
}
void scan_line(std::vector<double>& line) {
  for (std::size_t i = 1; i < line.size(); ++i) line[i] += line[i - 1];
}
void norm_line(std::vector<double>& line) {
  double mean = 0, squares = 1;
  for (const double e : line) mean += e / static_cast<double>(line.size());
  for (double& e : line) e -= mean;
  for (const double e : line) squares += e * e;
  for (double& e : line) e /= std::sqrt(squares);
}
void turn_line(std::vector<double>& line) {
  for (std::size_t i = 0, half = line.size() / 2; i < half; ++i) {
    const double a = line[i], b = line[i + half];
    line[i] = 0.6 * a - 0.8 * b;
    line[i + half] = 0.8 * a + 0.6 * b;
  }
}
std::vector<dense> sorted(const law_call& c, std::int64_t keep) {
  const law_part& x = c.operands[0];
  dense values(with(x.tensor.extents, 1, std::min(keep, x.tensor.extents[1]))), where(values.extents);
  ht::for_each_index(with(x.tensor.extents, 1, 1), [&](const law_index& at) {
    std::vector<std::pair<double, double>> line;
    for (std::int64_t i = 0; i < x.tensor.extents[1]; ++i)
      line.emplace_back(-x.tensor(with(at, 1, i)), static_cast<double>(i));
    std::sort(line.begin(), line.end());
    for (std::int64_t i = 0; i < values.extents[1]; ++i) {
      values(with(at, 1, i)) = -line[static_cast<std::size_t>(i)].first;
      where(with(at, 1, i)) = line[static_cast<std::size_t>(i)].second;
    }
  });
  return {values, where};
}
std::vector<dense> scaled_norm(const law_call& c) {
  auto out = along(c.operands[0].tensor, 1, norm_line);
  ht::for_each_index(out[0].extents, [&](const law_index& at) {
    out[0](at) = out[0](at) * c.operands[1].tensor({at[1]}) + c.operands[2].tensor({at[1]});
  });
  return out;
}
std::vector<dense> joined_lines(const law_call& c) {
  law_index sizes = c.operands[0].tensor.extents;
  for (std::size_t o = 1; o < c.operands.size(); ++o) sizes[1] += c.operands[o].tensor.extents[1];
  dense out(sizes);
  std::int64_t from = 0;
  for (const law_part& p : c.operands) {
    ht::for_each_index(p.tensor.extents, [&](const law_index& at) { out(with(at, 1, at[1] + from)) = p.tensor(at); });
    from += p.tensor.extents[1];
  }
  return {out};
}
}  // namespace

TEST_CASE("operators along a whole dimension", "[layout][operations][law]") {
  const std::vector<law_index> shapes{{5, 4, 3}};
  CHECK_LAW(1, (law_case{[](const law_call& c) { return along(c.operands[0].tensor, 1, softmax_line); }, shapes, {}}),
            44, op::softmax<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return along(c.operands[0].tensor, 1, scan_line); }, shapes, {}}), 57,
            op::cumsum<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return sorted(c, 9); }, shapes, {}}), 44, op::sort<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return sorted(c, 2); }, shapes, {}}), 44, op::top_k<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return std::vector<dense>{sorted(c, 2)[0]}; }, shapes, {}}), 44,
            op::chosen_of<1, 2>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return along(c.operands[0].tensor, 1, turn_line); }, shapes, {}}), 57,
            op::turned_pairs<1>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        dense out = sorted(c, 1)[1];
                        out.extents = without(out.extents, 1);
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            44, op::argmax<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return along(c.operands[0].tensor, 1, norm_line); }, {{5, 4}}, {}}),
            20, op::layer_norm<1>);
  CHECK_LAW(3, (law_case{scaled_norm, {{5, 4}, {4}, {4}}}.with_one_policy()), 10, op::layer_norm<1>);
  CHECK_LAW(2, (law_case{joined_lines, {{5, 4}, {5, 3}}, {}}), 38, op::concat<1>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        dense out(with(c.operands[0].tensor.extents, 1, 2));
                        ht::for_each_index(out.extents, [&](const law_index& at) {
                          out(at) = c.operands[0].tensor(with(at, 1, at[1] + 1));
                        });
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            70, op::slice<1>);
  CHECK_LAW(1,
            (law_case{[](const law_call& c) {
                        const auto& s = c.operands[0].tensor.extents;
                        dense out({s[2], s[0], s[1]});
                        ht::for_each_index(out.extents, [&](const law_index& at) {
                          out(at) = c.operands[0].tensor({at[1], at[2], at[0]});
                        });
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            110, op::transpose<2, 0, 1>);
}

namespace {
std::vector<dense> rows_by_id(const law_call& c) {
  const law_part& table_part = c.operands[0];
  dense out({c.operands[1].tensor.extents[0], table_part.tensor.extents[1]});
  ht::for_each_index(out.extents, [&](const law_index& at) {
    const auto row = find_place(table_part, 0, c.operands[1].tensor({at[0]}));
    out(at) = row < 0 ? 0 : table_part.tensor({row, at[1]});
  });
  return {out};
}
std::vector<dense> written(const law_call& c) {
  dense out = c.operands[0].tensor;
  for (std::int64_t i = 0; i < c.operands[1].tensor.extents[0]; ++i) {
    const auto row = find_place(c.operands[0], 0, c.operands[1].tensor({i}));
    for (std::int64_t j = 0; row >= 0 && j < out.extents[1]; ++j) out({row, j}) = c.operands[2].tensor({i, j});
  }
  return {out};
}
std::vector<dense> summed_at(const law_call& c) {
  dense out({6, c.operands[0].tensor.extents[1]});
  ht::for_each_index(c.operands[0].tensor.extents, [&](const law_index& at) {
    out({static_cast<std::int64_t>(c.operands[1].tensor({at[0]})), at[1]}) += c.operands[0].tensor(at);
  });
  return {out};
}
// As on a real machine: three all-reduces, of maxima, of sums of exponentials, of the target's logit.
std::vector<dense> losses(const law_call& c) {
  dense out(c.operands[1].tensor.extents);
  for (std::int64_t i = 0; i < out.extents[0]; ++i) {
    double largest = -INFINITY, all = 0, target = 0;
    for (const law_part& p : c.combined)
      for (std::int64_t k = 0; k < p.tensor.extents[1]; ++k) largest = std::max(largest, p.tensor({i, k}));
    for (const law_part& p : c.combined)
      for (std::int64_t k = 0; k < p.tensor.extents[1]; ++k) all += std::exp(p.tensor({i, k}) - largest);
    for (const law_part& p : c.combined)
      if (const auto k = find_place(p, 1, c.operands[1].tensor({i})); k >= 0) target += p.tensor({i, k});
    out({i}) = std::log(all) + largest - target;
  }
  return {out};
}
dense states(const law_call& c) {
  const auto &q = c.operands[0].tensor, &k = c.operands[1].tensor, &v = c.operands[2].tensor;
  dense out({q.extents[0], q.extents[1], q.extents[2], v.extents[3]}, 3);
  ht::for_each_index(out.extents, [&](const law_index& at) {
    double* state = &out(at);
    state[0] = -INFINITY;
    for (std::int64_t t = 0; t < k.extents[2]; ++t) {
      double score = 0;
      for (std::int64_t d = 0; d < q.extents[3]; ++d)
        score += q({at[0], at[1], at[2], d}) * k({at[0], at[1], t, d}) / 4;
      const double one[]{score, 1, v({at[0], at[1], t, at[3]})};
      merge_softmax(state, one);
    }
  });
  return out;
}
std::vector<dense> attended(const law_call& c) {
  const dense s = states(c);
  dense out(s.extents);
  for (std::size_t e = 0; e < out.values.size(); ++e) out.values[e] = s.values[3 * e + 2] / s.values[3 * e + 1];
  return {out};
}
}  // namespace

TEST_CASE("operators that look elements up", "[layout][operations][law]") {
  CHECK_LAW(2, (law_case{rows_by_id, {{7, 4}, {5}}, {0, 7}}), 93, op::embedding<1>);
  CHECK_LAW(2, (law_case{rows_by_id, {{7, 4}, {5}}, {0, 7}}), 106, op::gather<0>);
  CHECK_LAW(3, (law_case{written, {{7, 4}, {5}, {5, 4}}, {0, 7, 0}}.with_one_policy()), 36, op::scatter<0>);
  CHECK_LAW(2, (law_case{summed_at, {{5, 4}, {5}}, {0, 6}}), 57, op::scatter_add<0>);
  CHECK_LAW(2, (law_case{losses, {{5, 7}, {5}}, {0, 7}}), 44, op::cross_entropy<1>);
}

TEST_CASE("attention, whole and over split keys", "[layout][operations][law]") {
  const std::vector<law_index> shapes{{2, 3, 4, 2}, {2, 3, 5, 2}, {2, 3, 5, 3}};
  CHECK_LAW(3, (law_case{attended, shapes}.with_one_policy(false)), 40, op::attention);
  CHECK_LAW(3,
            (law_case{[](const law_call& c) { return std::vector<dense>{states(c)}; }, shapes}
                 .with_one_policy(false)
                 .with_merge(merge_softmax)),
            41, op::attention_state);
}

namespace {
std::vector<dense> padded(const law_call& c, double constant) {
  const dense& x = c.operands[0].tensor;
  dense out(with(x.extents, 1, x.extents[1] + 3));
  std::fill(out.values.begin(), out.values.end(), constant);
  ht::for_each_index(x.extents, [&](const law_index& at) { out(with(at, 1, at[1] + 1)) = x(at); });
  return {out};
}
// Stride 1, one zero before and after in each dimension of space.
std::vector<dense> convolved(const law_call& c) {
  const dense &x = c.operands[0].tensor, &w = c.operands[1].tensor;
  law_index extents{x.extents[0], w.extents[0]};
  for (std::size_t d = 2; d < x.extents.size(); ++d) extents.push_back(x.extents[d] + 3 - w.extents[d]);
  dense out(extents);
  ht::for_each_index(w.extents, [&](const law_index& k) {
    ht::for_each_index(with(out.extents, 1, 1), [&](const law_index& to) {
      law_index from = with(to, 1, k[1]);
      bool inside = true;
      for (std::size_t d = 2; d < from.size(); ++d) {
        from[d] += k[d] - 1;
        inside = inside && from[d] >= 0 && from[d] < x.extents[d];
      }
      if (inside) out(with(to, 1, k[0])) += x(from) * w(k);
    });
  });
  return {out};
}
}  // namespace

TEST_CASE("padding and convolutions", "[layout][operations][law]") {
  CHECK_LAW(1, (law_case{[](const law_call& c) { return padded(c, 2); }, {{5, 4, 3}}}), 44, op::pad<1>);
  CHECK_LAW(1, (law_case{[](const law_call& c) { return padded(c, 0); }, {{5, 4, 3}}}), 57, op::pad_zeros<1>);
  // Batch, channels in (of both: a sum) and channels out; sums in one operand.
  CHECK_LAW(2, (law_case{convolved, {{4, 5, 6}, {3, 5, 3}}}), 112, op::convolution<1>);
  CHECK_LAW(2, (law_case{convolved, {{3, 2, 3, 4}, {3, 2, 3, 2}}}.with_one_policy(false)), 39, op::convolution<2>);
}

namespace {
std::vector<dense> same_elements(const law_call& c) {
  dense out;
  out.values = c.operands[0].tensor.values;
  out.extents = c.results.empty() ? law_index{} : c.results[0];
  return {out};
}
template <class From, class To>
struct checked_reshape;
template <std::int64_t... F, std::int64_t... T>
struct checked_reshape<hd::shape<F...>, hd::shape<T...>> {
  static std::vector<dense> compute(const law_call& c) {
    auto out = same_elements(c);
    if (out[0].extents.empty()) out[0].extents = {T...};  // the whole
    return out;
  }
  static ht::propagation_report check() {
    law_case c{&compute, {{F...}}};
    c.check_repair_of = 1;
    return ht::propagation_law<op::reshape<hd::shape<F...>, hd::shape<T...>>>(c.compute, c);
  }
};
}  // namespace

TEST_CASE("reshapes keep the splits that stay intervals", "[layout][operations][law]") {
  const auto sound = [](const ht::propagation_report& r, int legal) {
    CHECK(r.what == "");
    CHECK(r.cases == legal);
  };
  using hd::shape;
  // Axes of 2 and 3 ranks. Of [12, 8] -> [16, 6], which DTensor's view got wrong, only the leading 4 of both is left to
  // split.
  sound(checked_reshape<shape<12, 8>, shape<12, 8>>::check(), 70);
  sound(checked_reshape<shape<5, 12>, shape<5, 3, 4>>::check(), 45);
  sound(checked_reshape<shape<12, 8>, shape<16, 6>>::check(), 18);
  sound(checked_reshape<shape<12>, shape<2, 6>>::check(), 19);
  sound(checked_reshape<shape<2, 6>, shape<12>>::check(), 19);
  sound(checked_reshape<shape<4, 6>, shape<24>>::check(), 18);
  sound(checked_reshape<shape<24>, shape<4, 6>>::check(), 18);
  sound(checked_reshape<shape<2, 3, 4>, shape<6, 4>>::check(), 45);
  sound(checked_reshape<shape<6, 4>, shape<2, 3, 4>>::check(), 45);
  sound(checked_reshape<shape<6, 1, 4>, shape<6, 4>>::check(), 70);
  sound(checked_reshape<shape<0, 4>, shape<0, 2, 2>>::check(), 44);
}

TEST_CASE("reshapes find the factors that two shapes share", "[layout][operations]") {
  using hd::detail::factors_of_reshape;
  const auto f = factors_of_reshape(std::array<std::int64_t, 2>{12, 8}, std::array<std::int64_t, 2>{16, 6});
  CHECK(f.count == 1);  // the leading 4; what follows has no common boundary
  CHECK(f.list[0].size == 4);
  const auto g = factors_of_reshape(std::array<std::int64_t, 3>{2, 6, 5}, std::array<std::int64_t, 3>{4, 3, 5});
  CHECK(g.count == 4);
  CHECK(g.list[1].size == 2);
  CHECK(g.list[1].from == 1);
  CHECK(g.list[1].to == 0);
  CHECK(g.list[3].plain);
}

namespace {
using hd::dp, hd::tp;
template <class M>
struct typed {
  using whole = hd::layout<M>;
  using row = hd::layout<M, hd::shard<0, tp>>;
  using column = hd::layout<M, hd::shard<1, tp>>;
  using rows = hd::layout<M, hd::shard<0, dp>>;
  using sum = hd::layout<M, hd::partial<hd::plus, tp>>;
  using same = hd::layout<M, hd::identical<tp>>;
  using own_values = hd::layout<M, hd::varying<tp>>;
  template <class... Ts>
  using list = hd::type_list<Ts...>;

  static constexpr bool hold() {
    return std::same_as<hd::propagate_through<op::top_k<0>, column>, list<column, column>> &&
           std::same_as<hd::propagate_through<op::reduce<hd::plus, 0>, column>, row> &&
           std::same_as<hd::propagate_through<op::embedding<2>, row, rows>,
                        hd::layout<M, hd::shard<0, dp>, hd::partial<hd::plus, tp>>> &&
           // a loss: identical over the axis that splits classes, partial over the one that splits tokens
           std::same_as<
               hd::propagate_through<op::mean<0>,
                                     hd::propagate_through<op::cross_entropy<1>,
                                                           hd::layout<M, hd::shard<0, dp>, hd::shard<1, tp>>, rows>>,
               hd::layout<M, hd::partial<hd::plus, dp>, hd::identical<tp>>> &&
           // identical meets only identical, varying only replicated
           std::same_as<hd::propagate_through<op::add, same, same>, same> &&
           !hd::can_propagate_through<op::add, same, whole> &&
           std::same_as<hd::propagate_through<op::add, own_values, whole>, own_values> &&
           !hd::can_propagate_through<op::add, own_values, row> &&
           !hd::can_propagate_through<op::add, own_values, sum> &&
           std::same_as<hd::propagate<"mk,kn->mn", own_values, whole>, own_values> &&
           // split policies: operands agree, reductions take any
           !hd::can_propagate_through<op::add, row, hd::layout<M, hd::shard<0, hd::split::zigzag, tp>>> &&
           std::same_as<hd::propagate_through<op::add, hd::layout<M, hd::shard<0, hd::split::zigzag, tp>>,
                                              hd::layout<M, hd::shard<0, hd::split::zigzag, tp>>>,
                        hd::layout<M, hd::shard<0, hd::split::zigzag, tp>>> &&
           std::same_as<hd::propagate<"bi,io->bo", hd::layout<M, hd::shard<1, hd::split::block_cyclic<4>, tp>>,
                                      hd::layout<M, hd::shard<0, hd::split::block_cyclic<4>, tp>>>,
                        sum> &&
           // the forbidden four, as questions
           !hd::can_propagate_through<op::elementwise, sum> && !hd::can_propagate_through<op::multiply, sum, sum> &&
           !hd::can_propagate_through<op::add, sum, whole> && !hd::can_propagate_through<op::add, sum, row>;
  }
};
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using one = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 1>>;
template <class... Ls>
using list = hd::type_list<Ls...>;
}  // namespace

TEST_CASE("operators type their results, on static and dynamic meshes", "[layout][operations][law]") {
  STATIC_REQUIRE(typed<mesh>::hold());
  STATIC_REQUIRE(typed<some>::hold());
  const hd::layout<some, hd::shard<1, tp>> x{some{2, 3}};
  CHECK(to_string(hd::propagated_through<op::reduce<hd::maximum, 1>>(x)) == "partial<maximum, tp> on dp=2 x tp=3");
}

TEST_CASE("what a layout says about an axis of one rank is never a mistake", "[layout][operations][law]") {
  using l = typed<one>;
  STATIC_REQUIRE(
      std::same_as<hd::propagate<"mk,kn->mn", l::column, l::row>, l::sum>);  // where it is none anyway, as elsewhere
  STATIC_REQUIRE(std::same_as<hd::propagate<"mk,kn->mn", l::sum, l::sum>, l::whole>);
  STATIC_REQUIRE(std::same_as<hd::propagate_through<op::softmax<1>, l::column>, l::whole>);
  STATIC_REQUIRE(std::same_as<hd::propagate_through<op::add, l::same, l::own_values>, l::whole>);
  STATIC_REQUIRE(std::same_as<hd::propagate_through<op::add, hd::layout<one, hd::shard<0, tp, dp>>, l::rows>, l::rows>);
}

TEST_CASE("auto_redistribute takes the repair with the fewest bytes", "[layout][operations][repair]") {
  using l = typed<mesh>;
  using product = op::einsum<"mk,kn->mn">;
  using sliced = hd::repaired<product, l::column, l::whole>;  // a slice costs nothing
  STATIC_REQUIRE(std::same_as<sliced::operands, list<l::column, l::row>>);
  STATIC_REQUIRE(std::same_as<sliced::result, l::sum>);
  using fits = hd::repaired<product, l::column, l::row>;
  STATIC_REQUIRE(std::same_as<fits::operands, list<l::column, l::row>>);
  STATIC_REQUIRE(
      std::same_as<hd::repaired<op::add, l::sum, l::whole>::operands, list<l::sum, l::sum>>);  // keep_on_owner
  STATIC_REQUIRE(std::same_as<hd::repaired<op::add, l::same, l::whole>::operands, list<l::whole, l::whole>>);
  STATIC_REQUIRE(std::same_as<hd::repaired<op::softmax<1>, l::column>::operands, list<l::row>>);  // all_to_all
  STATIC_REQUIRE(
      std::same_as<hd::repaired<op::elementwise_of<"ij->ij">, l::sum>::operands, list<l::row>>);  // reduce_scatter
  STATIC_REQUIRE(std::same_as<hd::repaired<product, l::sum, l::sum>::operands, list<l::sum, l::whole>>);
  STATIC_REQUIRE(std::same_as<hd::propagate<"mk,kn->mn", hd::auto_redistribute, l::sum, l::sum>, l::sum>);
  using swapped = hd::repaired<op::add, hd::layout<mesh, hd::shard<0, dp, tp>>, hd::layout<mesh, hd::shard<0, tp, dp>>>;
  STATIC_REQUIRE(swapped::operands::size == 2);
  STATIC_REQUIRE(hd::can_propagate_through<op::top_k<0>, l::column>);
  STATIC_REQUIRE(std::same_as<hd::repaired<op::top_k<1>, l::column>::result, list<l::row, l::row>>);
  using viewed = op::reshape<hd::shape<12, 8>, hd::shape<16, 6>>;
  STATIC_REQUIRE(std::same_as<hd::propagate_through<viewed, hd::auto_redistribute, l::column>, l::row>);
}
