// tests/train/activation_cache_test.cpp: the cache of activations: what is stored once, forwarded, loaded, and when.
#include "activation_stores.hpp"
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/sim/activation_offload.hpp>
#include <heddle/train/activations/cache.hpp>

#include <cstring>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
using namespace activation_stores;

namespace {
constexpr std::int64_t page = 4096;

void fill(std::span<std::byte> bytes, std::uint64_t with) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((with * 131 + i * 7 + i / 256) & 255);
}
bool holds(std::span<const std::byte> bytes, std::uint64_t with) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != static_cast<std::byte>((with * 131 + i * 7 + i / 256) & 255)) return false;
  return true;
}
}  // namespace

TEST_CASE("memory is lent out by pages, used again, and every loan has its stamp", "[train][offload]") {
  act::memory m;
  auto a = m.take(5000);
  CHECK(a.bytes().size() == 5000);
  CHECK(reinterpret_cast<std::uintptr_t>(a.bytes().data()) % 4096 == 0);
  CHECK(m.bytes() == 2 * page);
  const auto mark = a.mark();
  std::byte* const where = a.bytes().data();
  auto copy = a;
  a = {};
  CHECK(m.bytes() == 2 * page);
  CHECK(m.again(mark).bytes().data() == where);
  CHECK(m.again(mark).bytes().size() == 5000);
  copy = {};
  CHECK(m.bytes() == 0);
  CHECK_FALSE(m.again(mark));
  auto b = m.take(8000);  // the same block
  CHECK(b.bytes().data() == where);
  CHECK(b.mark().stamp != mark.stamp);
  CHECK_FALSE(m.again(mark));
  CHECK_FALSE(m.again({}));
  auto c = std::move(b);
  CHECK_FALSE(b);
  auto d = m.take(1);
  CHECK(m.peak_bytes() == 3 * page);
  d = m.take(4'200'000);  // in huge pages, where there are any; counted in small ones
  CHECK(reinterpret_cast<std::uintptr_t>(d.bytes().data()) % hd::huge_page == 0);
  CHECK(m.bytes() == (2 + 1026) * page);
  d = {};
  CHECK(m.allocated_bytes() == (3 + 1026) * page);
}

TEST_CASE("in virtual time the cache does what the worked table says", "[train][offload]") {
  // 24 layers of 10 ms and 10 pages, which stand for 0.5 GB.
  constexpr std::int64_t bytes = 10 * page;
  struct row {
    double gb_per_s;
    std::size_t first_kept;
    int forwarded, loaded, peak_layers;
    double stall;
  };
  for (const row& r : {row{12.5, 11, 0, 11, 19, 200}, row{25, 17, 1, 16, 13, 0}, row{40, 22, 2, 20, 6, 0}}) {
    CAPTURE(r.gb_per_s);
    act::memory m;
    virtual_store store;
    store.bytes_per_time = r.gb_per_s / 1000 / 0.5 * bytes;
    act::cache cache(store, m, 0, true);
    std::vector<int> ids(24);
    std::int64_t peak = 0;  // layers that have ended
    for (int l = 0; l < 24; ++l) {
      cache.collect();
      const auto lease = m.take(bytes);
      fill(lease.bytes(), static_cast<std::uint64_t>(l));
      store.now += 10;
      cache.collect();
      peak = std::max(peak, m.bytes());
      ids[static_cast<std::size_t>(l)] =
          cache.save(lease, lease.bytes(), l, static_cast<std::size_t>(l) >= r.first_kept);
    }
    for (int l = 23; l >= 0; --l) {
      for (int k = l - 1; k >= 0 && k >= l - 2; --k) cache.prefetch(k);
      CHECK(holds(cache.use(ids[static_cast<std::size_t>(l)]), static_cast<std::uint64_t>(l)));
      peak = std::max(peak, m.bytes());
      store.now += 20;
      cache.end(l);
    }
    CHECK(cache.counters().forwarded == r.forwarded);
    CHECK(cache.counters().loaded == r.loaded);
    CHECK(cache.counters().stored == r.forwarded + r.loaded);
    CHECK(cache.counters().bytes_stored == cache.counters().stored * bytes);
    CHECK(store.stalled == Approx(r.stall).margin(1e-6));
    CHECK(peak == r.peak_layers * bytes);
    store.now += 1e6;
    cache.collect();
    CHECK(m.bytes() == 0);
    // The simulation of plain times says the same.
    const std::vector<hd::sim::offloaded_layer> layers(24, {10, 20, 0.5});
    const auto o = hd::sim::simulate_offload(layers, {r.gb_per_s / 1000, r.gb_per_s / 1000}, r.first_kept);
    CHECK(o.forwarded == r.forwarded);
    CHECK(o.stall == Approx(store.stalled).margin(1e-6));
  }
}

TEST_CASE("a tensor that several operators save is stored once", "[train][offload]") {
  act::memory m;
  instant_store store;
  act::cache cache(store, m, 100);
  auto input = m.take(3 * page);
  fill(input.bytes(), 1);
  const int q = cache.save(input, input.bytes(), 0), k = cache.save(input, input.bytes(), 1),
            v = cache.save(input, input.bytes(), 1);
  CHECK(q == k);
  CHECK(k == v);
  // A part of it is another tensor, and a small one is not stored.
  const int part = cache.save(input, input.bytes().subspan(page, page), 0);
  CHECK(part != q);
  const int small = cache.save(input, input.bytes().first(99), 0);
  CHECK(store.counters().stores == 2);
  CHECK(store.counters().bytes_written == 4 * page);
  CHECK(cache.counters().repeated == 2);
  CHECK(cache.counters().kept == 1);
  CHECK(cache.counters().bytes_kept == 99);
  input = {};
  CHECK(m.bytes() == 3 * page);  // the small one holds it
  CHECK(holds(cache.use(q), 1));
  CHECK(cache.counters().forwarded == 1);
  CHECK(cache.use(small).size() == 99);
  cache.end(0);
  CHECK(holds(cache.use(k), 1));  // scope 1 needs it still
  CHECK(store.held() == 1);
  cache.end(1);
  CHECK(store.held() == 0);
  CHECK(m.bytes() == 0);
}

TEST_CASE("other data at the same address are another tensor", "[train][offload]") {
  const std::uint64_t seed = 4;
  CAPTURE(seed);
  const hd::counter_random random(seed, 1);
  std::uint64_t at = 0;
  act::memory m;
  act::memory_store store;
  act::cache cache(store, m);
  for (int step = 0; step < 4; ++step) {  // pooled memory, more than three steps
    std::vector<int> ids;
    std::vector<std::uint64_t> contents;
    for (int i = 0; i < 40; ++i) {
      auto lease = m.take(page * static_cast<std::int64_t>(1 + random.integer(at++) % 3));
      contents.push_back(random.integer(at++));
      fill(lease.bytes(), contents.back());
      ids.push_back(cache.save(lease, lease.bytes(), i));
      if (i % 3 == 0) store.wait(ids.back());
    }
    for (int i = 39; i >= 0; --i) {
      if (i > 0) cache.prefetch(i - 1);
      CHECK(holds(cache.use(ids[static_cast<std::size_t>(i)]), contents[static_cast<std::size_t>(i)]));
      cache.end(i);
    }
  }
  CHECK(cache.counters().repeated == 0);
  CHECK(cache.counters().stored == 160);
  CHECK(cache.counters().loaded + cache.counters().forwarded == 160);
  CHECK(cache.counters().loaded >= 40);
  cache.reset();
  CHECK(cache.counters().bytes_stored - cache.counters().bytes_cancelled == store.counters().bytes_written);
  CHECK(cache.counters().bytes_loaded == store.counters().bytes_read);
  CHECK(cache.counters().bytes_stored == cache.counters().bytes_loaded + cache.counters().bytes_forwarded);
  CHECK(m.bytes() == 0);
}

TEST_CASE("an instant store forwards nothing, a slow one does", "[train][offload]") {
  const auto run = [](auto& store, act::memory& m) {
    act::cache cache(store, m);
    for (int l = 0; l < 6; ++l) {
      auto lease = m.take(16 * page);
      fill(lease.bytes(), static_cast<std::uint64_t>(l));
      CHECK(cache.save(lease, lease.bytes(), l) == l);
    }
    for (int l = 5; l >= 0; --l) {
      CHECK(holds(cache.use(l), static_cast<std::uint64_t>(l)));
      cache.end(l);
    }
    return cache.counters();
  };
  {
    act::memory m;
    instant_store store;
    const auto c = run(store, m);
    CHECK(c.forwarded == 0);
    CHECK(c.loaded == 6);
    CHECK(m.peak_bytes() == 16 * page);
    CHECK(m.allocated_bytes() == 16 * page);
  }
  {
    act::memory m;
    slow_store<2'000'000> store;  // 33 ms each; the steps take none
    const auto c = run(store, m);
    CHECK(c.forwarded > 0);
    CHECK(c.loaded + c.forwarded == 6);
    CHECK(c.loaded == store.counters().loads);  // no read before its write ended: the store would have refused it
  }
}

TEST_CASE("what is forwarded or not needed any more is not written, and its memory is free", "[train][offload]") {
  act::memory m;
  gated_store<act::memory_device> store;
  act::cache cache(store, m, 0, true);
  const auto save = [&](int scope) {
    auto lease = m.take(4 * page);
    fill(lease.bytes(), static_cast<std::uint64_t>(scope));
    return cache.save(lease, lease.bytes(), scope);
  };
  for (int l = 0; l < 6; ++l) CHECK(save(l) == l);
  store.device().wait_until_begun(1);
  CHECK(cache.waiting_bytes() == 24 * page);
  for (int l = 5; l >= 2; --l) {
    CHECK(holds(cache.use(l), static_cast<std::uint64_t>(l)));
    CHECK(cache.counters().cancelled == 6 - l);
    cache.end(l);
    CHECK(m.bytes() == 4 * page * l);
  }
  CHECK(cache.waiting_bytes() == 8 * page);
  cache.end(1);  // its backward will not come
  CHECK(m.bytes() == 4 * page);
  CHECK(holds(cache.use(0), 0));  // being written
  cache.end(0);
  CHECK(m.bytes() == 4 * page);
  // Steps that a store does not keep up with: nothing piles up.
  for (int step = 0; step < 5; ++step) {
    std::vector<int> ids;
    for (int l = 0; l < 6; ++l) ids.push_back(save(l));
    for (int l = 5; l >= 0; --l) {
      CHECK(holds(cache.use(ids[static_cast<std::size_t>(l)]), static_cast<std::uint64_t>(l)));
      cache.end(l);
    }
  }
  CHECK(m.peak_bytes() == (6 + 1) * 4 * page);
  store.device().open_gate();
  const int last = save(0);
  store.wait(last);
  cache.collect();
  CHECK(holds(cache.use(last), 0));
  cache.end(0);
  const act::cache_counters c = cache.counters();
  CHECK(c.stored == 37);
  CHECK(c.forwarded == 35);
  CHECK(c.loaded == 1);
  CHECK(c.cancelled == 35);  // of those forwarded all but the first, and the one whose backward did not come
  CHECK(c.bytes_cancelled == 35 * 4 * page);
  CHECK(store.counters().stores == c.stored - c.cancelled);
  CHECK(store.counters().bytes_written == c.bytes_stored - c.bytes_cancelled);
  CHECK(store.counters().cancelled == c.cancelled);
  CHECK(store.device().begun == 2);
  CHECK(m.bytes() == 0);
  CHECK(cache.waiting_bytes() == 0);
}

TEST_CASE("a tensor that several scopes use is there for all of them when its write was cancelled",
          "[train][offload]") {
  act::memory m;
  gated_store<act::memory_device> store;
  act::cache cache(store, m);
  const auto save = [&](std::uint64_t content, int scope) {
    auto lease = m.take(page);
    fill(lease.bytes(), content);
    const int id = cache.save(lease, lease.bytes(), scope);
    CHECK(cache.save(lease, lease.bytes(), scope + 1) == id);
    return id;
  };
  save(1, 0);
  const int id = save(2, 2);
  cache.prefetch(2);
  CHECK(cache.counters().cancelled == 1);
  CHECK(holds(cache.use(id), 2));
  cache.end(2);
  CHECK_FALSE(cache.is_away(3));
  CHECK(holds(cache.use(id), 2));
  cache.end(3);
  CHECK(m.bytes() == page);
  store.device().open_gate();
  cache.reset();
  CHECK(m.bytes() == 0);
}

TEST_CASE("a load that comes late is waited for, and counted", "[train][offload]") {
  act::memory m;
  slow_store<4'000'000> store;
  act::cache cache(store, m);
  {
    auto lease = m.take(16 * page);
    fill(lease.bytes(), 9);
    cache.save(lease, lease.bytes(), 0);
  }
  store.wait(0);
  cache.collect();
  CHECK(m.bytes() == 0);
  CHECK(cache.is_away(0));
  CHECK(holds(cache.use(0), 9));
  CHECK(cache.counters().stalls == 1);
  CHECK(cache.counters().stall_seconds > 0.005);
  CHECK_FALSE(cache.is_away(0));
}

TEST_CASE("errors of the store are thrown once, and the cache can be used again", "[train][offload]") {
  act::memory m;
  failing_store store;
  act::cache cache(store, m);
  const auto save = [&](int scope) {
    auto lease = m.take(2 * page);
    fill(lease.bytes(), static_cast<std::uint64_t>(scope));
    return cache.save(lease, lease.bytes(), scope);
  };
  SECTION("no room") {
    failing_device::fail_after(1, 9, 9);
    save(0);
    CHECK_THROWS_WITH(save(1), Catch::Contains("No space left on device"));
  }
  SECTION("a write") {  // whichever call comes next
    failing_device::fail_after(9, 1, 9);
    const auto until_it_fails = [&] {
      save(0);
      save(1);
      for (;;) cache.collect();
    };
    CHECK_THROWS_WITH(until_it_fails(), Catch::Contains("writing failed: No space left on device"));
  }
  SECTION("a read") {
    failing_device::fail_after(9, 9, 0);
    save(0);
    store.wait(0);
    CHECK_THROWS_WITH(cache.use(0), Catch::Contains("reading failed: Input/output error"));
  }
  cache.reset();
  CHECK(m.bytes() == 0);
  failing_device::fail_after(99, 99, 99);
  for (int l = 0; l < 3; ++l) save(l);
  for (int l = 2; l >= 0; --l) {
    CHECK(holds(cache.use(l), static_cast<std::uint64_t>(l)));
    cache.end(l);
  }
}

TEST_CASE("whoever writes over a saved tensor is found", "[train][offload]") {
  act::memory m;
  instant_store store;
  act::cache cache(store, m, 0, true);
  auto lease = m.take(page);
  fill(lease.bytes(), 1);
  const int id = cache.save(lease, lease.bytes(), 0);
  lease.bytes()[7] ^= std::byte{1};
  CHECK_THROWS_WITH(cache.use(id), Catch::Contains("are not what they were"));
}
