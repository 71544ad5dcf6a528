// tests/train/offloaded_layers_test.cpp: the memory of offloaded layers without a trainer: its peak, and what is tried.
#include "activation_stores.hpp"
#include "catch.hpp"
#include "tables.hpp"

#include <heddle/schedule/lower/lower.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/train/activations/stage_for.hpp>
#include <heddle/train/activations/host_store.hpp>
#include <heddle/train/activations/offload.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace act = heddle::activations;
using namespace activation_stores;

namespace {
template <class Amount, std::int64_t MinBytes, class Space = hd::host_memory>
using layers_of =
    act::offloaded_layers<double, rated_store, Amount, act::prefetch::ahead<2>, act::min_bytes<MinBytes>, Space>;

// So many steps of one microbatch; each forward takes some time.
template <class Layers>
void steps(Layers& memory, int n, int layers, int forward_ms = 0) {
  for (int step = 0; step < n; ++step) {
    memory.begin_step();
    for (int l = 0; l < layers; ++l) {
      memory.begin(0, l)[0] = l;
      std::this_thread::sleep_for(std::chrono::milliseconds(forward_ms));
      memory.saved(0, l);
    }
    for (int l = layers; l-- > 0;) {
      CHECK(memory.need(0, l)[0] == l);
      memory.done(0, l);
    }
  }
}
// The same in memory that the host may not touch, of several microbatches that go forward one after the other, then back; each layer's
// forward and backward take a millisecond of the queue's time.
template <class Layers>
void queued_steps(Layers& memory, hd::testing::checked_memory::queue& queue, int n, int slots, int layers) {
  const auto work = [&](auto row, auto&& f) {
    queue.run(
        [f](auto here) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          for (std::int64_t i = 0; i < here.size(); ++i) f(here(i), static_cast<double>(i));
        },
        row);
  };
  static std::atomic<int> wrong{0};
  wrong = 0;
  for (int step = 0; step < n; ++step) {
    memory.begin_step();
    for (int s = 0; s < slots; ++s)
      for (int l = 0; l < layers; ++l) {
        const double first = 1000 * step + 100 * s + l;
        work(memory.begin(s, l), [first](double& x, double i) { x = first + i; });
        memory.saved(s, l);
      }
    for (int s = 0; s < slots; ++s)
      for (int l = layers; l-- > 0;) {
        const double first = 1000 * step + 100 * s + l;
        const auto row = memory.need(s, l);
        work(row, [first](double& x, double i) { wrong += x != first + i; });
        CHECK(memory.need(s, l).address() == row.address());  // for the gradients of the weights
        work(row, [first](double& x, double i) { wrong += std::exchange(x, -1.0) != first + i; });
        memory.done(s, l);
      }
  }
  queue.wait();
  CHECK(wrong == 0);
}
void rates(double write, double read) {
  rated_store::write_rate = write;
  rated_store::read_rate = read;
}
}  // namespace

TEST_CASE("a store that reads slowly has no more layers in memory", "[train][offload]") {
  const std::vector<std::int64_t> elements(12, 4096);
  for (const double read : {1e15, 1e6, 1.0}) {
    CAPTURE(read);
    layers_of<act::amount::all, 0> memory({}, 1, elements);
    rates(1e15, 1e15);
    steps(memory, 2, 12);
    rates(1e15, read);
    steps(memory, 3, 12);
    CHECK(memory.report().tensors.loaded == 5 * 12);
    CHECK(memory.report().peak_bytes <= 4 * 4096 * 8);  // one that is used, two ahead, one that may be late
  }
}

TEST_CASE("a store that has recovered is found, whatever moved last", "[train][offload]") {
  SECTION("the first layer saves too little") {
    layers_of<act::amount::adaptive, 4096> memory({}, 1, std::vector<std::int64_t>{8, 4096, 4096});
    rates(1e15, 1e15);
    steps(memory, 4, 3);
    CHECK(memory.report().offloaded_layers == 2);
    rates(1, 1e15);
    steps(memory, 3, 3);
    CHECK(memory.report().offloaded_layers == 0);
    const std::int64_t before = memory.report().tensors.stored;
    rates(1e15, 1e15);
    steps(memory, 20, 3);
    CHECK(memory.report().offloaded_layers == 2);
    CHECK(memory.report().tensors.stored > before);
  }
  SECTION("the only layer fits the rule, which counts its forward, too, but would be late") {
    layers_of<act::amount::adaptive, 0> memory({}, 1, std::vector<std::int64_t>{4096});
    const double layer = 4096 * 8 / 0.005;  // bytes per second of its forward
    rates(0.8 * layer, 0.8 * layer);
    steps(memory, 6, 1, 5);
    rates(1e15, 1e15);
    const std::int64_t before = memory.report().tensors.stored;
    steps(memory, 20, 1, 1);
    CHECK(memory.report().tensors.stored > before + 2);
    CHECK(memory.report().bytes_per_second == Approx(1e15));
  }
}

TEST_CASE("layers leave memory that the host may not touch by copies, few at a time", "[train][offload][memory]") {
  using hd::testing::checked_memory;
  constexpr std::int64_t bytes = 4096 * 8;
  const std::vector<std::int64_t> elements(6, 4096);
  checked_memory::queue queue;
  rates(1e15, 1e15);
  {
    layers_of<act::amount::all, 0, checked_memory> memory(queue, {.verify = true}, 3, elements);
    queued_steps(memory, queue, 2, 3, 6);
    const act::offload_report r = memory.report();
    CHECK(r.tensors.stored == 2 * 3 * 6);
    CHECK(r.tensors.loaded == 2 * 3 * 6);
    CHECK(r.peak_bytes == bytes);
    CHECK(r.allocated_bytes == bytes);
    CHECK(r.peak_copied_bytes <= 4 * bytes);  // one that is used, two ahead, one that may be late
    static_cast<void>(memory.begin(0, 0));
    memory.saved(0, 0);
    memory.forget(0);  // its backward never comes
  }
  {  // in use, and to be forgotten, when an exception ends all
    layers_of<act::amount::all, 0, checked_memory> memory(queue, {}, 1, elements);
    memory.begin(0, 0);
    memory.saved(0, 0);
    static_cast<void>(memory.need(0, 0));
  }
  {  // the first layers save too little, the last one stays
    const std::vector<std::int64_t> uneven{4, 4096, 4, 4096};
    layers_of<act::amount::all, 64, checked_memory> memory(queue, {.keep_last = true}, 2, uneven);
    queued_steps(memory, queue, 2, 2, 4);
    CHECK(memory.report().tensors.stored == 2 * 2);
    CHECK(memory.report().tensors.kept == 2 * 2 * 3);
    CHECK(memory.report().tensors.bytes_kept == 2 * 2 * (4096 + 4 + 4) * 8);
  }
  {  // what is measured is the queue's time: a store needs a fourth of it
    layers_of<act::amount::adaptive, 0, checked_memory> memory(queue, {}, 1, elements);
    rates(4 * bytes / 1e-3, 4 * bytes / 1e-3);
    queued_steps(memory, queue, 4, 1, 6);
    CHECK(memory.report().decisions > 0);
    CHECK(memory.report().offloaded_layers >= 4);
  }
  act::offloaded_layers<double, patient_failing_store, act::amount::all, act::prefetch::off, act::min_bytes<0>,
                        checked_memory>
      memory(queue, {}, 1, elements);
  failing_device::fail_after(100, 2, 100);
  CHECK_THROWS_WITH(queued_steps(memory, queue, 1, 1, 6),
                    Catch::Contains("activations failed at layer") && Catch::Contains("No space left on device"));
}

TEST_CASE("what leaves a device stays in the copies that it leaves by", "[train][offload][memory]") {
  using hd::testing::checked_memory;
  constexpr std::int64_t bytes = 4096 * 8;
  const std::vector<std::int64_t> elements(6, 4096);
  checked_memory::queue queue;
  using policy = act::offload<act::host_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>;
  policy::layers_in<double, checked_memory> memory(queue, {.verify = true}, 3, elements);
  queued_steps(memory, queue, 2, 3, 6);
  const act::offload_report r = memory.report();
  CHECK(r.tensors.stored == 2 * 3 * 6);
  CHECK(r.tensors.forwarded == 2 * 3 * 6);
  CHECK(r.tensors.bytes_stored == 2 * 3 * 6 * bytes);
  CHECK(r.tensors.kept == 0);
  CHECK(r.peak_bytes == bytes);                 // on the device: the layer that is computed
  CHECK(r.peak_copied_bytes == 3 * 6 * bytes);  // on the host: all, once
  CHECK(r.store.stores == 0);
  memory.begin(0, 0);
  memory.saved(0, 0);
  memory.forget(0);  // its backward never comes
  queued_steps(memory, queue, 1, 3, 6);
  CHECK(memory.report().peak_copied_bytes == 3 * 6 * bytes);
}

TEST_CASE("settings of offloading that are no numbers are refused", "[train][offload]") {
  const std::vector<std::int64_t> elements(2, 8);
  using memory = layers_of<act::amount::adaptive, 0>;
  act::offload_settings bad;
  for (const double rate : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    bad.bytes_per_second = rate;
    CHECK_THROWS_AS(memory(bad, 1, elements), hd::config_error);
  }
  bad = {};
  bad.most_waiting_bytes = -1;
  CHECK_THROWS_WITH(memory(bad, 1, elements), Catch::Contains("most_waiting_bytes must be positive"));
  bad = {};
  bad.bytes_per_second = std::numeric_limits<double>::infinity();
  memory good(bad, 1, elements);
  steps(good, 4, 2);
  CHECK(good.report().offloaded_layers == 2);
}

TEST_CASE("the last layer stays where a schedule never offloads, not for some microbatches' sake", "[train][offload]") {
  namespace sc = heddle::schedule;
  const auto stays = [](const char* schedule, int p, int m, int stage) {
    const sc::action_table table = train_test::table_named(schedule, p, m);
    return hd::train::detail::backwards_follow(table.view().list(table.view().rank_of(stage)), stage);
  };
  CHECK(stays("1f1b", 4, 8, 3));
  CHECK_FALSE(stays("1f1b", 4, 8, 2));
  CHECK(stays("gpipe", 1, 1, 0));
  CHECK_FALSE(stays("gpipe", 1, 4, 0));
  CHECK(stays("interleaved:2", 1, 4, 1));
  CHECK_FALSE(stays("v-min", 2, 7, 2));  // of one microbatch only
  // A formula of memory counts on what OFFLOAD moves.
  int kept = 0, moved = 0;
  for (const char* name :
       {"gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-v", "v-half", "v-min", "dual-pipe-v", "chimera", "hanayo:2"})
    for (int p = 1; p <= 4; ++p)
      for (const int m : {p, 2 * p, 3 * p + 1}) {
        if (!train_test::has_table(name, p, m)) continue;
        const sc::action_table table = sc::lower(train_test::table_named(name, p, m), sc::passes::merge_backward{},
                                                 sc::passes::offload<>{.ahead = 1});
        for (int s = 0; s < table.view().stages(); ++s) {
          const auto list = table.view().list(table.view().rank_of(s));
          bool leaves = false;
          for (const sc::action& a : list) leaves = leaves || (a.kind == sc::action_kind::offload && a.stage == s);
          const bool stay = hd::train::detail::backwards_follow(list, s);
          INFO(name << " on " << p << " ranks, " << m << " microbatches, stage " << s);
          CHECK_FALSE((stay && leaves));
          kept += stay ? 1 : 0;
          moved += leaves ? 1 : 0;
        }
      }
  CHECK(kept > 20);
  CHECK(moved > 20);
}
