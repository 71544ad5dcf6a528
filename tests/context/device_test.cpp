// Context tables in memory that the host may not touch: the bits of the host's executor, whatever takes how long.
#include <heddle/observe/recorder.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/observed_world.hpp>

#include "catch.hpp"
#include "context/device_trials.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

namespace context_on_device {
namespace {

namespace hd = heddle;
namespace hc = heddle::compute;
using device_trials::differences;

// Takes its time before it attends, on the thread of the queue.
struct late_backend : hc::host<> {
  std::mt19937 random{};
  int most_us = 0;
  explicit late_backend(unsigned seed = 0, int us = 0) : hc::host<>(1), random(seed), most_us(us) {}
  void sleep() {
    const int us = static_cast<int>(random() % static_cast<unsigned>(most_us + 1));
    if (us > most_us / 2) std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
  template <class Op, class T, class... Arguments>
    requires hc::offered<Op, hc::host<>, T>
  void run(const Arguments&... x) {
    if constexpr (std::derived_from<Op, hc::ops::attention_operation>) sleep();
    hc::run<Op>(static_cast<hc::host<>&>(*this), x...);
  }
};
struct checked_host : hd::testing::checked_backend<hc::host<>> {
  checked_host() : checked_backend(1) {}
};
struct checked_late : hd::testing::checked_backend<late_backend> {
  static unsigned next() {
    static std::atomic<unsigned> seed{0};
    return ++seed;
  }
  checked_late() : checked_backend(next(), 200) {}
};

TEST_CASE("every carrier has the host's bits in memory that the host may not touch", "[context][memory]") {
  for (const int ranks : {1, 2, 3, 4}) {
    CHECK(differences<double, checked_host>(ranks, {4, 2, 4, 6}, static_cast<unsigned>(ranks), 0) == "");
    CHECK(differences<float, checked_host>(ranks, {8, 1, 3, 5}, static_cast<unsigned>(10 + ranks), 0) == "");
  }
  // An odd number of 16-bit elements stands before the numbers of a row.
  CHECK(differences<hd::bf16, checked_host>(3, {3, 3, 2, 3}, 20, 0) == "");
}

TEST_CASE("delays of queues on some ranks change no bits", "[context][memory]") {
  CHECK(differences<double, checked_late>(4, {4, 2, 4, 4}, 31, 0, 20) == "");
}

// ---- overlap ----

// What a rank's kernels and messages know of each other. Waits that last are given up, and told.
struct meeting {
  std::mutex mutex{};
  std::condition_variable changed{};
  int begun = 0, started = 0, done = 0;
  bool given_up = false;
  void raise(int meeting::* count) {
    const std::lock_guard lock(mutex);
    ++(this->*count);
    changed.notify_all();
  }
  void wait(int meeting::* count, int most) {
    std::unique_lock lock(mutex);
    given_up |= !changed.wait_for(lock, std::chrono::seconds(10), [&] { return given_up || this->*count >= most; });
  }
};
// A message of round k is over when the kernel of that round has begun, and not before. One send and one receive a round.
struct telling {
  hd::threads_communicator ranks;
  meeting* with;
  struct request {
    hd::threads_request of;
    meeting* with;
    int round;
    void wait() {
      with->wait(&meeting::begun, round + 1);
      of.wait();
      with->raise(&meeting::done);
    }
    bool test() { return of.test(); }
  };
  int rank() const { return ranks.rank(); }
  int size() const { return ranks.size(); }
  hd::comm_counters counters() const { return ranks.counters(); }
  telling split(int color, int key) { return {ranks.split(color, key), with}; }
  template <class T>
  request isend(std::span<const T> x, int to, int tag) {
    return {ranks.isend(x, to, tag), with, with->started++ / 2};
  }
  template <class T>
  request irecv(std::span<T> x, int from, int tag) {
    return {ranks.irecv(x, from, tag), with, with->started++ / 2};
  }
};
// The kernel of round k waits for the messages of that round, but in the last.
struct meeting_kernels : hc::host<> {
  meeting* with = nullptr;
  int ranks = 0, calls = 0;
  explicit meeting_kernels(meeting* m, int n) : hc::host<>(1), with(m), ranks(n) {}
  template <class Op, class T, class... Arguments>
    requires hc::offered<Op, hc::host<>, T>
  void run(const Arguments&... x) {
    if constexpr (std::is_same_v<Op, hc::ops::attention>) {
      with->raise(&meeting::begun);
      if (++calls < ranks) with->wait(&meeting::done, 2 * calls);
    }
    hc::run<Op>(static_cast<hc::host<>&>(*this), x...);
  }
};

TEST_CASE("messages travel beside the kernels of their round on a device", "[context][memory]") {
  using namespace device_trials;
  constexpr sizes z{2, 2, 4, 4};
  constexpr int ranks = 4;
  const hd::context_cut cut =
      hd::cut_documents<hd::split::balanced>({{16, {0, 1, 2, 3}, hd::masks::full{}.slices(16)}}, ranks);
  const hd::context_table table = hd::make_context_table<hd::carrier::kv_ring>(cut, context_pass::forward);
  std::vector<meeting> meetings(ranks);
  hd::launch<hd::threads>(line{ranks}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    meeting* const mine = &meetings[static_cast<std::size_t>(group.rank())];
    telling told{group.split(0, group.rank()), mine};
    using backend_type = hd::testing::checked_backend<meeting_kernels>;
    backend_type backend(mine, ranks);
    hd::context_executor<double, backend_type, telling> executor(backend, told);
    rows<double> own(cut.rows[static_cast<std::size_t>(group.rank())], z);
    rows_there<double, backend_type> there(backend, own);
    const hd::context_program to = hd::lower_context(table, group.rank());  // until the queue has done it
    there.attend(executor, to);
    there.fetch();
  });
  for (const meeting& m : meetings) {
    CHECK_FALSE(m.given_up);
    CHECK(m.begun == ranks);
    CHECK(m.done == 2 * (ranks - 1));
  }
}

TEST_CASE("an observed communicator has others beside it for messages on devices", "[context][memory]") {
  using namespace device_trials;
  constexpr sizes z{4, 2, 4, 6};
  const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>({{21, {0, 1}, hd::masks::causal{}.slices(21)}}, 2);
  std::mt19937 random(3);
  std::vector<rows<double>> whole(1, rows<double>(21, z));
  randomise(whole[0], random);
  attend_alone(whole[0], cut.documents[0].mask);
  std::vector<double> worst(2, 1);
  hd::observe::recorder recorder(2);
  hd::launch<hd::threads>(line{2}, [&](auto& world) {
    auto& group = world.template along<hd::cp>();
    const hd::event now{};
    hd::train::observed_communicator<decltype(group), hd::observe::recorder> observed(group, recorder, now);
    const auto program = [&](context_pass pass) {
      return hd::lower_context(hd::make_context_table<hd::carrier::kv_ring>(cut, pass), group.rank());
    };
    const hd::context_program to = program(context_pass::forward), back = program(context_pass::backward);
    checked_host backend;
    hd::context_executor<double, checked_host, decltype(observed)> executor(backend, observed);
    executor.name_ranks({0, 1});
    rows<double> own = rows_of(cut, group.rank(), whole, z);
    rows_there<double, checked_host> there(backend, own);
    there.attend(executor, to);
    there.attend_backward(executor, back);
    there.fetch();
    worst[static_cast<std::size_t>(group.rank())] = difference(cut, group.rank(), own, whole);
  });
  CHECK(worst[0] < 1e-11);
  CHECK(worst[1] < 1e-11);
}

TEST_CASE("both ends of a message say alike whether others may overtake it, and have those of a pair in one order",
          "[context]") {
  constexpr device_trials::sizes z{8, 2, 4, 4};
  std::map<std::string, int> overtaken;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    device_trials::batch<float> b(z, random);
    for (const hd::context_carrier& carrier : hd::context_carriers())
      for (const hd::context_order& order : hd::context_orders())
        for (const hd::context_pass pass : {hd::context_pass::forward, hd::context_pass::backward}) {
          INFO(carrier.name << ", " << order.name << ", " << ranks << " ranks, seed " << ranks);
          const hd::context_table table = make_context_table(carrier, b.cut(carrier, order, ranks, random), pass);
          // Of each round, sender and receiver: kind, rows, and whether it may be overtaken, as each end has them.
          using end = std::vector<std::tuple<int, std::int64_t, bool>>;
          std::map<std::tuple<std::size_t, int, int>, std::array<end, 2>> ends;
          for (int r = 0; r < ranks; ++r) {
            const hd::context_program p = hd::lower_context(table, r);
            const auto note = [&](const hd::context_message& m, std::array<end, 2>& both, std::size_t which) {
              const auto kind = p.buffers[static_cast<std::size_t>(m.rows.buffer)].what;
              both[which].push_back({static_cast<int>(kind), m.rows.rows, m.overtaken});
            };
            for (std::size_t k = 0; k < p.rounds.size(); ++k) {
              for (const hd::context_message& m : p.rounds[k].sends) note(m, ends[{k, r, m.peer}], 0);
              for (const hd::context_message& m : p.rounds[k].receives) note(m, ends[{k, m.peer, r}], 1);
            }
          }
          for (const auto& [between, both] : ends) {
            CHECK(both[0] == both[1]);
            for (const auto& [kind, count, later] : both[0]) overtaken[std::string(carrier.name)] += later;
          }
        }
  }
  CHECK(overtaken["double-ring-2"] > 0);
  CHECK(overtaken["gather"] == 0);
}

}  // namespace
}  // namespace context_on_device
