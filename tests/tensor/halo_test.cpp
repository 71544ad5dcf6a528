#include <heddle/layout/describe.hpp>
#include <heddle/tensor/halo_exchange.hpp>
#include <heddle/tensor/redistribute_async.hpp>
#include <heddle/testing/random_cases.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include "catch.hpp"

#include <heddle/comm/threads.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace ht = hd::testing;
namespace split = hd::split;
using hd::cp, hd::dp, hd::tp, hd::shard, hd::halo, hd::partial, hd::plus;

namespace {
using one = hd::mesh<hd::axis<tp>>;
using two = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using three = hd::mesh<hd::axis<dp>, hd::axis<cp>, hd::axis<tp>>;
using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;

ht::case_options cases(std::uint64_t seed, std::int64_t n, std::int64_t most_elements) {
  ht::case_options o;
  o.seed = seed;
  o.cases = n;
  o.most_elements = most_elements;
  return o;
}

// The elements that a rank holds less those of its block, counted by walking the whole tensor.
template <class L, std::int64_t... E>
std::int64_t missing(const L& layout, const hd::shape<E...>& s, int rank) {
  const hd::without_halo<L> blocks{layout.mesh()};
  std::int64_t n = 0;
  for (std::int64_t at = 0; at < s.size(); ++at) {
    const auto index = ht::detail::index_at(at, s.extents());
    n += layout.owns(s, rank, index) && !blocks.owns(s, rank, index) ? 1 : 0;
  }
  return n;
}

// Spoils all halos, refreshes them in place, and says what is wrong: values, or bytes that are not those of the plan.
template <class L, std::int64_t... E>
ht::report refreshed(const L& layout, const hd::shape<E...>& s, std::uint64_t seed) {
  using mesh_type = typename L::mesh_type;
  const hd::without_halo<L> blocks{layout.mesh()};
  const auto plan = hd::plan_redistribution(blocks, layout);
  std::vector<std::string> wrong(static_cast<std::size_t>(layout.mesh().size()));
  ht::counting::run(layout.mesh(), [&](ht::counting::world<mesh_type>& w) {
    auto x = ht::some_part(layout, s, w.rank(), seed);
    const auto want = ht::some_part(layout, s, w.rank(), seed);
    hd::halo_exchange refresh(x, w);
    std::string& what = wrong[static_cast<std::size_t>(w.rank())];
    for (int round = 0; round < 2; ++round) {
      ht::detail::for_each_held(layout, s, w.rank(), [&](std::int64_t local, std::int64_t at) {
        if (!blocks.owns(s, w.rank(), ht::detail::index_at(at, s.extents())))
          x.elements()[static_cast<std::size_t>(local)] = -1e9 - round;
      });
      refresh(x);
      const auto got = ht::detail::held_values(layout, s, w.rank(), x.elements());
      if (what.empty())
        what = ht::detail::difference(ht::detail::held_values(layout, s, w.rank(), want.elements()), got);
    }
    w.all().barrier();
    const std::int64_t planned = plan.bytes_sent(s, sizeof(double), w.rank());
    if (what.empty() && (w.bytes_sent() != 2 * planned || refresh.bytes_sent() != planned ||
                         refresh.bytes_received() != missing(layout, s, w.rank()) * 8))
      what = "planned " + std::to_string(planned) + " bytes, sent " + std::to_string(w.bytes_sent()) + " in two rounds";
  });
  for (std::size_t r = 0; r < wrong.size(); ++r)
    if (!wrong[r].empty())
      return ht::failure(to_string(layout) + ", shape " + to_string(s) + ", rank " + std::to_string(r) + ": " +
                         wrong[r]);
  return {true, {}, 1};
}
}  // namespace

TEST_CASE("a halo is a block and its neighbourhood, whatever the sizes", "[tensor][halo][law]") {
  ht::report found;
  for (int p = 1; p <= 6; ++p)
    for (std::int64_t n = 0; n <= 20; ++n) {
      found += ht::check_partition(hd::layout<one, halo<0, 1, tp>>{one{p}}, hd::shape{n});
      found += ht::check_partition(hd::layout<one, halo<0, 7, split::ceil, tp>>{one{p}}, hd::shape{n});
    }
  CHECK(found.what == "");
  const auto boxes = ht::for_random_cases<two, 2>(cases(1, 25, 200), [](const two& m, const auto& s, std::uint64_t) {
    ht::report all = ht::check_partition(hd::layout<two, halo<0, 2, dp>, halo<1, 1, tp>>{m}, s);
    all += ht::check_partition(hd::layout<two, halo<1, 2, tp, dp>>{m}, s);
    all += ht::check_partition(hd::layout<two, halo<0, 1, tp>, shard<1, split::zigzag, dp>>{m}, s);
    return all;
  });
  CHECK(boxes.what == "");
  constexpr std::int64_t most = std::int64_t{1} << 62;
  CHECK(hd::layout<one, halo<0, 1, split::ragged<3, 0, 2>, tp>>{one{3}}.local_shape(hd::shape{5}, 1) == hd::shape{0});
  CHECK(hd::layout<one, halo<0, most + (most - 1), tp>>{one{4}}.local_shape(hd::shape{most}, 2) == hd::shape{most});
}

TEST_CASE("spellings of halos are canonical, and print", "[tensor][halo]") {
  STATIC_REQUIRE(std::same_as<hd::layout<grid, halo<0, 0, dp>>, hd::layout<grid, shard<0, dp>>>);
  STATIC_REQUIRE(std::same_as<hd::layout<grid, halo<1, 2, split::balanced, tp>, halo<0, 1, dp>>,
                              hd::layout<grid, halo<0, 1, dp>, halo<1, 2, tp>>>);
  STATIC_REQUIRE(!std::same_as<hd::layout<grid, halo<0, 1, dp>>, hd::layout<grid, halo<0, 2, dp>>>);
  using L = hd::layout<grid, halo<0, 1, dp>, halo<1, 2, split::ceil, tp>>;
  STATIC_REQUIRE(std::same_as<hd::without_halo<L>, hd::layout<grid, shard<0, dp>, shard<1, split::ceil, tp>>>);
  STATIC_REQUIRE(L::has_halo);
  STATIC_REQUIRE(L::local_shape(hd::shape{5, 9}, 3) == hd::shape{3, 6});
  STATIC_REQUIRE(L::local_offset(hd::shape{5, 9}, 3) == std::array<std::int64_t, 2>{2, 3});
  STATIC_REQUIRE(L::owner(hd::shape{5, 9}, {3, 4}) == 2);
  CHECK(to_string(L{}) == "halo<0, 1, dp>, halo<1, 2, ceil, tp> on dp=2 x tp=2");
  CHECK(
      to_string(hd::redistribution<hd::without_halo<L>, L>) ==
      "shard<0, dp>, shard<1, ceil, tp> -> halo<0, 1, dp>, halo<1, 2, ceil, tp> on dp=2 x tp=2: exchange over dp, tp");
  CHECK(
      to_string(hd::redistribution<L, hd::layout<grid>>) ==
      "halo<0, 1, dp>, halo<1, 2, ceil, tp> -> replicated on dp=2 x tp=2: slice over dp, tp; all_gather of dimension 0 "
      "over dp; all_gather of dimension 1 over tp");
  const std::string drawn = hd::describe(hd::layout<grid, halo<0, 1, dp>>{}, hd::shape{6, 2});
  INFO(drawn);
  CHECK(drawn.find("dp=2 splits dimension 0, with a halo of 1") != std::string::npos);
  CHECK(drawn.find("a,b: copies") != std::string::npos);
}

TEST_CASE("redistributions from and to halos keep the tensor and send what is planned", "[tensor][halo][law]") {
  using first = hd::type_list<hd::layout<one>, hd::layout<one, shard<0, tp>>, hd::layout<one, shard<1, tp>>,
                              hd::layout<one, partial<plus, tp>>, hd::layout<one, halo<0, 1, tp>>>;
  using second = hd::type_list<hd::layout<one, halo<0, 1, tp>>, hd::layout<one, halo<0, 5, tp>>>;
  const auto line =
      ht::for_random_cases<one, 2>(cases(2, 12, 200), [](const one& m, const auto& s, std::uint64_t seed) {
        ht::report all = ht::check_redistributions(first{}, second{}, m, s, seed);
        all += ht::check_redistributions(second{}, first{}, m, s, seed);
        return all;
      });
  CHECK(line.what == "");
  using box = hd::layout<two, halo<0, 1, dp>, halo<1, 2, tp>>;
  using others =
      hd::type_list<hd::without_halo<box>, hd::layout<two, shard<0, tp, dp>>, hd::layout<two, halo<1, 3, dp, tp>>,
                    hd::layout<two, shard<0, dp>, partial<plus, tp>>, hd::layout<two>>;
  const auto plane =
      ht::for_random_cases<two, 2>(cases(3, 12, 300), [](const two& m, const auto& s, std::uint64_t seed) {
        ht::report all = ht::check_redistributions(hd::type_list<box>{}, others{}, m, s, seed);
        all += ht::check_redistributions(others{}, hd::type_list<box>{}, m, s, seed);
        return all;
      });
  CHECK(plane.what == "");
  using cube = hd::layout<three, halo<0, 1, dp>, halo<1, 1, cp>, halo<2, 2, tp>>;
  const auto space =
      ht::for_random_cases<three, 3>(cases(4, 8, 300), [](const three& m, const auto& s, std::uint64_t seed) {
        ht::report all = ht::check_redistribution<cube>(hd::without_halo<cube>{m}, s, seed);
        all += ht::check_redistribution<hd::without_halo<cube>>(cube{m}, s, seed);
        return all;
      });
  CHECK(space.what == "");
}

TEST_CASE("a redistribution to a halo sends the elements that are missing", "[tensor][halo][law]") {
  for (int p : {1, 2, 3, 7})
    for (const std::int64_t n : {0, 1, 5, 14, 30}) {
      CAPTURE(p, n);
      const one m{p};
      const hd::layout<one, halo<0, 2, tp>> to{m};
      const hd::shape s{n, 3};
      std::int64_t all = 0;
      for (int r = 0; r < p; ++r) all += missing(to, s, r);
      CHECK(
          hd::plan_redistribution(hd::without_halo<hd::layout<one, halo<0, 2, tp>>>{m}, to).bytes_sent_in_total(s, 8) ==
          8 * all);
      if (n / p >= 2) CHECK(all == 2 * (p - 1) * 2 * 3);
      // What is there is dropped or kept without a byte.
      CHECK(hd::plan_redistribution(to, hd::layout<one, shard<0, tp>>{m}).bytes_sent_in_total(s, 8) == 0);
      CHECK(hd::plan_redistribution(to, hd::layout<one, halo<0, 1, tp>>{m}).bytes_sent_in_total(s, 8) == 0);
      CHECK(hd::plan_redistribution(hd::layout<one>{m}, to).bytes_sent_in_total(s, 8) == 0);
    }
}

TEST_CASE("halos are refreshed in place with the bytes of the plan", "[tensor][halo][law]") {
  ht::report found;
  for (const int p : {1, 2, 5})
    for (const std::int64_t n : {0, 3, 11}) {
      found += refreshed(hd::layout<one, halo<0, 1, tp>>{one{p}}, hd::shape{n}, 1);
      found += refreshed(hd::layout<one, halo<1, 4, tp>>{one{p}}, hd::shape{3, n}, 2);
    }
  CHECK(found.what == "");
  const auto boxes =
      ht::for_random_cases<two, 2>(cases(5, 15, 300), [](const two& m, const auto& s, std::uint64_t seed) {
        ht::report all = refreshed(hd::layout<two, halo<0, 1, dp>, halo<1, 2, tp>>{m}, s, seed);
        all += refreshed(hd::layout<two, halo<0, 2, tp>, shard<1, split::zigzag, dp>>{m}, s, seed);
        all += refreshed(hd::layout<two, halo<0, 2, tp>, partial<plus, dp>>{m}, s, seed);
        return all;
      });
  CHECK(boxes.what == "");
  const auto cubes =
      ht::for_random_cases<three, 3>(cases(6, 6, 400), [](const three& m, const auto& s, std::uint64_t seed) {
        return refreshed(hd::layout<three, halo<0, 1, dp>, halo<1, 1, cp>, halo<2, 2, tp>>{m}, s, seed);
      });
  CHECK(cubes.what == "");
}

TEST_CASE("started redistributions and those by threads bring halos too", "[tensor][halo]") {
  using L = hd::layout<grid, halo<0, 1, dp>, halo<1, 2, tp>>;
  using blocks = hd::without_halo<L>;
  const hd::shape s{7, 9};
  std::atomic<int> right = 0;  // assertions belong to one thread
  hd::launch<hd::threads, grid>([&](auto& world) {
    const auto x = ht::some_part(blocks{}, s, world.rank());
    const auto want = ht::some_part(L{}, s, world.rank());
    const auto same = [&](const auto& got) {
      return std::equal(got.elements().begin(), got.elements().end(), want.elements().begin(), want.elements().end());
    };
    right += same(hd::redistribute<L>(x, world)) ? 1 : 0;
    hd::redistribution_queue queue(world);
    auto there = queue.template start<L>(x);
    right += same(std::move(there).wait()) ? 1 : 0;
  });
  CHECK(right == 8);
}

TEST_CASE("a halo exchange refuses tensors that it was not made for", "[tensor][halo]") {
  using L = hd::layout<grid, halo<0, 1, dp>>;
  std::atomic<int> refused = 0;
  hd::launch<hd::threads, grid>([&](auto& world) {
    hd::sharded<double, 1, L> x(L{}, hd::shape{8}, world.rank()), longer(L{}, hd::shape{9}, world.rank());
    hd::halo_exchange refresh(x, world);
    const auto refuses = [&](auto& t) {
      try {
        refresh(t);
      } catch (const hd::layout_error&) {
        ++refused;
      }
    };
    refuses(longer);
    const auto released = std::move(x).release();
    refuses(x);
  });
  CHECK(refused == 8);
}

TEST_CASE("one exchange at a time is under way, and is waited for with its tensor", "[tensor][halo]") {
  using L = hd::layout<one, halo<1, 1, tp>>;  // borders of single columns: packed
  std::atomic<int> right = 0;
  hd::launch<hd::threads>(one{2}, {}, [&](auto& world) {
    const hd::shape s{3, 4};
    hd::sharded<double, 2, L> u(L{world.mesh()}, s, world.rank()), v(L{world.mesh()}, s, world.rank());
    std::fill(u.elements().begin(), u.elements().end(), 100.0 + world.rank());
    std::fill(v.elements().begin(), v.elements().end(), 200.0 + world.rank());
    hd::halo_exchange refresh(u, world);
    const auto refuses = [&](const char* text, auto&& call) {
      try {
        call();
      } catch (const hd::layout_error& e) {
        if (std::string(e.what()).find(text) != std::string::npos) ++right;
      }
    };
    refuses("while nothing is under way", [&] { refresh.wait(u); });
    refresh.start(u);
    refuses("while another is under way", [&] { refresh.start(v); });
    refuses("other than the one that was started", [&] { refresh.wait(v); });
    refresh.wait(u);
    refuses("while nothing is under way", [&] { refresh.wait(u); });
    refresh(v);
    const int from = 1 - world.rank(), column = world.rank() == 0 ? 2 : 0;
    for (std::int64_t i = 0; i < 3; ++i)
      if (u.local()(i, column) == 100.0 + from && v.local()(i, column) == 200.0 + from) ++right;
  });
  CHECK(right == 2 * (4 + 3));
}

TEST_CASE("a plan to a halo is proven the cheapest by its bytes alone", "[tensor][halo][plan]") {
  using blocks = hd::layout<grid, shard<0, dp>, hd::identical<tp>>;
  using halos = hd::layout<grid, halo<0, 1, dp>, hd::identical<tp>>;
  using columns = hd::layout<grid, shard<1, dp>, hd::identical<tp>>;
  using wide_columns = hd::layout<grid, halo<1, 1, dp>, hd::identical<tp>>;
  using sums = hd::layout<grid, shard<0, dp>, partial<plus, tp>>;
  STATIC_REQUIRE(hd::redistribution<blocks, halos>.proven);
  STATIC_REQUIRE(hd::redistribution<columns, halos>.proven);
  STATIC_REQUIRE(hd::redistribution<blocks, halos, hd::objective::bytes_on_all_axes>.proven);
  STATIC_REQUIRE_FALSE(hd::redistribution<blocks, halos, hd::objective::peak_memory>.proven);
  STATIC_REQUIRE_FALSE(hd::redistribution<wide_columns, halos>.proven);
  STATIC_REQUIRE_FALSE(hd::redistribution<sums, halos>.proven);
  STATIC_REQUIRE(hd::redistribution<halos, blocks>.proven);  // drops what it has too much
  // Axes of one rank have no halo: the search of plans without is all there is.
  using narrow = hd::mesh<hd::axis<dp, 1>, hd::axis<tp, 2>>;
  STATIC_REQUIRE(hd::redistribution<hd::layout<narrow, halo<0, 1, dp>, partial<plus, tp>>,
                                    hd::layout<narrow, halo<0, 1, dp>, shard<1, tp>>>.proven);
}
