#include <heddle/layout/operations.hpp>

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
using hd::detail::axis_role, hd::detail::axis_use;
using table = hd::detail::axis_table<2>;
using index_list = std::vector<std::int64_t>;
constexpr std::array<int, 2> extents{2, 3};
constexpr int world = 6;
int coordinate(std::size_t axis, int rank) {
  return axis == 0 ? rank / 3 : rank % 3;
}

// Row-major, each element `width` numbers.
struct dense {
  index_list sizes;
  std::vector<double> v;
  int width = 1;

  dense() = default;
  explicit dense(index_list s, int w = 1) : sizes(std::move(s)), width(w) {
    std::int64_t n = w;
    for (const auto e : sizes) n *= e;
    v.assign(static_cast<std::size_t>(n), 0);
  }
  std::size_t flat(const index_list& at) const {
    std::int64_t i = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) i = i * sizes[d] + at[d];
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(width);
  }
  double& operator()(const index_list& at) { return v[flat(at)]; }
  double operator()(const index_list& at) const { return v[flat(at)]; }
};
template <class F>
void each(const index_list& sizes, F&& f) {
  for (const auto s : sizes)
    if (s == 0) return;
  index_list at(sizes.size(), 0);
  for (;;) {
    f(at);
    std::size_t d = sizes.size();
    for (; d-- > 0;) {
      if (++at[d] < sizes[d]) break;
      at[d] = 0;
    }
    if (d == std::size_t(-1)) return;
  }
}

// What a rank knows of an operand: its part, where each of its places is in the whole, and the extents of the whole.
struct part {
  dense t;
  std::vector<index_list> place;
  index_list whole;
};
struct call {
  std::vector<part> in;
  std::vector<std::vector<part>> peers;  // operand 0 of the ranks that the operator may combine over
  std::vector<index_list> want;          // the sizes of the results
};
using kernel = std::vector<dense> (*)(const call&);

enum merge_rule { sum, maximum, product, softmax, larger };
void merge_into(double* a, const double* b, merge_rule rule) {
  if (rule == sum) a[0] += b[0];
  if (rule == product) a[0] *= b[0];
  if (rule == maximum) a[0] = std::max(a[0], b[0]);
  if (rule == softmax) {
    const auto m =
        hd::merge_softmax{}(hd::softmax_state<double>{a[0], a[1], a[2]}, hd::softmax_state<double>{b[0], b[1], b[2]});
    a[0] = m.largest, a[1] = m.sum, a[2] = m.value;
  }
  if (rule == larger) {
    const auto m = hd::take_larger{}(hd::indexed_value<double>{a[0], static_cast<std::int64_t>(a[1])},
                                     hd::indexed_value<double>{b[0], static_cast<std::int64_t>(b[1])});
    a[0] = m.value, a[1] = static_cast<double>(m.index);
  }
}

index_list places(const table& t, int dim, std::int64_t n, int rank) {
  index_list out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  for (int level = 0; level < 2; ++level)
    for (std::size_t a = 0; a < 2; ++a) {
      const axis_use& u = t.use[a];
      if (u.role != axis_role::sharded || u.dim != dim || u.level != level) continue;
      const auto size = static_cast<std::int64_t>(out.size());
      index_list kept;
      for (std::int64_t l = 0; l < u.how->size(size, extents[a], coordinate(a, rank)); ++l)
        kept.push_back(out[static_cast<std::size_t>(u.how->to_global(size, extents[a], coordinate(a, rank), l))]);
      out = kept;
    }
  return out;
}
part part_of(const dense& whole, const table& t, int rank) {
  part p{{}, {}, whole.sizes};
  index_list sizes;
  for (std::size_t d = 0; d < whole.sizes.size(); ++d) {
    p.place.push_back(places(t, static_cast<int>(d), whole.sizes[d], rank));
    sizes.push_back(static_cast<std::int64_t>(p.place.back().size()));
  }
  p.t = dense(sizes, whole.width);
  each(sizes, [&](const index_list& at) {
    index_list from = at;
    for (std::size_t d = 0; d < at.size(); ++d) from[d] = p.place[d][static_cast<std::size_t>(at[d])];
    for (int w = 0; w < whole.width; ++w)
      p.t.v[p.t.flat(at) + static_cast<std::size_t>(w)] = whole.v[whole.flat(from) + static_cast<std::size_t>(w)];
  });
  return p;
}

// All layouts of a tensor on the mesh, from a set of things that an axis may do.
struct choices {
  bool identical = true;
  bool second_operator = true;
  bool second_policy = true;
};
std::vector<table> all_tables(std::size_t dims, const choices& c) {
  std::vector<axis_use> uses(1);
  if (c.identical) uses.push_back({axis_role::identical});
  uses.push_back({axis_role::partial, -1, -1, 0});
  if (c.second_operator) uses.push_back({axis_role::partial, -1, -1, 1});
  for (int d = 0; d < static_cast<int>(dims); ++d) {
    uses.push_back({axis_role::sharded, d, 0});
    if (c.second_policy)
      uses.push_back({axis_role::sharded, d, 0, -1, 1, &hd::detail::functions_of<hd::split::zigzag>});
  }
  std::vector<table> out;
  for (const axis_use& a : uses)
    for (const axis_use& b : uses) {
      if (a.role == axis_role::partial && b.role == axis_role::partial && a.op != b.op) continue;
      table t;
      t.use[0] = a;
      t.use[1] = b;
      if (a.role == axis_role::sharded && b.role == axis_role::sharded && a.dim == b.dim) {
        t.use[1].level = 1;
        out.push_back(t);
        t.use[0].level = 1;
        t.use[1].level = 0;
      }
      out.push_back(t);
    }
  return out;
}

struct law_case {
  kernel compute = nullptr;
  std::vector<index_list> shapes;
  std::vector<std::int64_t> below;  // operand o holds integers in [0, below[o]) if that is positive
  std::array<merge_rule, 2> merges{sum, maximum};
  bool combines = false;
  choices from{};
};
struct tally {
  int combinations = 0, legal = 0, wrong = 0, unrepaired = 0, sizes_wrong = 0;
};

dense random_tensor(const index_list& sizes, std::int64_t below, std::mt19937_64& random) {
  dense t(sizes);
  for (double& e : t.v)
    e = below > 0 ? static_cast<double>(random() % static_cast<std::uint64_t>(below))
                  : static_cast<double>(random() % 9) - 4;
  return t;
}

// Whether the ranks' results are what the layouts of the results promise.
bool holds(const law_case& c, const std::vector<table>& in, const table* results, std::uint64_t seed, tally& count) {
  std::mt19937_64 random{seed};
  std::vector<dense> whole;
  std::vector<std::vector<dense>> terms;  // per operand, one per place along its partial axes
  for (std::size_t o = 0; o < in.size(); ++o) {
    int copies = 1;
    merge_rule rule = sum;
    for (std::size_t a = 0; a < 2; ++a)
      if (in[o].use[a].role == axis_role::partial) {
        copies *= extents[a];
        rule = c.merges[static_cast<std::size_t>(in[o].use[a].op)];
      }
    const std::int64_t below = c.below.empty() ? 0 : c.below[o];
    if (copies > 1 && below > 0) return false;  // places never add up
    terms.emplace_back();
    for (int i = 0; i < copies; ++i) terms.back().push_back(random_tensor(c.shapes[o], below, random));
    dense all = terms.back()[0];
    for (int i = 1; i < copies; ++i)
      for (std::size_t e = 0; e < all.v.size(); ++e)
        merge_into(&all.v[e], &terms.back()[static_cast<std::size_t>(i)].v[e], rule);
    whole.push_back(all);
  }
  const auto local = [&](std::size_t o, int rank) {
    int which = 0;
    for (std::size_t a = 0; a < 2; ++a)
      if (in[o].use[a].role == axis_role::partial) which = which * extents[a] + coordinate(a, rank);
    return part_of(terms[o][static_cast<std::size_t>(which)], in[o], rank);
  };
  call global;
  for (const dense& w : whole) global.in.push_back(part_of(w, table{}, 0));
  global.peers.push_back({global.in[0]});
  global.want.resize(2);
  if (c.compute == nullptr) return false;
  const std::vector<dense> expected = c.compute(global);
  std::vector<std::vector<dense>> got;
  for (int r = 0; r < world; ++r) {
    call mine;
    for (std::size_t o = 0; o < in.size(); ++o) mine.in.push_back(local(o, r));
    mine.peers.emplace_back();
    for (int q = 0; q < world; ++q) {
      bool peer = true;
      for (std::size_t a = 0; a < 2; ++a) {
        const bool combined =
            c.combines && in[0].use[a].role == axis_role::sharded && results[0].use[a].role == axis_role::identical;
        peer = peer && (combined || coordinate(a, q) == coordinate(a, r));
      }
      if (peer) mine.peers.back().push_back(local(0, q));
    }
    for (std::size_t i = 0; i < expected.size(); ++i) mine.want.push_back(part_of(expected[i], results[i], r).t.sizes);
    got.push_back(c.compute(mine));
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (got.back()[i].sizes != mine.want[i]) {
        ++count.sizes_wrong;
        return false;
      }
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (int r = 0; r < world; ++r) {
      dense all = got[static_cast<std::size_t>(r)][i];
      bool first = true;
      merge_rule rule = sum;
      for (std::size_t a = 0; a < 2; ++a)
        if (results[i].use[a].role == axis_role::partial) {
          first = first && coordinate(a, r) == 0;
          rule = c.merges[static_cast<std::size_t>(results[i].use[a].op)];
        }
      if (!first) continue;
      for (int q = r + 1; q < world; ++q) {
        bool joins = true;
        for (std::size_t a = 0; a < 2; ++a)
          joins = joins && (results[i].use[a].role == axis_role::partial || coordinate(a, q) == coordinate(a, r));
        const auto step = static_cast<std::size_t>(all.width);
        if (joins)
          for (std::size_t e = 0; e < all.v.size(); e += step)
            merge_into(&all.v[e], &got[static_cast<std::size_t>(q)][i].v[e], rule);
      }
      const dense want = part_of(expected[i], results[i], r).t;
      for (std::size_t e = 0; e < want.v.size(); ++e)
        if (!(std::abs(all.v[e] - want.v[e]) <= 1e-9 * (1 + std::abs(want.v[e]))) && all.v[e] != want.v[e])
          return false;
    }
  return true;
}

template <class Op, std::size_t K>
tally check_law(const law_case& c, int repair_every = K > 2 ? 199 : 7) {
  std::array<int, K> ranks{};
  for (std::size_t o = 0; o < K; ++o) ranks[o] = static_cast<int>(c.shapes[o].size());
  const auto facts_of = [](merge_rule m, bool is_own) {
    return hd::detail::operator_facts{m == sum, m == maximum, is_own};
  };
  const hd::detail::rule_evaluator<Op, 2, K, 2> evaluate{
      {facts_of(c.merges[0], true), facts_of(c.merges[1], false)}, extents, hd::detail::made_rule<Op>(ranks)};
  std::vector<std::vector<table>> all;
  for (std::size_t o = 0; o < K; ++o) {
    choices from = c.from;
    all.push_back(all_tables(c.shapes[o].size(), from));
    if (c.merges[0] == softmax || c.merges[0] == larger)  // states only come out
      std::erase_if(all.back(), [](const table& t) {
        return std::any_of(t.use, t.use + 2,
                           [](const axis_use& u) { return u.role == axis_role::partial && u.op == 0; });
      });
  }
  tally count;
  std::array<std::size_t, K> at{};
  for (;;) {
    std::array<table, K> tables;
    for (std::size_t o = 0; o < K; ++o) tables[o] = all[o][at[o]];
    const auto outcome = evaluate(tables);
    const auto number = static_cast<std::uint64_t>(count.combinations++);
    if (outcome.legal()) {
      ++count.legal;
      if (!holds(c, {tables.begin(), tables.end()}, outcome.results, number + 1, count)) {
        if (count.wrong++ == 0) WARN("wrong: combination " << number << " (its number is the seed)");
      }
    } else if (number % static_cast<std::uint64_t>(repair_every) == 0) {
      const auto repair = hd::detail::find_repair(evaluate, tables, extents, evaluate.dims());
      count.unrepaired += repair.found && evaluate(repair.tables).legal() ? 0 : 1;
    }
    std::size_t o = 0;
    for (; o < K; ++o) {
      if (++at[o] < all[o].size()) break;
      at[o] = 0;
    }
    if (o == K) break;
  }
  return count;
}
#define CHECK_LAW(K, CASE, LEGAL, ...)                               \
  do {                                                               \
    const tally t = check_law<__VA_ARGS__, K>(CASE);                 \
    INFO(#__VA_ARGS__ << ": " << t.combinations << " combinations"); \
    CHECK(t.wrong == 0);                                             \
    CHECK(t.sizes_wrong == 0);                                       \
    CHECK(t.unrepaired == 0);                                        \
    CHECK(t.legal == LEGAL);                                         \
  } while (false)

// ---- kernels
// -------------------------------------------------------------------------------------------------------------
index_list without(index_list at, std::size_t dim) {
  at.erase(at.begin() + static_cast<std::ptrdiff_t>(dim));
  return at;
}
index_list with(index_list at, std::size_t dim, std::int64_t i) {
  at[dim] = i;
  return at;
}
template <class F>
std::vector<dense> pointwise(const call& c, F f) {
  dense out(c.in[0].t.sizes);
  for (std::size_t e = 0; e < out.v.size(); ++e) {
    std::array<double, 3> x{};
    for (std::size_t o = 0; o < c.in.size(); ++o) x[o] = c.in[o].t.v[e];
    out.v[e] = f(x);
  }
  return {out};
}
// Of an operand's element: its number in the whole tensor.
std::int64_t number_of(const part& p, const index_list& at) {
  std::int64_t n = 0;
  for (std::size_t d = 0; d < at.size(); ++d) n = n * p.whole[d] + p.place[d][static_cast<std::size_t>(at[d])];
  return n;
}
template <class F>
std::vector<dense> by_number(const call& c, F f) {
  dense out(c.in[0].t.sizes);
  each(out.sizes, [&](const index_list& at) { out(at) = f(c.in[0].t(at), number_of(c.in[0], at)); });
  return {out};
}
template <class F>
std::vector<dense> reduced(const call& c, std::size_t dim, double start, F f) {
  dense out(without(c.in[0].t.sizes, dim));
  std::fill(out.v.begin(), out.v.end(), start);
  each(c.in[0].t.sizes, [&](const index_list& at) { f(out(without(at, dim)), c.in[0].t(at)); });
  return {out};
}
// `f(line)` changes what lies along `dim`.
template <class F>
std::vector<dense> along(const dense& x, std::size_t dim, F f) {
  dense out = x;
  each(with(x.sizes, dim, 1), [&](const index_list& at) {
    std::vector<double> line;
    for (std::int64_t i = 0; i < x.sizes[dim]; ++i) line.push_back(x(with(at, dim, i)));
    f(line);
    for (std::int64_t i = 0; i < x.sizes[dim]; ++i) out(with(at, dim, i)) = line[static_cast<std::size_t>(i)];
  });
  return {out};
}
// Where a place of the whole lies in this part's dimension, or -1.
std::int64_t find_place(const part& p, std::size_t dim, double global) {
  const auto& list = p.place[dim];
  const auto it = std::find(list.begin(), list.end(), static_cast<std::int64_t>(global));
  return it == list.end() ? -1 : it - list.begin();
}
}  // namespace

TEST_CASE("elementwise operators compute with parts what they compute with the whole", "[layout][operations][law]") {
  const index_list s{5, 4};
  CHECK_LAW(1, (law_case{[](const call& c) { return pointwise(c, [](auto x) { return std::exp(x[0]); }); }, {s}, {}}),
            44, op::elementwise);
  CHECK_LAW(
      2,
      (law_case{[](const call& c) { return pointwise(c, [](auto x) { return x[0] > x[1] ? x[0] : std::sin(x[1]); }); },
                {s, s},
                {}}),
      44, op::elementwise);
  CHECK_LAW(1, (law_case{[](const call& c) { return pointwise(c, [](auto x) { return -3 * x[0]; }); }, {s}, {}}), 57,
            op::scale);
  CHECK_LAW(1, (law_case{[](const call& c) { return pointwise(c, [](auto x) { return 3 * x[0]; }); }, {s}, {}}), 70,
            op::scale_up);
  CHECK_LAW(1, (law_case{[](const call& c) { return pointwise(c, [](auto x) { return std::exp(x[0]); }); }, {s}, {}}),
            57, op::monotone);
  CHECK_LAW(2,
            (law_case{[](const call& c) { return pointwise(c, [](auto x) { return x[0] + 2 * x[1]; }); }, {s, s}, {}}),
            57, op::add);
  CHECK_LAW(2, (law_case{[](const call& c) { return pointwise(c, [](auto x) { return x[0] * x[1]; }); }, {s, s}, {}}),
            72, op::multiply);
  CHECK_LAW(2,
            (law_case{[](const call& c) { return pointwise(c, [](auto x) { return std::max(x[0], x[1]); }); },
                      {s, s},
                      {},
                      {maximum, sum}}),
            57, op::combine<hd::maximum>);
  CHECK_LAW(
      2,
      (law_case{
          [](const call& c) { return pointwise(c, [](auto x) { return x[0] * x[1]; }); }, {s, s}, {}, {product, sum}}),
      57, op::combine<hd::multiplies>);
  CHECK_LAW(3,
            (law_case{[](const call& c) { return pointwise(c, [](auto x) { return x[0] > 0 ? x[1] : x[2]; }); },
                      {s, s, s},
                      {3, 0, 0},
                      {sum, maximum},
                      false,
                      {true, true, false}}),
            36, op::select);
  CHECK_LAW(
      1,
      (law_case{[](const call& c) { return by_number(c, [](double, std::int64_t n) { return std::sin(double(n)); }); },
                {s},
                {}}),
      44, op::random);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        return by_number(c, [](double x, std::int64_t n) { return n * 7 % 3 == 0 ? 0 : x; });
                      },
                      {s},
                      {}}),
            57, op::dropout);
}

namespace {
std::vector<dense> with_bias(const call& c, double (*f)(double, double)) {
  dense out(c.in[0].t.sizes);
  each(out.sizes, [&](const index_list& at) { out(at) = f(c.in[0].t(at), c.in[1].t({at[1]})); });
  return {out};
}
}  // namespace

TEST_CASE("operators that broadcast do too", "[layout][operations][law]") {
  const std::vector<index_list> shapes{{5, 4}, {4}};
  CHECK_LAW(
      2, (law_case{[](const call& c) { return with_bias(c, [](double x, double y) { return x + y; }); }, shapes, {}}),
      57, op::add_of<"bh,h->bh">);
  CHECK_LAW(
      2, (law_case{[](const call& c) { return with_bias(c, [](double x, double y) { return x * y; }); }, shapes, {}}),
      72, op::multiply_of<"bh,h->bh">);
  CHECK_LAW(
      2,
      (law_case{
          [](const call& c) { return with_bias(c, [](double x, double y) { return std::exp(x * y); }); }, shapes, {}}),
      44, op::elementwise_of<"bh,h->bh">);
}

TEST_CASE("reductions give partial values of their operator", "[layout][operations][law]") {
  const std::vector<index_list> shapes{{5, 4, 3}};
  CHECK_LAW(1,
            (law_case{[](const call& c) { return reduced(c, 1, 0, [](double& a, double x) { a += x; }); }, shapes, {}}),
            93, op::reduce<hd::plus, 1>);
  CHECK_LAW(
      1,
      (law_case{[](const call& c) { return reduced(c, 1, -INFINITY, [](double& a, double x) { a = std::max(a, x); }); },
                shapes,
                {},
                {maximum, sum}}),
      93, op::reduce<hd::maximum, 1>);
  CHECK_LAW(1,
            (law_case{[](const call& c) { return reduced(c, 0, 1, [](double& a, double x) { a *= x; }); },
                      shapes,
                      {},
                      {product, sum}}),
            93, op::reduce<hd::multiplies, 0>);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        auto out = reduced(c, 2, 0, [](double& a, double x) { a += x; });
                        for (double& e : out[0].v) e /= static_cast<double>(c.in[0].whole[2]);
                        return out;
                      },
                      shapes,
                      {}}),
            93, op::mean<2>);
  CHECK_LAW(
      1,
      (law_case{[](const call& c) { return reduced(c, 0, 0, [](double& a, double x) { a += x * x; }); }, shapes, {}}),
      76, op::sum_of_squares<0>);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        dense out(without(c.in[0].t.sizes, 1), 2);
                        const hd::indexed_value<double> none;
                        for (std::size_t e = 0; e < out.v.size(); e += 2) out.v[e] = none.value, out.v[e + 1] = 1e6;
                        each(c.in[0].t.sizes, [&](const index_list& at) {
                          const double mine[]{c.in[0].t(at),
                                              static_cast<double>(c.in[0].place[1][static_cast<std::size_t>(at[1])])};
                          merge_into(&out(without(at, 1)), mine, larger);
                        });
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {},
                      {larger, sum}}),
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
std::vector<dense> sorted(const call& c, std::int64_t keep) {
  const part& x = c.in[0];
  dense values(with(x.t.sizes, 1, std::min(keep, x.t.sizes[1]))), where(values.sizes);
  each(with(x.t.sizes, 1, 1), [&](const index_list& at) {
    std::vector<std::pair<double, double>> line;
    for (std::int64_t i = 0; i < x.t.sizes[1]; ++i) line.emplace_back(-x.t(with(at, 1, i)), static_cast<double>(i));
    std::sort(line.begin(), line.end());
    for (std::int64_t i = 0; i < values.sizes[1]; ++i) {
      values(with(at, 1, i)) = -line[static_cast<std::size_t>(i)].first;
      where(with(at, 1, i)) = line[static_cast<std::size_t>(i)].second;
    }
  });
  return {values, where};
}
std::vector<dense> scaled_norm(const call& c) {
  auto out = along(c.in[0].t, 1, norm_line);
  each(out[0].sizes, [&](const index_list& at) { out[0](at) = out[0](at) * c.in[1].t({at[1]}) + c.in[2].t({at[1]}); });
  return out;
}
std::vector<dense> joined_lines(const call& c) {
  index_list sizes = c.in[0].t.sizes;
  for (std::size_t o = 1; o < c.in.size(); ++o) sizes[1] += c.in[o].t.sizes[1];
  dense out(sizes);
  std::int64_t from = 0;
  for (const part& p : c.in) {
    each(p.t.sizes, [&](const index_list& at) { out(with(at, 1, at[1] + from)) = p.t(at); });
    from += p.t.sizes[1];
  }
  return {out};
}
}  // namespace

TEST_CASE("operators along a whole dimension", "[layout][operations][law]") {
  const std::vector<index_list> shapes{{5, 4, 3}};
  CHECK_LAW(1, (law_case{[](const call& c) { return along(c.in[0].t, 1, softmax_line); }, shapes, {}}), 44,
            op::softmax<1>);
  CHECK_LAW(1, (law_case{[](const call& c) { return along(c.in[0].t, 1, scan_line); }, shapes, {}}), 57, op::cumsum<1>);
  CHECK_LAW(1, (law_case{[](const call& c) { return sorted(c, 9); }, shapes, {}}), 44, op::sort<1>);
  CHECK_LAW(1, (law_case{[](const call& c) { return sorted(c, 2); }, shapes, {}}), 44, op::top_k<1>);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        dense out = sorted(c, 1)[1];
                        out.sizes = without(out.sizes, 1);
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            44, op::argmax<1>);
  CHECK_LAW(1, (law_case{[](const call& c) { return along(c.in[0].t, 1, norm_line); }, {{5, 4}}, {}}), 20,
            op::layer_norm<1>);
  CHECK_LAW(3, (law_case{scaled_norm, {{5, 4}, {4}, {4}}, {}, {sum, maximum}, false, {true, true, false}}), 10,
            op::layer_norm<1>);
  CHECK_LAW(2, (law_case{joined_lines, {{5, 4}, {5, 3}}, {}}), 38, op::concat<1>);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        dense out(with(c.in[0].t.sizes, 1, 2));
                        each(out.sizes, [&](const index_list& at) { out(at) = c.in[0].t(with(at, 1, at[1] + 1)); });
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            70, op::slice<1>);
  CHECK_LAW(1,
            (law_case{[](const call& c) {
                        const auto& s = c.in[0].t.sizes;
                        dense out({s[2], s[0], s[1]});
                        each(out.sizes, [&](const index_list& at) { out(at) = c.in[0].t({at[1], at[2], at[0]}); });
                        return std::vector<dense>{out};
                      },
                      shapes,
                      {}}),
            110, op::transpose<2, 0, 1>);
}

namespace {
std::vector<dense> rows_by_id(const call& c) {
  const part& table_part = c.in[0];
  dense out({c.in[1].t.sizes[0], table_part.t.sizes[1]});
  each(out.sizes, [&](const index_list& at) {
    const auto row = find_place(table_part, 0, c.in[1].t({at[0]}));
    out(at) = row < 0 ? 0 : table_part.t({row, at[1]});
  });
  return {out};
}
std::vector<dense> written(const call& c) {
  dense out = c.in[0].t;
  for (std::int64_t i = 0; i < c.in[1].t.sizes[0]; ++i) {
    const auto row = find_place(c.in[0], 0, c.in[1].t({i}));
    for (std::int64_t j = 0; row >= 0 && j < out.sizes[1]; ++j) out({row, j}) = c.in[2].t({i, j});
  }
  return {out};
}
std::vector<dense> summed_at(const call& c) {
  dense out({6, c.in[0].t.sizes[1]});
  each(c.in[0].t.sizes,
       [&](const index_list& at) { out({static_cast<std::int64_t>(c.in[1].t({at[0]})), at[1]}) += c.in[0].t(at); });
  return {out};
}
// As on a real machine: three all-reduces, of maxima, of sums of exponentials, of the target's logit.
std::vector<dense> losses(const call& c) {
  dense out(c.in[1].t.sizes);
  for (std::int64_t i = 0; i < out.sizes[0]; ++i) {
    double largest = -INFINITY, all = 0, target = 0;
    for (const part& p : c.peers[0])
      for (std::int64_t k = 0; k < p.t.sizes[1]; ++k) largest = std::max(largest, p.t({i, k}));
    for (const part& p : c.peers[0])
      for (std::int64_t k = 0; k < p.t.sizes[1]; ++k) all += std::exp(p.t({i, k}) - largest);
    for (const part& p : c.peers[0])
      if (const auto k = find_place(p, 1, c.in[1].t({i})); k >= 0) target += p.t({i, k});
    out({i}) = std::log(all) + largest - target;
  }
  return {out};
}
dense states(const call& c) {
  const auto &q = c.in[0].t, &k = c.in[1].t, &v = c.in[2].t;
  dense out({q.sizes[0], q.sizes[1], q.sizes[2], v.sizes[3]}, 3);
  each(out.sizes, [&](const index_list& at) {
    double* state = &out(at);
    state[0] = -INFINITY;
    for (std::int64_t t = 0; t < k.sizes[2]; ++t) {
      double score = 0;
      for (std::int64_t d = 0; d < q.sizes[3]; ++d) score += q({at[0], at[1], at[2], d}) * k({at[0], at[1], t, d}) / 4;
      const double one[]{score, 1, v({at[0], at[1], t, at[3]})};
      merge_into(state, one, softmax);
    }
  });
  return out;
}
std::vector<dense> attended(const call& c) {
  const dense s = states(c);
  dense out(s.sizes);
  for (std::size_t e = 0; e < out.v.size(); ++e) out.v[e] = s.v[3 * e + 2] / s.v[3 * e + 1];
  return {out};
}
}  // namespace

TEST_CASE("operators that look elements up", "[layout][operations][law]") {
  CHECK_LAW(2, (law_case{rows_by_id, {{7, 4}, {5}}, {0, 7}}), 93, op::embedding<1>);
  CHECK_LAW(2, (law_case{rows_by_id, {{7, 4}, {5}}, {0, 7}}), 106, op::gather<0>);
  CHECK_LAW(3, (law_case{written, {{7, 4}, {5}, {5, 4}}, {0, 7, 0}, {sum, maximum}, false, {true, true, false}}), 36,
            op::scatter<0>);
  CHECK_LAW(2, (law_case{summed_at, {{5, 4}, {5}}, {0, 6}}), 57, op::scatter_add<0>);
  CHECK_LAW(2, (law_case{losses, {{5, 7}, {5}}, {0, 7}, {sum, maximum}, true}), 44, op::cross_entropy<1>);
}

TEST_CASE("attention, whole and over split keys", "[layout][operations][law]") {
  const std::vector<index_list> shapes{{2, 3, 4, 2}, {2, 3, 5, 2}, {2, 3, 5, 3}};
  CHECK_LAW(3, (law_case{attended, shapes, {}, {sum, maximum}, false, {false, false, false}}), 40, op::attention);
  CHECK_LAW(3,
            (law_case{[](const call& c) { return std::vector<dense>{states(c)}; },
                      shapes,
                      {},
                      {softmax, sum},
                      false,
                      {false, false, false}}),
            41, op::attention_state);
}

namespace {
std::vector<dense> same_elements(const call& c) {
  dense out;
  out.v = c.in[0].t.v;
  out.sizes = c.want[0];
  return {out};
}
template <class From, class To>
struct checked_reshape;
template <std::int64_t... F, std::int64_t... T>
struct checked_reshape<hd::shape<F...>, hd::shape<T...>> {
  static std::vector<dense> compute(const call& c) {
    auto out = same_elements(c);
    if (out[0].sizes.empty()) out[0].sizes = {T...};  // the whole
    return out;
  }
  static tally check() {
    return check_law<op::reshape<hd::shape<F...>, hd::shape<T...>>, 1>(law_case{&compute, {{F...}}, {}}, 1);
  }
};
}  // namespace

TEST_CASE("reshapes keep the splits that stay intervals", "[layout][operations][law]") {
  const auto sound = [](const tally& t, int legal) {
    CHECK(t.wrong == 0);
    CHECK(t.sizes_wrong == 0);
    CHECK(t.unrepaired == 0);
    CHECK(t.legal == legal);
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
