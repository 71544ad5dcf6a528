#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/tensor/redistribute_async.hpp>

#include "catch.hpp"
#include "tensor/counting_world.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::tp;

namespace {
using some = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using fixed = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;

template <class Layout>
hd::sharded<double, 2, Layout> some_part(const Layout& l, const hd::dynamic_shape<2>& s, int rank) {
  std::vector<double> whole(static_cast<std::size_t>(s.size()));
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<double>(i * 37 % 101) + 1;
  auto x = hd::shard_of(hd::view<const double, hd::dynamic_shape<2>>(whole.data(), s), l, rank);
  if constexpr (Layout::has_partial)
    for (double& e : x.elements()) e += rank;
  return x;
}
template <class A, class B>
bool equal(const A& a, const B& b) {
  return std::equal(a.elements().begin(), a.elements().end(), b.elements().begin(), b.elements().end());
}

// Starts several tensors at once, waits in an order of the rank's own, and compares with the blocking calls.
template <class Mesh, class World>
bool overlaps(World& world, const hd::dynamic_shape<2>& s) {
  namespace split = hd::split;
  using A = hd::layout<Mesh, hd::shard<0, dp, tp>>;
  using B = hd::layout<Mesh, hd::shard<0, split::zigzag, tp, dp>>;
  using C = hd::layout<Mesh, hd::shard<1, split::padded<>, tp>>;
  using P = hd::layout<Mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  using Q = hd::layout<Mesh, hd::partial<hd::maximum, dp, tp>>;
  using R = hd::layout<Mesh>;
  const auto& m = world.mesh();
  const auto a = some_part(A{m}, s, world.rank());
  const auto c = some_part(C{m}, s, world.rank());
  const auto p = some_part(P{m}, s, world.rank());
  const auto q = some_part(Q{m}, s, world.rank());
  const auto ab = hd::redistribute<B>(a, world);
  const auto ac = hd::redistribute<C>(a, world);
  const auto pr = hd::redistribute<R>(p, world);
  const auto qr = hd::redistribute<R>(q, world);
  const auto pa = hd::redistribute<A>(p, world);
  const auto cq = hd::redistribute<Q>(c, world);
  const auto cp = hd::redistribute<P>(c, world);
  const auto cr = hd::redistribute<R>(c, world);

  hd::redistribution_queue queue(world);
  auto ab_later = queue.template start<B>(a);
  auto ac_later = queue.template start<C>(a);
  auto pr_later = queue.template start<R>(p);
  auto qr_later = queue.template start<R>(q);
  auto pa_later = queue.template start<A>(p);
  auto cq_later = queue.template start<Q>(c);
  auto cp_later = queue.template start<P>(some_part(C{m}, s, world.rank()));
  auto cr_later = queue.template start<R>(c);
  auto same = queue.template start<A>(a);
  bool ok = same.ready();
  if (world.rank() % 2 == 0) ok = ok && equal(std::move(cr_later).wait(), cr);
  ok = ok && equal(std::move(ab_later).wait(), ab);
  if (world.rank() % 3 == 0) ok = ok && equal(std::move(pr_later).wait(), pr);
  ok = ok && equal(std::move(qr_later).wait(), qr);
  if (world.rank() % 2 != 0) ok = ok && equal(std::move(cr_later).wait(), cr);
  ok = ok && equal(std::move(ac_later).wait(), ac);
  if (world.rank() % 3 != 0) ok = ok && equal(std::move(pr_later).wait(), pr);
  queue.progress();
  ok = ok && equal(std::move(pa_later).wait(), pa);
  ok = ok && equal(std::move(cq_later).wait(), cq);
  ok = ok && equal(std::move(cp_later).wait(), cp);
  ok = ok && equal(std::move(same).wait(), a);
  return ok && queue.unfinished() == 0;
}
}  // namespace

TEST_CASE("started redistributions overlap and give what the blocking ones do", "[tensor][redistribute][async]") {
  for (std::int64_t n : {0, 1, 7, 12})
    for (std::int64_t m : {1, 6, 9}) {
      CAPTURE(n, m);
      const hd::dynamic_shape<2> s{n, m};
      std::vector<char> ok(6, 0);
      hd::launch<hd::threads, fixed>(
          [&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = overlaps<fixed>(world, s); });
      CHECK(ok == std::vector<char>(6, 1));
      ok.assign(8, 0);
      hd::launch<hd::threads>(
          some{2, 4}, [&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = overlaps<some>(world, s); });
      CHECK(ok == std::vector<char>(8, 1));
    }
}

TEST_CASE("what nobody waits for ends with its queue", "[tensor][redistribute][async]") {
  std::vector<std::size_t> left(4, 9);
  hd::launch<hd::threads>(some{2, 2}, [&](auto& world) {
    using A = hd::layout<some, hd::shard<0, dp, tp>>;
    const auto a = some_part(A{world.mesh()}, {8, 3}, world.rank());
    hd::redistribution_queue queue(world);
    [[maybe_unused]] const auto dropped = queue.template start<hd::layout<some, hd::shard<1, dp, tp>>>(a);
    queue.finish();
    left[static_cast<std::size_t>(world.rank())] = queue.unfinished();
    [[maybe_unused]] const auto also = queue.template start<hd::layout<some>>(a);
  });
  CHECK(left == std::vector<std::size_t>(4, 0));
}

TEST_CASE("a started redistribution sends the bytes of its plan", "[tensor][redistribute][async]") {
  using P = hd::layout<some, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  using R = hd::layout<some>;
  const some m{2, 3};
  const hd::dynamic_shape<2> s{7, 5};
  const auto plan = hd::plan_redistribution(P{m}, R{m});
  std::vector<std::int64_t> sent(6), said(6);
  counting::run<some>(m, [&](auto& world) {
    const auto x = some_part(P{m}, s, world.rank());
    {
      hd::redistribution_queue queue(world);
      [[maybe_unused]] const auto y = queue.template start<R>(x);
    }
    world.all().barrier();
    sent[static_cast<std::size_t>(world.rank())] = world.bytes_sent();
    said[static_cast<std::size_t>(world.rank())] = plan.bytes_sent(s, sizeof(double), world.rank());
  });
  CHECK(sent == said);
}
