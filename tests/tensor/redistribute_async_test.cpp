#include <heddle/testing/counting_world.hpp>
#include <heddle/tensor/redistribute_async.hpp>

#include "catch.hpp"
#include "transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wconsumed"  // some redistributions are lost on purpose
#endif

namespace counting = heddle::testing::counting;
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

TEST_CASE("started redistributions overlap and give what the blocking ones do", "[tensor][redistribute][async][ranks]") {
  for (std::int64_t n : {0, 1, 7, 12})
    for (std::int64_t m : {1, 6, 9}) {
      CAPTURE(n, m);
      const hd::dynamic_shape<2> s{n, m};
      std::vector<char> ok(6, 0);
      transport_test::launch<fixed>(
          [&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = overlaps<fixed>(world, s); });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(6, 1));
      ok.assign(8, 0);
      transport_test::launch(
          some{2, 4}, [&](auto& world) { ok[static_cast<std::size_t>(world.rank())] = overlaps<some>(world, s); });
      transport_test::share(ok);
      CHECK(ok == std::vector<char>(8, 1));
    }
}

TEST_CASE("what nobody waits for ends with its queue", "[tensor][redistribute][async][ranks]") {
  std::vector<std::size_t> left(4, 9);
  transport_test::launch(some{2, 2}, [&](auto& world) {
    using A = hd::layout<some, hd::shard<0, dp, tp>>;
    const auto a = some_part(A{world.mesh()}, {8, 3}, world.rank());
    hd::redistribution_queue queue(world);
    [[maybe_unused]] const auto dropped = queue.template start<hd::layout<some, hd::shard<1, dp, tp>>>(a);
    queue.finish();
    left[static_cast<std::size_t>(world.rank())] = queue.unfinished();
    [[maybe_unused]] const auto also = queue.template start<hd::layout<some>>(a);
  });
  transport_test::share(left);
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

namespace {
using four = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;
using pair = hd::mesh<hd::axis<tp, 2>>;
using sum = hd::layout<pair, hd::partial<hd::plus, tp>>;
using rows = hd::layout<pair, hd::shard<0, tp>>;
using copies = hd::layout<pair>;

template <class L, class World>
hd::sharded<double, 1, L> filled(World& world, double value, std::int64_t n = 4) {
  hd::sharded<double, 1, L> x(L{}, hd::dynamic_shape<1>{n}, world.rank());
  for (double& e : x.elements()) e = value;
  return x;
}
template <class X>
bool all_are(const X& x, double value) {
  for (const double e : x.elements())
    if (e != value) return false;
  return true;
}
bool both(std::vector<char> ok) {
  return ok == std::vector<char>(ok.size(), 1);
}
using namespace std::chrono_literals;
}  // namespace

// Each rank needs, for what it waits for, what another waits to go on with: whoever waits must let all go on, for as long as
// the launch allows.
TEST_CASE("ranks that are late do not block those that wait in another order", "[tensor][redistribute][async][ranks]") {
  using A = hd::layout<four, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
  using B = hd::layout<four, hd::shard<0, dp, tp>>;
  using R = hd::layout<four>;
  std::vector<char> ok(4, 0);
  hd::launch_options options;
  options.timeout = 20s;
  transport_test::launch<four>(options, [&](auto& world) {
    const int r = world.rank();
    const auto a = filled<A>(world, 1, 16);
    const auto b = filled<B>(world, 3, 16);
    hd::redistribution_queue queue(world);
    std::this_thread::sleep_for(r == 3 ? 0ms : r == 0 ? 20ms : r == 2 ? 40ms : 60ms);
    auto a_later = queue.template start<R>(a);
    if (r == 1) std::this_thread::sleep_for(200ms);
    auto b_later = queue.template start<R>(b);
    if (r == 3) std::this_thread::sleep_for(200ms);
    bool right = true;
    if (r == 2) right = all_are(std::move(b_later).wait(), 3);
    right = right && all_are(std::move(a_later).wait(), 2);
    if (r != 2) right = right && all_are(std::move(b_later).wait(), 3);
    ok[static_cast<std::size_t>(r)] = right;
  });
  transport_test::share(ok);
  CHECK(both(ok));
}

TEST_CASE("several queues on one world and its sub-worlds keep their messages apart", "[tensor][redistribute][async][ranks]") {
  std::vector<char> ok(2, 0);
  transport_test::launch<pair>([&](auto& world) {
    auto sub = world.template sub<tp>();
    const auto a = filled<sum>(world, 1), b = filled<sum>(world, 100), c = filled<sum>(world, 10000);
    hd::redistribution_queue first(world), second(world), third(sub);
    auto a_later = first.template start<copies>(a);
    if (world.rank() == 0) {  // its second round goes out before the other sum is started
      std::this_thread::sleep_for(20ms);
      first.progress();
      std::this_thread::sleep_for(20ms);
    } else {
      std::this_thread::sleep_for(10ms);
    }
    auto b_later = second.template start<copies>(b);
    auto c_later = third.template start<copies>(c);
    bool right = true;  // waited for in opposite orders
    if (world.rank() == 0) right = all_are(std::move(c_later).wait(), 20000) && all_are(std::move(b_later).wait(), 200);
    right = right && all_are(std::move(a_later).wait(), 2);
    if (world.rank() != 0)
      right = right && all_are(std::move(b_later).wait(), 200) && all_are(std::move(c_later).wait(), 20000);
    ok[static_cast<std::size_t>(world.rank())] = right;
  });
  transport_test::share(ok);
  CHECK(both(ok));
}

TEST_CASE("a wait that failed fails again", "[tensor][redistribute][async][threads]") {
  int failures = 0;
  bool ready = false;
  hd::launch_options options;
  options.timeout = 100ms;
  CHECK_THROWS_AS((transport_test::launch<pair>(options,
                                                 [&](auto& world) {
                                                   if (world.rank() == 1) {
                                                     std::this_thread::sleep_for(400ms);
                                                     return;
                                                   }
                                                   const auto a = filled<rows>(world, 5);
                                                   hd::redistribution_queue queue(world);
                                                   auto later = queue.template start<copies>(a);
                                                   for (int i = 0; i < 3; ++i) {
                                                     try {
                                                       auto y = std::move(later).wait();
                                                     } catch (const hd::comm_error&) {
                                                       ++failures;
                                                     }
                                                   }
                                                   ready = later.ready();
                                                   auto y = std::move(later).wait();
                                                 })),
                  hd::comm_error);
  CHECK(failures == 3);
  CHECK(ready);
}

TEST_CASE("a result is taken once", "[tensor][redistribute][async][ranks]") {
  std::vector<char> ok(2, 0);
  transport_test::launch<pair>([&](auto& world) {
    hd::redistribution_queue queue(world);
    auto later = queue.template start<copies>(filled<rows>(world, 5));
    bool right = all_are(std::move(later).wait(), 5);
    try {
      auto again = std::move(later).wait();
      right = false;
    } catch (const hd::layout_error&) {
    }
    ok[static_cast<std::size_t>(world.rank())] = right;
  });
  transport_test::share(ok);
  CHECK(both(ok));
}

// The source ends before the queue does; others still read what was started from it.
TEST_CASE("what was started is given up while an exception unwinds the stack",
          "[tensor][redistribute][async][threads]") {
  struct slow_end {
    ~slow_end() { std::this_thread::sleep_for(60ms); }
  };
  std::string text;
  try {
    transport_test::launch<pair>([&](auto& world) {
      hd::redistribution_queue queue(world);
      const slow_end end;
      const auto a = filled<rows>(world, 5, 1000);
      if (world.rank() == 1) std::this_thread::sleep_for(30ms);
      auto later = queue.template start<copies>(a);
      if (world.rank() == 0) throw std::runtime_error("on purpose");
      auto y = std::move(later).wait();
    });
  } catch (const std::exception& e) {
    text = e.what();
  }
  CHECK(text.find("on purpose") != std::string::npos);
}

TEST_CASE("what is dropped is finished before its source ends", "[tensor][redistribute][async][ranks]") {
  transport_test::launch<pair>([&](auto& world) {
    hd::redistribution_queue queue(world);
    {
      const auto a = filled<sum>(world, 5, 1000);
      if (world.rank() == 1) std::this_thread::sleep_for(10ms);
      [[maybe_unused]] auto dropped = queue.template start<copies>(a);
    }
    if (queue.unfinished() != 0) throw hd::comm_error("heddle: test: still under way");
  });
}
