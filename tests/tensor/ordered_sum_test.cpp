// Sums in a fixed order: every mesh and split policy gives the bits of the textbook tree on one rank.
#include <heddle/tensor/ordered_sum.hpp>
#include <heddle/tensor/random.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::cp, hd::dp, hd::tp;

namespace {
using grid = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

// Neither commutative nor associative: only the right tree gives the right number.
struct mixed {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    return static_cast<T>((a * 31) ^ (b + 17));
  }
};

// The definition: level by level, neighbours in pairs, an odd last element moves up unchanged.
template <class Op, class T>
T tree(std::vector<T> x) {
  if (x.empty()) return Op::template identity<T>();
  while (x.size() > 1) {
    std::vector<T> up;
    for (std::size_t i = 0; i < x.size(); i += 2) up.push_back(i + 1 < x.size() ? Op{}(x[i], x[i + 1]) : x[i]);
    x = std::move(up);
  }
  return x[0];
}

// Sums a row-major tensor over one dimension.
template <class Op, class T>
std::vector<T> over(const std::vector<T>& x, std::vector<std::int64_t>& extents, std::size_t dim) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t d = 0; d < extents.size(); ++d)
    (d < dim ? outer : d == dim ? outer : inner) *= d == dim ? 1 : extents[d];
  const std::int64_t n = extents[dim];
  std::vector<T> out;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i) {
      std::vector<T> line;
      for (std::int64_t k = 0; k < n; ++k) line.push_back(x[static_cast<std::size_t>((o * n + k) * inner + i)]);
      out.push_back(tree<Op>(line));
    }
  extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(dim));
  return out;
}

template <class T>
std::vector<T> values(std::int64_t n) {
  const hd::counter_random random(2024, 5);
  std::vector<T> x;
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>)
      x.push_back(static_cast<T>(random.integer(static_cast<std::uint64_t>(i))));
    else
      x.push_back(static_cast<T>(random.normal(static_cast<std::uint64_t>(i)) * (i % 7 == 0 ? 1e4 : 1)));
  }
  return x;
}

// Whether this rank's part of the result has the bits of the whole's elements.
template <class T, std::size_t Rank, class Layout>
bool part_is(const hd::sharded<T, Rank, Layout>& x, const std::vector<T>& whole) {
  bool ok = true;
  std::int64_t seen = 0;
  hd::detail::for_each_global_run(x.shape().extents(), x.layout().part(x.shape(), x.rank()),
                                  [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                                    ok = ok && std::memcmp(whole.data() + global, x.elements().data() + local,
                                                           static_cast<std::size_t>(count) * sizeof(T)) == 0;
                                    seen += count;
                                  });
  return ok && seen == x.layout().valid_shape(x.shape(), x.rank()).size();
}

struct expected {
  std::int64_t n = 0, m = 0;
  std::vector<float> rows, columns, total;
  std::vector<std::uint64_t> mixed_rows, mixed_total;
};
expected reference(std::int64_t n, std::int64_t m) {
  expected e{n, m, {}, {}, {}, {}, {}};
  const auto x = values<float>(n * m);
  const auto u = values<std::uint64_t>(n * m);
  std::vector<std::int64_t> s{n, m};
  e.rows = over<hd::plus>(x, s, 1);
  e.total = over<hd::plus>(e.rows, s, 0);
  s = {n, m};
  e.columns = over<hd::plus>(x, s, 0);
  s = {n, m};
  e.mixed_rows = over<mixed>(u, s, 1);
  e.mixed_total = over<mixed>(e.mixed_rows, s, 0);
  return e;
}

template <class Layout, class World>
bool sums_are(const expected& e, World& world) {
  const Layout layout{world.mesh()};
  const hd::shape s{e.n, e.m};
  const auto floats = values<float>(e.n * e.m);
  const auto words = values<std::uint64_t>(e.n * e.m);
  hd::sharded<float, 2, Layout> x(layout, s, world.rank());
  hd::sharded<std::uint64_t, 2, Layout> u(layout, s, world.rank());
  hd::fill_by_index(x, [&](std::int64_t g) { return floats[static_cast<std::size_t>(g)]; });
  hd::fill_by_index(u, [&](std::int64_t g) { return words[static_cast<std::size_t>(g)]; });
  const float total = hd::ordered_total(x, world);
  return part_is(hd::ordered_sum<1>(x, world), e.rows) && part_is(hd::ordered_sum<0>(x, world), e.columns) &&
         part_is(hd::ordered_reduce<mixed, 1>(u, world), e.mixed_rows) &&
         part_is(hd::ordered_sum<1, 0>(x, world), e.total) && std::memcmp(&total, e.total.data(), sizeof total) == 0 &&
         hd::ordered_total<mixed>(u, world) == e.mixed_total[0] && part_is(hd::ordered_sum<>(x, world), floats);
}
}  // namespace

TEST_CASE("ordered sums have the same bits on every mesh and under every split policy", "[tensor][ordered][law][ranks]") {
  using namespace hd;
  for (const grid& w : {grid{1, 1, 1}, grid{2, 1, 2}, grid{1, 3, 2}, grid{2, 2, 2}, grid{1, 1, 5}}) {
    if (w.size() > transport_test::most_ranks()) continue;
    for (const auto& [n, m] :
         {std::pair<std::int64_t, std::int64_t>{0, 3}, {1, 1}, {5, 13}, {16, 8}, {3, 69}, {37, 2}}) {
      const expected e = reference(n, m);
      std::vector<std::string> wrong;
      std::mutex mutex;
      transport_test::launch(w, [&](auto& world) {
        const auto check = [&]<class Layout>(std::type_identity<Layout>) {
          if (sums_are<Layout>(e, world)) return;
          const std::lock_guard lock(mutex);
          wrong.push_back("rank " + std::to_string(world.rank()) + ", " + to_string(Layout{world.mesh()}));
        };
        check(std::type_identity<layout<grid>>{});
        check(std::type_identity<layout<grid, shard<0, dp>, shard<1, tp>>>{});
        check(std::type_identity<layout<grid, shard<0, tp, dp>, identical<cp>>>{});
        check(std::type_identity<layout<grid, shard<1, split::zigzag, cp, tp>, shard<0, dp>>>{});
        check(std::type_identity<layout<grid, shard<1, split::block_cyclic<3>, tp>, shard<0, split::zigzag, dp>>>{});
        check(std::type_identity<
              layout<grid, shard<0, split::padded<>, tp>, shard<1, split::padded<split::balanced>, dp, cp>>>{});
      });
      transport_test::merge(wrong);
      CAPTURE(to_string(w), n, m);
      for (const std::string& text : wrong) FAIL_CHECK(text);
    }
  }
}

TEST_CASE("each part of a sum is an aligned node of the tree", "[tensor][ordered][law]") {
  for (std::int64_t n = 1; n <= 69; ++n)
    for (std::int64_t p = 1; p <= 9; ++p)
      for (std::int64_t r = 0; r < p; ++r) {
        hd::detail::dimension_part<1> part(n);
        part.cut(hd::detail::functions_of<hd::split::balanced>, 0, p, r);
        const auto nodes = hd::detail::nodes_of(part, n);
        std::int64_t at = part.size() == 0 ? 0 : part.to_global(0), log = 0;
        while ((std::int64_t{1} << log) < n) ++log;
        bool ok = static_cast<std::int64_t>(nodes.size()) <= 2 * (log + 1);
        for (const auto& node : nodes) {  // one after another, aligned, maximal
          std::int64_t block = 1;
          while (block < node.end - node.begin) block *= 2;
          ok = ok && node.begin == at && node.begin % block == 0 && (node.end - node.begin == block || node.end == n);
          at = node.end;
        }
        ok = ok && (part.size() == 0 || at == part.to_global(part.size() - 1) + 1);
        CAPTURE(n, p, r);
        REQUIRE(ok);
      }
}

TEST_CASE("the layout of a sum keeps what the other dimensions do", "[tensor][ordered]") {
  using namespace hd;
  STATIC_REQUIRE(std::is_same_v<without_dimensions<layout<grid, shard<0, dp>, shard<2, tp, cp>>, 0>,
                                layout<grid, shard<1, tp, cp>>>);
  STATIC_REQUIRE(
      std::is_same_v<without_dimensions<layout<grid, shard<0, dp>, shard<2, split::zigzag, tp>, identical<cp>>, 0, 1>,
                     layout<grid, shard<0, split::zigzag, tp>, identical<cp>>>);
  STATIC_REQUIRE(std::is_same_v<without_dimensions<layout<grid, shard<1, dp>>, 1>, layout<grid>>);
}
