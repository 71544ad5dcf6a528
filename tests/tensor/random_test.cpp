// Random tensors and dropout, the same bits on every mesh, against the definition element by element.
#include <heddle/tensor/random.hpp>
#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::cp, hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;

// The whole matrix, put together element by element with the layout's index maps; copies must agree.
template <class T, class Layout, class Change>
std::vector<T> on_all_ranks(const Layout& layout, const hd::dynamic_shape<2>& shape, Change&& change) {
  std::vector<T> whole(static_cast<std::size_t>(shape.size()));
  std::vector<char> seen(whole.size(), 0);
  bool copies_agree = true;
  for (int r = 0; r < layout.mesh().size(); ++r) {
    hd::sharded<T, 2, Layout> x(layout, shape, r);
    change(x);
    const auto held = layout.valid_shape(shape, r), stored = layout.local_shape(shape, r);
    for (std::int64_t i = 0; i < held.extent(0); ++i)
      for (std::int64_t j = 0; j < held.extent(1); ++j) {
        const auto g = layout.to_global(shape, r, {i, j});
        const auto at = static_cast<std::size_t>(g[0] * shape.extent(1) + g[1]);
        const T value = x.elements()[static_cast<std::size_t>(i * stored.extent(1) + j)];
        if constexpr (Layout::has_partial)
          whole[at] = static_cast<T>(whole[at] + value);
        else
          copies_agree = copies_agree && (!seen[at] || std::memcmp(&whole[at], &value, sizeof value) == 0);
        if constexpr (!Layout::has_partial) whole[at] = value;
        seen[at] = 1;
      }
  }
  CHECK(copies_agree);
  return whole;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Calls f with layouts of three axes, and once more on one rank.
template <class F>
void for_each_layout(const mesh& m, F&& f) {
  using namespace hd;
  f(layout<mesh>{m});
  f(layout<mesh, shard<0, dp>>{m});
  f(layout<mesh, shard<1, tp, dp>, identical<cp>>{m});
  f(layout<mesh, shard<0, tp>, shard<1, cp>, partial<plus, dp>>{m});
  f(layout<mesh, shard<0, split::zigzag, cp>, shard<1, split::block_cyclic<2>, tp>>{m});
  f(layout<mesh, shard<1, split::padded<>, dp, tp>, identical<cp>>{m});
  f(layout<mesh, shard<0, split::ceil, tp, split::zigzag, dp>>{m});
}
}  // namespace

TEST_CASE("random tensors have the same bits on every mesh", "[tensor][random][law]") {
  const hd::counter_random random(0xfeed, 7);
  for (const auto& [n, m] : {std::pair<std::int64_t, std::int64_t>{7, 5}, {0, 3}, {1, 1}, {12, 16}}) {
    const hd::dynamic_shape<2> shape{n, m};
    std::vector<float> uniform, normal;
    std::vector<std::int64_t> index;
    for (std::int64_t g = 0; g < n * m; ++g) {
      const auto i = static_cast<std::uint64_t>(g);
      uniform.push_back(static_cast<float>(-1 + 3 * random.uniform(i)));
      normal.push_back(static_cast<float>(0.5 + 0.25 * random.normal(i)));
      index.push_back(g);
    }
    for (const mesh& w : {mesh{1, 1, 1}, mesh{2, 2, 2}, mesh{1, 3, 2}, mesh{3, 1, 4}})
      for_each_layout(w, [&](const auto& layout) {
        CAPTURE(n, m, to_string(layout));
        CHECK(same_bits(uniform,
                        on_all_ranks<float>(layout, shape, [&](auto& x) { hd::fill_uniform(x, random, -1, 2); })));
        CHECK(same_bits(normal,
                        on_all_ranks<float>(layout, shape, [&](auto& x) { hd::fill_normal(x, random, 0.5, 0.25); })));
        CHECK(index == on_all_ranks<std::int64_t>(
                           layout, shape, [](auto& x) { hd::fill_by_index(x, [](std::int64_t g) { return g; }); }));
      });
  }
}

TEST_CASE("dropout drops the same elements on every mesh, forward and backward", "[tensor][random][law]") {
  const hd::counter_random random(11, 3);
  const hd::dynamic_shape<2> shape{9, 11};
  const double rate = 0.3;
  std::vector<float> expected;
  for (std::int64_t g = 0; g < 99; ++g)
    expected.push_back(random.uniform(static_cast<std::uint64_t>(g)) < rate
                           ? 0.0f
                           : static_cast<float>(g) * static_cast<float>(1 / (1 - rate)));
  for (const mesh& w : {mesh{1, 1, 1}, mesh{2, 2, 2}, mesh{1, 3, 2}, mesh{3, 1, 4}})
    for_each_layout(w, [&](const auto& layout) {
      CAPTURE(to_string(layout));
      CHECK(same_bits(expected, on_all_ranks<float>(layout, shape, [&](auto& x) {
                        hd::fill_by_index(x, [](std::int64_t g) { return static_cast<float>(g); });
                        hd::dropout(x, rate, random);
                      })));
    });
  // Copies keep the same elements, so the mask is its own adjoint: <dropout(x), y> = <x, dropout(y)>.
  const auto identity = on_all_ranks<float>(hd::layout<mesh>{mesh{1, 1, 1}}, shape, [&](auto& x) {
    hd::fill_by_index(x, [](std::int64_t) { return 1.0f; });
    hd::dropout(x, rate, random);
  });
  double kept = 0;
  for (const float f : identity) kept += f > 0;
  CHECK(kept / 99 == Approx(1 - rate).margin(0.15));
  const hd::layout<mesh> one{mesh{1, 1, 1}};
  hd::sharded<float, 2, hd::layout<mesh>> x(one, shape, 0);
  CHECK_THROWS_WITH(hd::dropout(x, 1.0, random), "heddle: dropout needs a rate in [0, 1), got 1");
}

TEST_CASE("dropout of a partial sum is the sum dropped", "[tensor][random]") {
  using layout = hd::layout<mesh, hd::partial<hd::plus, tp>>;
  const mesh w{1, 1, 3};
  const hd::counter_random random(5, 1);
  const hd::dynamic_shape<1> shape{64};
  std::vector<hd::sharded<double, 1, layout>> parts;
  std::vector<double> sum(64, 0.0);
  for (int r = 0; r < 3; ++r) {
    parts.emplace_back(layout{w}, shape, r);
    for (std::size_t i = 0; i < 64; ++i) sum[i] += parts.back().elements()[i] = static_cast<double>(i) + 64 * r;
    hd::dropout(parts.back(), 0.5, random);
  }
  const auto whole = hd::assemble(std::span<const hd::sharded<double, 1, layout>>(parts));
  for (std::size_t i = 0; i < 64; ++i) CHECK(whole[i] == (random.uniform(i) < 0.5 ? 0.0 : 2 * sum[i]));
}

TEST_CASE("random tensors have the same bits in every memory", "[tensor][random]") {
  using space = hd::testing::checked_memory;
  const hd::counter_random random(3, 9);
  const mesh w{2, 1, 3};
  const auto same = [&](const auto& layout) {
    using layout_type = std::remove_cvref_t<decltype(layout)>;
    space::queue queue;
    for (int r = 0; r < w.size(); ++r) {
      const hd::dynamic_shape<2> shape{7, 5};
      hd::sharded<float, 2, layout_type> here(layout, shape, r);
      hd::sharded<float, 2, layout_type, space> there(queue, layout, shape, r);
      const auto compare = [&] {
        const auto copy = hd::copy_to<hd::host_memory>(queue, there);
        CHECK(
            std::equal(here.elements().begin(), here.elements().end(), copy.elements().begin(), copy.elements().end()));
      };
      hd::fill_by_index(here, [](std::int64_t g) { return static_cast<float>(g); });
      hd::fill_by_index(queue, there, [](std::int64_t g) { return static_cast<float>(g); });
      compare();
      hd::fill_uniform(here, random, -1, 2);
      hd::fill_uniform(queue, there, random, -1, 2);
      compare();
      hd::fill_normal(here, random, 0.5, 2);
      hd::fill_normal(queue, there, random, 0.5, 2);
      hd::dropout(here, 0.25, random);
      hd::dropout(queue, there, 0.25, random);
      compare();
      CHECK_THROWS_AS(hd::dropout(queue, there, 1.0, random), hd::config_error);
    }
  };
  same(hd::layout<mesh, hd::shard<0, hd::split::zigzag, tp>, hd::partial<hd::plus, dp>>{w});
  same(hd::layout<mesh, hd::shard<1, hd::split::padded<>, tp>, hd::identical<dp>>{w});
}

TEST_CASE("uniform numbers stay below their bound in every type", "[tensor][random]") {
  const hd::counter_random random(1, 0);
  std::vector<float> drawn(std::size_t{1} << 16);
  float high = 0;
  // Close to the bound a float has fewer numbers than the draw: 1 / 16 of these would round up to it.
  hd::detail::uniform_numbers{random, 1 - 0x1p-21, 1.0}(drawn.data(), static_cast<std::int64_t>(drawn.size()), 0);
  for (const float x : drawn) high = x > high ? x : high;
  CHECK(high == 1 - 0x1p-24f);
}
