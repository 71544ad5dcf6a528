#include <heddle/tensor/redistribute.hpp>

#include "catch.hpp"
#include "tensor/counting_world.hpp"
#include "tensor/value_level.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;

template <class Layout>
constexpr auto table_of = hd::detail::joint_table<value_level::operators, typename Layout::splits, Layout>::value;

// One rank's part of some tensor, its padding marked.
template <class Layout, std::int64_t... E>
hd::sharded<double, sizeof...(E), Layout> some_part(const Layout& l, const hd::shape<E...>& s, int rank) {
  const value_level::problem<Layout::mesh_type::rank, sizeof...(E)> p{hd::detail::numbers_of(l.mesh().extents()),
                                                                      s.extents()};
  return {l, s, rank, p.some_part(table_of<Layout>, rank)};
}

// What one rank found. Everything below that does not depend on the layouts is outside of their templates: there are many pairs.
struct finding {
  std::vector<double> result, moved;
  std::int64_t bytes = 0;
  bool agreed = true;
};
using world = counting::world<mesh>;

void wait_for_all(world& w) {
  w.along<dp>().all_reduce(std::span<int>{}, hd::plus{});
  w.along<tp>().all_reduce(std::span<int>{}, hd::plus{});
}
[[gnu::noinline]] std::vector<double> values(std::span<const double> x) {
  return {x.begin(), x.end()};
}

std::vector<finding> on_all_ranks(const mesh& m, const std::function<std::vector<double>(world&)>& from_source,
                                  const std::function<std::vector<double>(world&)>& from_moved) {
  std::vector<finding> findings(static_cast<std::size_t>(m.size()));
  counting::run<mesh>(m, [&](world& w) {
    finding& f = findings[static_cast<std::size_t>(w.rank())];
    f.result = from_source(w);
    wait_for_all(w);  // nobody moves on before all have counted
    f.bytes = w.bytes_sent();
    wait_for_all(w);
    f.moved = from_moved(w);
    f.agreed = !w.mismatch();
  });
  return findings;
}

// What depends on one layout only is kept out of the code that depends on two.
#define ONCE_PER_LAYOUT [[gnu::noinline]]

/// The whole tensor of parts that hold these values, by rank.
template <class Layout, std::int64_t... E>
ONCE_PER_LAYOUT std::vector<double> whole_of(const Layout& l, const hd::shape<E...>& s,
                                             const std::vector<std::vector<double>>& parts) {
  const value_level::problem<Layout::mesh_type::rank, sizeof...(E)> p{hd::detail::numbers_of(l.mesh().extents()),
                                                                      s.extents()};
  std::vector<hd::buffer<double>> held;
  for (const auto& part : parts) {
    held.emplace_back(static_cast<std::int64_t>(part.size()));
    std::copy(part.begin(), part.end(), held.back().begin());
  }
  std::string text;
  auto whole = p.whole_of(table_of<Layout>, held, text);
  if (!text.empty()) whole.clear();
  return whole;
}
template <class Layout, std::int64_t... E>
ONCE_PER_LAYOUT std::vector<hd::sharded<double, sizeof...(E), Layout>> some_parts(const Layout& l,
                                                                                  const hd::shape<E...>& s) {
  std::vector<hd::sharded<double, sizeof...(E), Layout>> parts;
  for (int r = 0; r < l.mesh().size(); ++r) parts.push_back(some_part(l, s, r));
  return parts;
}

/// Redistributes on every rank of the mesh and compares with the definition: what all ranks hold is the same tensor, copies
/// agree, and each rank sent what the plan said. Returns "" or what was wrong.
template <class To, class From, std::int64_t... E>
std::string wrong_move(const From& from, const hd::shape<E...>& s) {
  const auto& m = from.mesh();
  const To to{m};
  const auto plan = hd::plan_redistribution(from, to);
  auto sources = some_parts(from, s);
  auto spare = some_parts(from, s);
  std::vector<std::vector<double>> before, after;
  for (const auto& part : sources) before.push_back(values(part.elements()));
  const auto logical = whole_of(from, s, before);

  const auto findings = on_all_ranks(
      m,
      [&](world& w) { return values(hd::redistribute<To>(sources[static_cast<std::size_t>(w.rank())], w).elements()); },
      [&](world& w) {
        return values(hd::redistribute<To>(std::move(spare[static_cast<std::size_t>(w.rank())]), w).elements());
      });

  std::string problem;
  for (int r = 0; r < m.size(); ++r) {
    const finding& f = findings[static_cast<std::size_t>(r)];
    const auto complain = [&](const char* what) {
      problem += std::string(what) + " on rank " + std::to_string(r) + "; ";
    };
    if (f.result != f.moved) complain("moved values");
    if (f.bytes != plan.bytes_sent(s, sizeof(double), r)) complain("bytes");
    if (!f.agreed) complain("counts");
    if (values(sources[static_cast<std::size_t>(r)].elements()) != before[static_cast<std::size_t>(r)])
      complain("source");
    after.push_back(f.result);
  }
  if (problem.empty() && whole_of(to, s, after) != logical) problem = "another tensor";
  return problem.empty() ? problem : to_string(plan) + " of " + to_string(s) + ": " + problem;
}

template <class... Ls>
struct list {};

template <class From, class... To, class Shape>
std::string wrong_moves_from(list<To...>, const mesh& m, const Shape& s) {
  std::string problem;
  const auto one = [&]<class T>(std::type_identity<T>) {
    if (problem.empty()) problem = wrong_move<T>(From{m}, s);
  };
  (one(std::type_identity<To>{}), ...);
  return problem;
}
template <class... From, class Targets, class Shape>
std::string wrong_moves(list<From...>, Targets to, const mesh& m, const Shape& s) {
  std::string problem;
  ((problem.empty() ? void(problem = wrong_moves_from<From>(to, m, s)) : void()), ...);
  return problem;
}

using one_axis = list<hd::layout<mesh>, hd::layout<mesh, hd::shard<0, tp>>, hd::layout<mesh, hd::shard<1, tp>>,
                      hd::layout<mesh, hd::partial<hd::plus, tp>>, hd::layout<mesh, hd::partial<hd::maximum, tp>>>;
}  // namespace

TEST_CASE("every pair on one axis keeps the tensor and sends what the plan says", "[tensor][redistribute][law]") {
  for (int p = 1; p <= 5; ++p)
    for (std::int64_t n : {0, 1, 2, 5, 12, 17}) {
      CAPTURE(p, n);
      CHECK(wrong_moves(one_axis{}, one_axis{}, mesh{1, p}, hd::dynamic_shape<2>{n, 3 + n % 4}) == "");
    }
  for (int p : {2, 3, 5})
    for (std::int64_t m : {0, 1, 2, 12}) {
      CAPTURE(p, m);
      CHECK(wrong_moves(one_axis{}, one_axis{}, mesh{2, p}, hd::dynamic_shape<2>{7, m}) == "");
    }
}

TEST_CASE("inner dimensions of larger tensors are packed and unpacked", "[tensor][redistribute][law]") {
  using from = list<hd::layout<mesh, hd::shard<1, tp>>, hd::layout<mesh, hd::shard<2, tp>>,
                    hd::layout<mesh, hd::partial<hd::plus, tp>>>;
  using to = list<hd::layout<mesh>, hd::layout<mesh, hd::shard<0, tp>>, hd::layout<mesh, hd::shard<1, tp>>,
                  hd::layout<mesh, hd::shard<2, tp>>>;
  CHECK(wrong_moves(from{}, to{}, mesh{1, 3}, hd::dynamic_shape<3>{4, 5, 7}) == "");
  CHECK(wrong_moves(from{}, to{}, mesh{1, 2}, hd::dynamic_shape<3>{1, 4, 6}) == "");
  CHECK(wrong_moves(from{}, to{}, mesh{1, 4}, hd::dynamic_shape<3>{2, 1, 8}) == "");
  CHECK(wrong_moves(from{}, to{}, mesh{2, 2}, hd::dynamic_shape<3>{2, 0, 3}) == "");
}

TEST_CASE("two axes move in one plan", "[tensor][redistribute][law]") {
  using hd::partial, hd::plus, hd::shard;
  using several = list<hd::layout<mesh>, hd::layout<mesh, shard<0, dp, tp>>, hd::layout<mesh, shard<0, tp, dp>>,
                       hd::layout<mesh, shard<0, dp>, shard<1, tp>>, hd::layout<mesh, shard<1, dp>, partial<plus, tp>>>;
  for (std::int64_t n : {0, 1, 5, 7, 12}) {
    CAPTURE(n);
    CHECK(wrong_moves(several{}, several{}, mesh{2, 3}, hd::dynamic_shape<2>{n, 6}) == "");
    CHECK(wrong_moves(several{}, several{}, mesh{3, 2}, hd::dynamic_shape<2>{n, 5}) == "");
    CHECK(wrong_moves(several{}, several{}, mesh{2, 2}, hd::dynamic_shape<2>{n, 4}) == "");
    CHECK(wrong_moves(several{}, several{}, mesh{1, 2}, hd::dynamic_shape<2>{n, 3}) == "");
  }
}

TEST_CASE("parts of every split policy move as types", "[tensor][redistribute][law]") {
  using hd::partial, hd::plus, hd::shard;
  namespace split = hd::split;
  using several =
      list<hd::layout<mesh, shard<0, split::block_cyclic<2>, dp, tp>>, hd::layout<mesh, shard<0, split::zigzag, tp>>,
           hd::layout<mesh, shard<1, split::padded<>, tp>, hd::identical<dp>>,
           hd::layout<mesh, shard<0, split::ragged<2, 0, 5>, tp>>, hd::layout<mesh, shard<1, dp>, partial<plus, tp>>>;
  CHECK(wrong_moves(several{}, several{}, mesh{2, 3}, hd::dynamic_shape<2>{7, 5}) == "");
}

TEST_CASE("a static mesh plans nothing while it runs", "[tensor][redistribute]") {
  using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
  using from = hd::layout<fixed, hd::shard<0, dp, tp>>;
  using to = hd::layout<fixed, hd::shard<0, hd::split::zigzag, tp, dp>>;
  const hd::shape s{9, 3};
  std::vector<hd::sharded<double, 2, to>> parts;
  for (int r = 0; r < 4; ++r) parts.emplace_back(to{}, s, r);
  counting::run<fixed>(fixed{}, [&](auto& world) {
    parts[static_cast<std::size_t>(world.rank())] = hd::redistribute<to>(some_part(from{}, s, world.rank()), world);
  });
  std::vector<std::vector<double>> before, after;
  for (int r = 0; r < 4; ++r) {
    before.push_back(values(some_part(from{}, s, r).elements()));
    after.push_back(values(parts[static_cast<std::size_t>(r)].elements()));
  }
  CHECK(whole_of(to{}, s, after) == whole_of(from{}, s, before));
  const auto whole = hd::assemble(std::span<const hd::sharded<double, 2, to>>(parts));
  CHECK(values({whole.data(), whole.size()}) == whole_of(from{}, s, before));
}

TEST_CASE("any way round gives the same tensor", "[tensor][redistribute][law]") {
  // Path independence: A -> B -> C equals A -> C for exact values.
  const mesh m{1, 3};
  using A = hd::layout<mesh, hd::partial<hd::plus, tp>>;
  using B = hd::layout<mesh, hd::shard<1, tp>>;
  using C = hd::layout<mesh, hd::shard<0, tp>>;
  std::vector<char> same(3, 0);
  counting::run<mesh>(m, [&](auto& world) {
    const auto x = some_part(A{m}, hd::dynamic_shape<2>{7, 5}, world.rank());
    const auto straight = hd::redistribute<C>(x, world);
    const auto around =
        hd::redistribute<C>(hd::redistribute<hd::layout<mesh>>(hd::redistribute<B>(x, world), world), world);
    same[static_cast<std::size_t>(world.rank())] = std::equal(straight.elements().begin(), straight.elements().end(),
                                                              around.elements().begin(), around.elements().end());
  });
  CHECK(same == std::vector<char>{1, 1, 1});
}

TEST_CASE("a moved tensor is reduced in its own memory", "[tensor][redistribute]") {
  using fixed = hd::mesh<hd::axis<tp, 2>>;
  using sum = hd::layout<fixed, hd::partial<hd::plus, tp>>;
  std::vector<char> same(2, 0), kept(2, 0);
  counting::run<fixed>(fixed{}, [&](auto& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    hd::sharded<float, 2, sum> x({}, hd::shape{4, 4}, world.rank());
    for (float& e : x.elements()) e = 1.5f;
    const float* where = x.elements().data();
    const auto y = hd::redistribute<hd::layout<fixed>>(std::move(x), world);
    same[r] = y.elements().data() == where && y.elements()[15] == 3.0f;
    hd::sharded<float, 2, sum> z({}, hd::shape{4, 4}, world.rank());
    const float* there = z.elements().data();
    kept[r] = hd::redistribute<sum>(std::move(z), world).elements().data() == there;
  });
  CHECK(same == std::vector<char>{1, 1});
  CHECK(kept == std::vector<char>{1, 1});
}

TEST_CASE("a part that came to the wrong rank is refused", "[tensor][redistribute]") {
  const mesh m{1, 1};
  std::string message;
  counting::run<mesh>(m, [&](auto& world) {
    const hd::layout<mesh, hd::shard<0, tp>> there{mesh{1, 2}};
    try {
      hd::redistribute<hd::layout<mesh>>(
          hd::sharded<int, 1, hd::layout<mesh, hd::shard<0, tp>>>(there, hd::shape{8}, 1), world);
    } catch (const hd::layout_error& e) {
      message = e.what();
    }
  });
  CHECK(message ==
        "heddle: redistribute: rank 1's part of a tensor on dp=1 x tp=2 came to rank 0 of a world on dp=1 x tp=1");
}
