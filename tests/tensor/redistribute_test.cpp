#include <heddle/tensor/gradient.hpp>
#include <heddle/tensor/ordered_sum.hpp>
#include <heddle/tensor/random.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/redistribute_async.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/testing/tensor_laws.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wconsumed"  // some redistributions are lost on purpose
#endif

namespace hd = heddle;
namespace ht = hd::testing;
namespace counting = ht::counting;
using hd::dp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;

template <class... Ls>
using list = hd::type_list<Ls...>;

/// Redistributes every pair on a world that counts, and compares values, copies, sources and bytes. Returns "" or what was wrong.
template <class From, class To, std::int64_t... E>
std::string wrong_moves(From from, To to, const mesh& m, const hd::shape<E...>& s) {
  return ht::check_redistributions(from, to, m, s).what;
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
  CHECK(ht::check_redistribution<to>(from{}, hd::shape{9, 3}).what == "");
}

TEST_CASE("any way round gives the same tensor", "[tensor][redistribute][law]") {
  // Path independence: A -> B -> C equals A -> C for exact values.
  using A = hd::layout<mesh, hd::partial<hd::plus, tp>>;
  using B = hd::layout<mesh, hd::shard<1, tp>>;
  using C = hd::layout<mesh, hd::shard<0, tp>>;
  CHECK(ht::check_path<A, B, hd::layout<mesh>, C>(mesh{1, 3}, hd::shape{7, 5}).what == "");
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

TEST_CASE("a part that was moved from is refused, and one that is refused is not taken",
          "[tensor][redistribute][ranks]") {
  using one = hd::mesh<hd::axis<hd::tp>>;
  using split = hd::layout<one, hd::shard<0, hd::tp>>;
  using whole = hd::layout<one>;
  const one mesh{2};
  std::vector<std::string> problems(2);
  transport_test::launch(mesh, [&](auto& world) {
    std::string& text = problems[static_cast<std::size_t>(world.rank())];
    const auto refused = [&](const char* what, auto&& call) {
      try {
        call();
        text += what;
      } catch (const hd::layout_error&) {
      }
    };
    hd::sharded<double, 1, split> x(split{mesh}, hd::dynamic_shape<1>{8}, world.rank());
    hd::sharded<double, 1, split> other(split{mesh}, hd::dynamic_shape<1>{8}, 1 - world.rank());
    hd::redistribution_queue queue(world);
    refused(" other", [&] { static_cast<void>(hd::redistribute<whole>(std::move(other), world)); });
    refused(" other started", [&] { static_cast<void>(queue.template start<whole>(std::move(other))); });
    if (other.elements().size() != 4) text += " taken";
    const auto y = hd::redistribute<whole>(std::move(x), world);
    const hd::counter_random random(1, 0);
    refused(" redistribute", [&] { static_cast<void>(hd::redistribute<whole>(x, world)); });
    refused(" start", [&] { static_cast<void>(queue.template start<whole>(x)); });
    refused(" ordered_total", [&] { static_cast<void>(hd::ordered_total(x, world)); });
    refused(" sum_of_squares", [&] { static_cast<void>(hd::sum_of_squares(x)); });
    refused(" dropout", [&] { hd::dropout(x, 0.5, random); });
    refused(" fill_uniform", [&] { hd::fill_uniform(x, random); });
    refused(" fill_normal", [&] { hd::fill_normal(x, random); });
    refused(" fill_by_index", [&] { hd::fill_by_index(x, [](std::int64_t) { return 0.0; }); });
    const auto plan = hd::plan_transfer(split{mesh}, hd::rank_range{0, 2}, whole{mesh}, hd::rank_range{0, 2});
    refused(" transfer", [&] { static_cast<void>(hd::transfer(plan, x.shape(), &x, world)); });
  });
  transport_test::share(problems);
  CHECK(problems == std::vector<std::string>(2));
}
