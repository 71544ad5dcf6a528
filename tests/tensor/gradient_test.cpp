// Gradients reduced as their layouts say: the programs of tests/refuse/gradient_*.cpp, made right, against numbers by hand;
// and that each redistribution's backward is its adjoint.
#include <heddle/tensor/gradient.hpp>
#include <heddle/tensor/random.hpp>
#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
struct experts {};
using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
template <class... Ps>
using on = hd::layout<grid, Ps...>;

// <x, y> of two tensors with dual layouts: each element pair counts once. Split and identical elements are paired with
// themselves, a copy with each contribution to the sum.
template <std::size_t Rank, class L, class World>
double inner_product(const hd::sharded<double, Rank, L>& x, const hd::sharded<double, Rank, hd::dual<L>>& y,
                     World& world) {
  double sum = 0;
  bool counts = true;  // once per identical value
  const auto extents = world.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == hd::axis_role::identical && hd::detail::mesh_coordinate(extents, a, world.rank()) != 0)
      counts = false;
  if (counts)
    for (std::size_t i = 0; i < x.elements().size(); ++i) sum += x.elements()[i] * y.elements()[i];
  world.all().all_reduce(std::span<double>(&sum, 1), hd::plus{});
  return sum;
}

// Random values of a layout: equal where the layout says so, unrelated where it is partial.
template <class L, class World>
hd::sharded<double, 2, L> random_tensor(const hd::shape<hd::dynamic, hd::dynamic>& s, World& world,
                                        std::uint64_t seed) {
  hd::sharded<double, 2, L> x(L{world.mesh()}, s, world.rank());
  std::uint64_t part = 0;
  const auto extents = world.mesh().extents();
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (L::table.use[a].role == hd::axis_role::partial)
      part = part * 64 + 1 + static_cast<std::uint64_t>(hd::detail::mesh_coordinate(extents, a, world.rank()));
  const hd::counter_random random(seed, part);
  hd::detail::for_each_global_run(x.shape().extents(), x.layout().part(x.shape(), x.rank()),
                                  [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                                    for (std::int64_t i = 0; i < count; ++i)
                                      x.elements()[static_cast<std::size_t>(local + i)] =
                                          random.normal(static_cast<std::uint64_t>(global + i));
                                  });
  return x;
}

// <A x, y> = <x, A' y> for the edge A: From -> To, whose backward A' goes from dual<To> to dual<From>.
template <class From, class To, class World>
std::string adjoint_problem(const hd::shape<hd::dynamic, hd::dynamic>& s, World& world, std::uint64_t seed) {
  const auto x = random_tensor<From>(s, world, seed);
  const auto y = random_tensor<hd::dual<To>>(s, world, seed + 1);
  const double forward = inner_product(hd::redistribute<To>(x, world), y, world);
  const double backward = inner_product(x, hd::redistribute<hd::dual<From>>(y, world), world);
  if (std::abs(forward - backward) <= 1e-9 * (1 + std::abs(forward))) return {};
  std::string text = to_string(From{world.mesh()});
  text += " -> ";
  text += to_string(To{world.mesh()});
  text += ": ";
  text += std::to_string(forward) + " and " + std::to_string(backward);
  return text;
}
}  // namespace

TEST_CASE("each redistribution's backward is its adjoint", "[tensor][gradient][law][ranks]") {
  using hd::shard, hd::identical;
  using sum_t = hd::partial<hd::plus, tp>;
  const std::uint64_t seed = 0x5eed;
  CAPTURE(seed);
  std::vector<std::string> problems;
  std::mutex mutex;
  for (const auto& s : {hd::shape{6, 12}, hd::shape{5, 7}, hd::shape{1, 2}})
    transport_test::launch<grid>([&](auto& world) {
      const auto edge = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
        const std::string text = adjoint_problem<From, To>(s, world, seed);
        const std::lock_guard lock(mutex);
        if (world.rank() == 0 && !text.empty()) problems.push_back(text);
      };
      const auto to_each = [&]<class From, class... To>(std::type_identity<From> from, hd::type_list<To...>) {
        (edge(from, std::type_identity<To>{}), ...);
      };
      // One axis changes between all four roles, the other is split, identical or copied.
      using split = hd::type_list<on<shard<1, dp>>, on<shard<1, dp>, shard<0, tp>>, on<shard<1, dp, tp>>,
                                  on<shard<1, dp>, sum_t>>;
      [&]<class... From>(hd::type_list<From...> all) { (to_each(std::type_identity<From>{}, all), ...); }(split{});
      using same = hd::type_list<on<identical<dp>>, on<identical<dp>, shard<0, tp>>, on<identical<dp>, sum_t>,
                                 on<identical<dp, tp>>>;
      [&]<class... From>(hd::type_list<From...> all) { (to_each(std::type_identity<From>{}, all), ...); }(same{});
      // Two axes at once.
      using both = hd::type_list<on<>, on<shard<0, dp>, shard<1, tp>>, on<hd::partial<hd::plus, dp, tp>>,
                                 on<shard<0, dp>, sum_t>>;
      [&]<class... From>(hd::type_list<From...> all) { (to_each(std::type_identity<From>{}, all), ...); }(both{});
    });
  transport_test::merge(problems);
  for (const std::string& text : problems) FAIL_CHECK(text);
}

TEST_CASE("a gradient is settled where its parameter is replicated, and nowhere else", "[tensor][gradient][ranks]") {
  using weight = on<hd::shard<1, tp>>;
  using norm = on<hd::identical<tp>>;
  std::vector<char> ok(6, 0);
  transport_test::launch<grid>([&](auto& world) {
    const double mine = 1 + world.template coordinate<dp>();
    hd::sharded<double, 2, hd::dual<weight>> g(hd::dual<weight>{}, hd::shape{2, 3}, world.rank());
    for (double& e : g.elements()) e = mine;
    hd::sharded<double, 1, hd::dual<norm>> n(hd::dual<norm>{}, hd::shape{4}, world.rank());
    for (double& e : n.elements()) e = mine;
    const auto settled = hd::settle_gradient<weight>(std::move(g), world);
    const auto shared =
        hd::settle_gradient<norm, on<hd::shard<0, dp>, hd::identical<tp>>>(std::move(n), world);  // as ZeRO
    bool right = std::same_as<std::remove_cvref_t<decltype(settled)>, hd::sharded<double, 2, weight>>;
    for (const double e : settled.elements()) right = right && e == 3;
    for (const double e : shared.elements()) right = right && e == 3;
    right = right && settled.elements().size() == 2 && shared.elements().size() == 2;
    // 6 elements of 3 and, identical over tp, 4 elements of 3: each counted once, however many ranks hold them.
    right = right && hd::squared_norm(world, settled, shared) == 90;
    const auto squares = hd::reduce<tp>(hd::sum_of_squares(settled), world);
    right = right && squares.elements()[0] == 54;
    right = right && hd::reduce<dp>(hd::sum_of_squares(shared), world).elements()[0] == 36;
    ok[static_cast<std::size_t>(world.rank())] = right;
  });
  transport_test::share(ok);
  CHECK(ok == std::vector<char>(6, 1));
}

#if !defined(HEDDLE_TEST_MPI)
TEST_CASE("gradients are settled and counted in memory that the host cannot touch", "[tensor][gradient][ranks]") {
  using space = hd::testing::checked_memory;
  using weight = on<hd::shard<1, tp>>;
  using norm = on<hd::identical<tp>>;
  using loss = on<hd::partial<hd::plus, dp>, hd::identical<tp>>;
  std::vector<char> ok(6, 0);
  transport_test::launch<grid>([&](auto& world) {
    const double mine = 1 + world.template coordinate<dp>();
    space::queue queue;
    hd::sharded<double, 2, hd::dual<weight>, space> g(queue, hd::dual<weight>{}, hd::shape{2, 4}, world.rank());
    hd::sharded<double, 1, hd::dual<norm>, space> n(queue, hd::dual<norm>{}, hd::shape{4}, world.rank());
    const auto ones = [mine](const auto& x) {
      for (double& e : x.elements()) e = mine;
    };
    queue.run(ones, g.memory());
    queue.run(ones, n.memory());
    const auto settled = hd::settle_gradient<weight>(std::move(g), world, queue);
    const auto shared = hd::settle_gradient<norm, on<hd::shard<0, dp>, hd::identical<tp>>>(std::move(n), world, queue);
    const auto calls = [&] {
      return std::array{world.all().counters().collectives(), world.control().counters().collectives()};
    };
    const auto before = calls();
    bool right = hd::squared_norm(queue, world, settled, shared) == 108;  // 8 and 4 elements of 3
    const auto after = calls();  // a number in the host's memory goes over the control plane
    right = right && after[0] == before[0] && after[1] == before[1] + 1;
    const auto number = [&](const auto& x) { return hd::copy_to<hd::host_memory>(queue, x).elements()[0]; };
    right = right && number(hd::reduce<tp>(hd::sum_of_squares(queue, settled), world, queue)) == 72;
    right = right && number(hd::reduce<dp>(hd::sum_of_squares(queue, shared), world, queue)) == 36;
    const hd::sharded<double, 0, loss, space> l(queue, loss{}, hd::dynamic_shape<0>{}, world.rank());
    right = right && number(hd::gradient_seed(queue, l)) == 1;
    ok[static_cast<std::size_t>(world.rank())] = right;
  });
  CHECK(ok == std::vector<char>(6, 1));
}
#endif

TEST_CASE("experts' gradients are summed over the ranks that hold the same experts", "[tensor][gradient][ranks]") {
  using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<experts, 2>>;
  using weight = hd::layout<mesh, hd::shard<0, experts>>;
  std::vector<double> got(4, 0);
  transport_test::launch<mesh>([&](auto& world) {
    hd::sharded<double, 2, hd::dual<weight>> g(hd::dual<weight>{}, hd::shape{2, 1}, world.rank());
    g.elements()[0] = 1 + world.rank();
    got[static_cast<std::size_t>(world.rank())] = hd::reduce<dp>(std::move(g), world).elements()[0];
  });
  transport_test::share(got);
  CHECK(got == std::vector<double>{4, 6, 4, 6});  // 1 + 3 and 2 + 4
}

TEST_CASE("backward starts from one, where the loss says", "[tensor][gradient]") {
  using loss = on<hd::partial<hd::plus, dp>, hd::identical<tp>>;
  const hd::sharded<double, 0, loss> l(loss{}, hd::dynamic_shape<0>{}, 4);
  const auto seed = hd::gradient_seed(l);
  STATIC_REQUIRE(std::same_as<std::remove_cvref_t<decltype(seed.layout())>, on<hd::identical<tp>>>);
  CHECK(seed.elements()[0] == 1);
}

TEST_CASE("a norm refuses a part of another rank or of another world", "[tensor][gradient][ranks]") {
  using mesh = hd::mesh<hd::axis<tp>>;
  using weight = hd::layout<mesh, hd::shard<0, tp>>;
  std::vector<char> ok(2, 0);
  transport_test::launch(mesh{2}, [&](auto& world) {
    const auto refuses = [&](const hd::sharded<double, 1, weight>& x) {
      try {
        return hd::squared_norm(world, x) < 0;
      } catch (const hd::layout_error&) {
        return true;
      }
    };
    hd::sharded<double, 1, weight> x(weight{mesh{2}}, hd::shape{4}, world.rank());
    for (double& e : x.elements()) e = 1;
    bool right = hd::squared_norm(world, x) == 4;
    right = right && refuses({weight{mesh{4}}, hd::shape{4}, world.rank()});
    right = right && refuses({weight{mesh{2}}, hd::shape{4}, 1 - world.rank()});
    [[maybe_unused]] const auto gone = std::move(x).release();
    right = right && refuses(x);
    ok[static_cast<std::size_t>(world.rank())] = right;
  });
  transport_test::share(ok);
  CHECK(ok == std::vector<char>(2, 1));
}
