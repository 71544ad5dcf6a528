#include <heddle/testing/counting_world.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/testing/checked_memory.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace counting = heddle::testing::counting;
namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
using all_ranks = hd::mesh<hd::axis<dp>>;
using one = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using other = hd::mesh<hd::axis<tp>>;

// Whether the tensor arrives, in memory of a space, each rank sending what the plan says.
template <class Space = hd::host_memory, class From, class To>
bool arrives(const From& from, hd::rank_range source, const To& to, hd::rank_range target, int ranks,
             const hd::dynamic_shape<2>& s = {7, 5}) {
  std::vector<double> whole(static_cast<std::size_t>(s.size()));
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<double>(i * 37 % 101) + 1;
  const hd::view<const double, hd::dynamic_shape<2>> v(whole.data(), s);
  const auto plan = hd::plan_transfer(from, source, to, target);
  std::vector<std::optional<hd::sharded<double, 2, To>>> got(static_cast<std::size_t>(ranks));
  std::vector<char> counted(static_cast<std::size_t>(ranks), 0);
  hd::testing::counting::run<all_ranks>(all_ranks{ranks}, [&](auto& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    const int place = plan.source_of(world.rank());
    std::optional<hd::sharded<double, 2, From>> x;
    if (place >= 0) x.emplace(hd::shard_of(v, from, place));
    if constexpr (Space::host_accessible) {
      got[me] = hd::transfer(plan, s, x ? &*x : nullptr, world);
    } else {
      typename Space::queue queue;
      std::optional<hd::sharded<double, 2, From, Space>> there;
      if (x) there.emplace(hd::copy_to<Space>(queue, *x));
      const auto arrived = hd::transfer(plan, s, there ? &*there : nullptr, world, queue);
      queue.wait();
      if (arrived) got[me].emplace(hd::copy_to<hd::host_memory>(queue, *arrived));
    }
    world.all().barrier();
    counted[me] = world.bytes_sent() == plan.bytes_sent(s, sizeof(double), world.rank());
  });
  std::vector<hd::sharded<double, 2, To>> parts;
  for (const int r : plan.to_ranks()) parts.push_back(std::move(*got[static_cast<std::size_t>(r)]));
  const auto back = hd::assemble(std::span<const hd::sharded<double, 2, To>>(parts));
  bool ok = std::equal(whole.begin(), whole.end(), back.begin(), back.end());
  for (const char c : counted) ok = ok && c != 0;
  return ok;
}
}  // namespace

TEST_CASE("a tensor goes from some ranks to others", "[tensor][transfer]") {
  namespace split = hd::split;
  const hd::layout<one, hd::shard<0, dp>, hd::shard<1, split::zigzag, tp>> a{one{2, 2}};
  const hd::layout<one, hd::shard<0, dp>, hd::partial<hd::plus, tp>> p{one{2, 2}};
  const hd::layout<one> r{one{2, 2}};
  const hd::layout<other, hd::shard<0, split::block_cyclic<2>, tp>> b{other{3}};
  const hd::layout<other, hd::shard<1, split::padded<>, tp>> c{other{3}};
  const hd::layout<other, hd::partial<hd::maximum, tp>> q{other{3}};
  for (const int first : {4, 2, 0}) {  // apart, overlapping, inside
    CAPTURE(first);
    const hd::rank_range from{0, 4}, to{first, 3};
    CHECK(arrives(a, from, b, to, 8));
    CHECK(arrives(a, from, c, to, 8));
    CHECK(arrives(a, from, q, to, 8));
    CHECK(arrives(p, from, b, to, 8));
    CHECK(arrives(p, from, c, to, 8));
    CHECK(arrives(r, from, c, to, 8));
    CHECK(arrives(r, from, q, to, 8));
    CHECK(arrives(b, to, a, from, 8));
    CHECK(arrives(c, to, r, from, 8));
    CHECK(arrives(q, to, p, from, 8));
  }
}

TEST_CASE("contributions come to equal copies elsewhere by way of parts", "[tensor][transfer]") {
  const hd::layout<one, hd::shard<0, dp>, hd::partial<hd::plus, tp>> p{one{2, 3}};
  const hd::layout<one, hd::partial<hd::plus, dp, tp>> sums{one{2, 3}};
  const hd::layout<one> r{one{2, 2}};
  const hd::layout<one, hd::shard<0, hd::split::zigzag, dp>> rows{one{2, 2}};
  const hd::layout<one, hd::shard<1, hd::split::padded<>, tp>> columns{one{2, 2}};
  const hd::layout<one, hd::partial<hd::maximum, tp>> other{one{2, 2}};
  for (const auto& s : {hd::dynamic_shape<2>{7, 5}, {1, 3}, {2, 1}, {8, 8}})
    for (const int first : {6, 4, 0}) {  // apart, overlapping, inside
      CAPTURE(first, s[0], s[1]);
      const hd::rank_range from{0, 6}, to{first, 4};
      CHECK(arrives(p, from, r, to, 10, s));
      CHECK(arrives(sums, from, r, to, 10, s));
      CHECK(arrives(sums, from, rows, to, 10, s));
      CHECK(arrives(p, from, columns, to, 10, s));
      CHECK(arrives(sums, from, other, to, 10, s));
    }
}

TEST_CASE("a tensor goes from some ranks to others in memory that the host cannot touch", "[tensor][transfer]") {
  using hd::testing::checked_memory;
  const hd::layout<one, hd::shard<0, dp>, hd::partial<hd::plus, tp>> p{one{2, 2}};
  const hd::layout<one, hd::partial<hd::plus, dp, tp>> sums{one{2, 2}};
  const hd::layout<one> r{one{2, 2}};
  const hd::layout<other, hd::shard<1, hd::split::padded<>, tp>> c{other{3}};
  for (const int first : {4, 2}) {
    CAPTURE(first);
    const hd::rank_range from{0, 4}, to{first, 3}, copies{first, 4};
    CHECK(arrives<checked_memory>(p, from, c, to, 8));
    CHECK(arrives<checked_memory>(c, to, p, from, 8));
    CHECK(arrives<checked_memory>(sums, from, r, copies, 8));
  }
}

TEST_CASE("a transfer refuses ranks that do not exist", "[tensor][transfer][ranks]") {
  const hd::layout<other, hd::shard<0, tp>> x{other{2}};
  CHECK_THROWS_AS(hd::plan_transfer(x, std::vector<int>{0, -1}, x, std::vector<int>{0, 1}), hd::layout_error);
  CHECK_THROWS_AS(hd::plan_transfer(x, hd::rank_range{0, 2}, x, hd::rank_range{-2, 2}), hd::layout_error);
  const auto from_nowhere = hd::plan_transfer(x, std::vector<int>{0, 7}, x, std::vector<int>{1, 0});
  const auto to_nowhere = hd::plan_transfer(x, std::vector<int>{0, 1}, x, std::vector<int>{1, 2});
  std::vector<int> refused(2, 0);
  transport_test::launch(other{2}, [&](auto& world) {
    const hd::dynamic_shape<1> s{4};
    const hd::sharded<double, 1, hd::layout<other, hd::shard<0, tp>>> part(x, s, world.rank());
    for (const auto* plan : {&from_nowhere, &to_nowhere}) {
      try {
        static_cast<void>(hd::transfer(*plan, s, plan->source_of(world.rank()) >= 0 ? &part : nullptr, world));
      } catch (const hd::layout_error&) {
        ++refused[static_cast<std::size_t>(world.rank())];
      }
    }
  });
  transport_test::share(refused);
  CHECK(refused == std::vector<int>(2, 2));
}
