// tests/train/step_ahead_test.cpp: what does not wait: the next step for the end of the last, sums over dp for tied
// gradients; reports, refusals.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/error.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/branches.hpp>
#include <heddle/train/periodic_work.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/stop_on_signal.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hd = heddle;
namespace tr = heddle::train;

namespace {

// What the ranks of a world tell each other beside their messages.
struct meeting {
  std::atomic<int> begun{-1};   // the last step in which rank 0 has done a forward
  std::atomic<int> reduced{0};  // ranks with the head that have reduced gradients over dp, in all steps
  std::atomic<int> met{0}, missed{0};
};

// The last rank's last backward of a step ends when rank 0 has begun the next step; or after a while.
struct gate {
  using kind = hd::observer_kind;
  static constexpr bool enabled = true;
  meeting* at;
  int patience_ms, last_rank, last_microbatch, last_step, seen_step = -1, seen = 0;

  std::vector<std::uint64_t>*sent = nullptr, *received = nullptr;  // numbers of messages
  bool reductions = false;  // instead: rank 0's last backward ends when the last rank has reduced gradients

  void wait(auto&& done) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
    while (!done() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    ++(done() ? at->met : at->missed);
  }
  void record(const hd::event& e) noexcept {
    if (sent != nullptr && e.flow != 0 && e.kind == hd::activity::send) sent->push_back(e.flow);
    if (received != nullptr && e.flow != 0 && e.kind == hd::activity::recv) received->push_back(e.flow);
    if (reductions) {
      if (e.rank == last_rank && std::string_view(e.name) == "reduce gradients" && e.step != seen_step) {
        seen_step = e.step;
        ++at->reduced;
      }
      if (e.rank == 0 && e.kind == hd::activity::backward && e.microbatch == last_microbatch)
        wait([&] { return at->reduced > e.step; });
      return;
    }
    if (e.rank == 0 && e.kind == hd::activity::forward) at->begun = std::max(at->begun.load(), e.step);
    const bool adds = e.kind == hd::activity::backward || e.kind == hd::activity::backward_weight;
    if (e.rank != last_rank || !adds || e.step >= last_step) return;
    if (e.step != seen_step) seen_step = e.step, seen = 0;
    if (++seen < 2 * (last_microbatch + 1)) return;  // of both chunks
    wait([&] { return at->begun > e.step; });
  }
};

class tokens {
 public:
  explicit tokens(std::int64_t context) : all_(static_cast<std::size_t>(context * 40 + 1)) {
    for (std::size_t i = 0; i < all_.size(); ++i) all_[i] = static_cast<std::uint8_t>(i * i % 31);
    set_.emplace(std::span<const std::uint8_t>(all_),
                 hd::io::dataset_options{.context = context, .batch = 8, .validation = 0.2, .seed = 5});
  }
  const auto& set() const { return *set_; }

 private:
  std::vector<std::uint8_t> all_;
  std::optional<hd::io::dataset> set_;
};

using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>>;
template <class NormCheck, class World>
using trainer_of =
    tr::trainer<hd::model::gpt2<double>, hd::strategy<mesh_type, hd::schedule::named, NormCheck, gate>, World>;

tr::options<hd::model::gpt2_config> small(int p) {
  tr::options<hd::model::gpt2_config> o;
  o.model = {.layers = 2 * p, .heads = 2, .width = 8, .context = 6, .vocabulary = 31};
  o.batch = 8;
  o.microbatches = 2 * p;
  o.schedule = "zb-v";  // embedding and head are on one rank
  o.steps = 4;
  o.clip_norm = 1e9;
  o.threads_per_rank = 1;
  return o;
}

struct seen {
  std::vector<double> losses;
  std::vector<std::int64_t> steps;
  int met = 0, missed = 0;
};
template <class NormCheck>
seen run(int p, int patience_ms) {
  const auto o = small(p);
  const tokens data(o.model.context);
  meeting at;
  seen result;
  hd::launch<hd::threads>(mesh_type(1, p), [&](auto& world) {
    gate g{&at, patience_ms, p - 1, o.microbatches - 1, static_cast<int>(o.steps) - 1};
    trainer_of<NormCheck, std::remove_reference_t<decltype(world)>> trainer(world, o, g);
    trainer.run(data.set(), [&](const tr::step_report& r) {
      if (world.rank() != 0) return;
      result.losses.push_back(r.loss);
      result.steps.push_back(r.step);
    });
  });
  result.met = at.met;
  result.missed = at.missed;
  return result;
}

}  // namespace

TEST_CASE("the next step's forwards begin before the last rank has ended the step", "[train][post_validation]") {
  for (const int p : {2, 4}) {
    INFO("p = " << p);
    const seen ahead = run<hd::post_validation>(p, 20'000);
    CHECK(ahead.met == 3);
    CHECK(ahead.missed == 0);
    const seen waits = run<hd::norm_first>(p, 100);
    CHECK(waits.met == 0);
    CHECK(waits.missed == 3);
    CHECK(ahead.losses == waits.losses);
    CHECK(ahead.steps == std::vector<std::int64_t>{0, 1, 2, 3});
  }
}

TEST_CASE("gradients beside the tied embedding's are reduced before the other end of the pipeline is done",
          "[train][tied]") {
  auto o = small(2);
  o.schedule = "1f1b";
  const tokens data(o.model.context);
  meeting at;
  hd::launch<hd::threads>(mesh_type(2, 2), [&](auto& world) {
    gate g{&at, 20'000, 1, o.microbatches - 1, 0};
    g.reductions = true;
    trainer_of<hd::norm_first, std::remove_reference_t<decltype(world)>> trainer(world, o, g);
    trainer.run(data.set());
  });
  CHECK(at.met == o.steps);
  CHECK(at.missed == 0);
}

TEST_CASE("what needs finished weights says so; every step is reported once", "[train][post_validation]") {
  const auto o = small(2);
  const tokens data(o.model.context);
  meeting at;
  at.begun = 1 << 20;
  std::vector<std::string> texts(2);
  std::vector<std::vector<std::int64_t>> steps(2), saved(2);
  hd::launch<hd::threads>(mesh_type(1, 2), [&](auto& world) {
    gate g{&at, 1, 1, o.microbatches - 1, 100};
    trainer_of<hd::post_validation, std::remove_reference_t<decltype(world)>> trainer(world, o, g);
    const auto r = static_cast<std::size_t>(world.rank());
    const auto refused = [&](auto&& work) {
      try {
        work();
        texts[r] += "nothing; ";
      } catch (const hd::config_error& e) {
        texts[r] += std::string(e.what()).find("call finish_step()") != std::string::npos ? "refused; " : e.what();
      }
    };
    if (trainer.finish_step()) texts[r] += "finished what was not there; ";
    if (trainer.step_ahead(data.set())) texts[r] += "a report too soon; ";
    if (!trainer.is_ahead() || trainer.steps_done() != 1) texts[r] += "not ahead; ";
    refused([&] { trainer.validate(data.set()); });
    refused([&] { trainer.compute_gradients(data.set()); });
    refused([&] { trainer.apply_gradients({}); });
    // Two branches along pp, as far as the exchange can tell.
    tr::branch_exchange<hd::pp, std::remove_reference_t<decltype(world)>, hd::buffer<double>> exchange(
        world, {.keep = 0.9}, {});
    refused([&] { exchange(trainer); });
    refused([&] { exchange.merge(trainer); });
    refused([&] { exchange.barrier(trainer, data.set()); });
    refused([&] { trainer.change_weights([](auto) {}); });
    refused([&] { tr::save(trainer, "/nowhere"); });
    refused([&] { tr::resume(trainer, "/nowhere"); });
    const auto first = trainer.step_ahead(data.set());
    if (!first || first->step != 0) texts[r] += "no report of the first step; ";
    const auto second = trainer.finish_step();
    if (!second || second->step != 1 || trainer.is_ahead()) texts[r] += "no report of the second step; ";
    trainer.validate(data.set());
    try {
      trainer.set_steps(9, {.peak = 10});  // with a weight decay of 0.1 such a step leaves nothing to be taken back
    } catch (const hd::config_error& e) {
      texts[r] += std::string(e.what()).find("10 times 1 times weight decay 0.1") != std::string::npos ? "too fast; "
                                                                                                       : e.what();
    }
    const auto wrong = [&](std::int64_t count, const tr::warmup_cosine& rate, const char* expected) {
      try {
        trainer.set_steps(count, rate);
        texts[r] += "taken; ";
      } catch (const hd::config_error& e) {
        texts[r] += std::string(e.what()).find(expected) != std::string::npos ? "wrong; " : e.what();
      }
    };
    wrong(-1, {}, "steps must be 0 to 1000000000000, got -1");
    wrong(4, {.peak = -1}, "the learning rate must be a finite number >= 0, got -1");
    wrong(4, {.peak = 1e-3, .minimum = 1e-2}, "the minimum learning rate must be in [0, peak");
    wrong(4, {.warmup_steps = -2}, "warm-up and total steps must not be negative, got -2 and 0");
    const tr::any_learning_rate as_before = trainer.options().learning_rate;
    const auto* cosine = as_before.target<tr::warmup_cosine>();
    trainer.set_steps(o.steps, {.peak = cosine->peak, .minimum = cosine->minimum});
    const tr::any_learning_rate now = trainer.options().learning_rate;
    if (now.target<tr::warmup_cosine>()->total_steps != o.steps) texts[r] += "the cosine has no end; ";
    trainer.run(
        data.set(), [&](const tr::step_report& s) { steps[r].push_back(s.step); },
        tr::every(2, [&](auto& t) { saved[r].push_back(t.is_ahead() ? -1 : t.steps_done()); }));
  });
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(texts[r] ==
          "refused; refused; refused; refused; refused; refused; refused; refused; refused; "
          "too fast; wrong; wrong; wrong; wrong; ");
    CHECK(steps[r] == std::vector<std::int64_t>{2, 3});
    CHECK(saved[r] == std::vector<std::int64_t>{4});
  }
  CHECK_THROWS_WITH(tr::every(-1, [](auto&) {}), Catch::Matchers::Contains("every 1 or more steps, or 0 for the last"));
}

namespace {

// Rank 1 is asked to stop while step 2 is reported; what each rank has done then, and when it was saved.
template <class NormCheck>
void stops_together(std::int64_t after) {
  auto o = small(2);
  o.steps = 9;
  const tokens data(o.model.context);
  meeting at;
  at.begun = 1 << 20;
  std::atomic<bool> asked[2] = {false, false};
  std::vector<std::vector<std::int64_t>> saved(2);
  std::vector<std::int64_t> done(2);
  std::vector<int> stopped(2);
  hd::launch<hd::threads>(mesh_type(1, 2), [&](auto& world) {
    gate g{&at, 1, 1, o.microbatches - 1, 100};
    const auto r = static_cast<std::size_t>(world.rank());
    auto mine = o;
    mine.stop = &asked[r];
    trainer_of<NormCheck, std::remove_reference_t<decltype(world)>> trainer(world, mine, g);
    trainer.run(
        data.set(), [&](const tr::step_report& s) { asked[r] = r == 1 && s.step >= 1; },
        tr::every(0, [&](auto& t) { saved[r].push_back(t.steps_done()); }));
    done[r] = trainer.steps_done();
    stopped[r] = trainer.stopped();
    asked[r] = false;
    trainer.run(data.set());
    stopped[r] += trainer.stopped() || trainer.steps_done() != o.steps ? 2 : 0;
  });
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(done[r] == after);
    CHECK(saved[r] == std::vector<std::int64_t>{after});
    CHECK(stopped[r] == 1);
  }
}

}  // namespace

TEST_CASE("a run that one rank is asked to stop ends on all ranks after the same step, with the last step's work",
          "[train][stop]") {
  stops_together<hd::norm_first>(3);  // the report of step 2 is before step 3
  stops_together<hd::post_validation>(
      5);  // it is told during step 3, says so with the sums of step 4, which arrive in step 5
  // Ranks that could not agree are refused.
  const std::atomic<bool> never{false};
  auto o = small(2);
  const tokens data(o.model.context);
  meeting at;
  CHECK_THROWS_WITH(hd::launch<hd::threads>(mesh_type(1, 2),
                                            [&](auto& world) {
                                              gate g{&at, 1, 1, o.microbatches - 1, 100};
                                              auto mine = o;
                                              if (world.rank() == 1) mine.stop = &never;
                                              trainer_of<hd::norm_first, std::remove_reference_t<decltype(world)>> t(
                                                  world, mine, g);
                                            }),
                    Catch::Matchers::Contains("rank 1 has other options than rank 0"));
}

TEST_CASE("the first signal asks to stop, and handlers are what they were afterwards", "[train][stop]") {
  const auto handler = [](int number) {
    struct sigaction now{};
    ::sigaction(number, nullptr, &now);
    return now.sa_handler;
  };
  static std::atomic<int> mine{0};
  std::signal(SIGTERM, [](int) { ++mine; });
  std::signal(SIGINT, SIG_IGN);
  const auto before = handler(SIGTERM);
  {
    const tr::stop_on_signal signals;
    CHECK_THROWS_WITH(tr::stop_on_signal(), Catch::Matchers::Contains("there is a stop_on_signal in this process"));
    CHECK_FALSE(signals.flag());
    std::raise(SIGINT);  // as in a program that nohup or a shell's & started
    CHECK_FALSE(signals.flag());
    CHECK(handler(SIGTERM) != before);
    std::raise(SIGTERM);
    CHECK(signals.flag());
    CHECK(signals.received() == SIGTERM);
    const ::pid_t child = ::fork();  // to which the next one is the second
    if (child == 0) {
      std::raise(SIGTERM);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGTERM);
    CHECK(handler(SIGINT) == SIG_IGN);
  }
  CHECK(handler(SIGTERM) == before);
  CHECK(handler(SIGINT) == SIG_IGN);
  std::raise(SIGTERM);
  CHECK(mine == 1);
  CHECK_FALSE(tr::stop_on_signal().flag());  // another one begins anew
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

TEST_CASE("a step that does not end after the signal ends the process after a while, one that has ended does not",
          "[train][stop]") {
  // How a process ends that gets one signal in a step, whether it says that the step has ended, and what was in its
  // way.
  const auto end_of = [](int number, double grace, bool step_ends, void (*before)()) {
    const ::pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGINT, SIG_DFL);
      std::signal(SIGTERM, SIG_DFL);
      before();
      tr::stop_on_signal signals(grace);
      std::raise(number);
      if (!signals.flag()) ::_exit(3);
      if (step_ends) signals.step_ended();
      for (int k = 0; k < 100; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ::_exit(7);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  };
  const auto nothing = [] {};
  CHECK(end_of(SIGTERM, 0.1, false, nothing) == -SIGTERM);
  CHECK(end_of(SIGINT, 0.1, false, nothing) == -SIGINT);
  CHECK(end_of(SIGINT, 0.1, false, [] { std::signal(SIGTERM, SIG_IGN); }) == -SIGINT);
  CHECK(end_of(SIGTERM, 0.1, true, nothing) == 7);  // a save takes as long as it takes
  CHECK(end_of(SIGTERM, 0, false, nothing) == 7);   // no limit
  CHECK(end_of(SIGTERM, 3600, false, nothing) == 7);
  // A signal that comes later has the grace period that was set last.
  tr::stop_on_signal signals(0.01);
  signals.set_grace(0);
  std::raise(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(signals.received() == SIGTERM);
}

TEST_CASE("a run that begins while a step is ahead tells its pace; memory is there before the first step",
          "[train][post_validation]") {
  const auto o = small(2);
  const tokens data(o.model.context);
  meeting at;
  at.begun = 1 << 20;
  std::vector<std::vector<double>> paces(2);
  std::vector<std::int64_t> before(2), after(2);
  hd::launch<hd::threads>(mesh_type(1, 2), [&](auto& world) {
    gate g{&at, 1, 1, o.microbatches - 1, 100};
    trainer_of<hd::post_validation_with_copy, std::remove_reference_t<decltype(world)>> trainer(world, o, g);
    const auto r = static_cast<std::size_t>(world.rank());
    before[r] = tr::bytes_held(trainer);
    trainer.step_ahead(data.set());
    trainer.run(data.set(), [&](const tr::step_report& s) {
      paces[r].push_back(s.tokens_per_second);
      paces[r].push_back(s.seconds_left + 1);
    });
    after[r] = tr::bytes_held(trainer);
  });
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(paces[r].size() == 8);
    for (const double x : paces[r]) CHECK((x > 0 && std::isfinite(x)));
    CHECK(before[r] == after[r]);
  }
}

TEST_CASE("messages of forwards that are done again are recorded on both sides", "[train][post_validation]") {
  for (const char* schedule : {"1f1b", "gpipe", "zb-v"}) {
    INFO(schedule);
    auto o = small(2);
    o.schedule = schedule;
    const tokens data(o.model.context);
    meeting at;
    at.begun = 1 << 20;
    double norm = 0;
    std::int64_t taken_back = 0;
    std::vector<std::vector<std::uint64_t>> sent(2), received(2);
    for (const double share : {0.0, 0.95}) {
      if (share > 0) o.clip_norm = share * norm;
      hd::launch<hd::threads>(mesh_type(1, 2), [&](auto& world) {
        const auto r = static_cast<std::size_t>(world.rank());
        gate g{&at, 1, 1, o.microbatches - 1, 100};
        if (share > 0) g.sent = &sent[r], g.received = &received[r];
        trainer_of<hd::post_validation, std::remove_reference_t<decltype(world)>> trainer(world, o, g);
        trainer.run(data.set(), [&](const tr::step_report& s) {
          if (r == 0 && share == 0) norm = std::max(norm, s.gradient_norm);
        });
        if (r == 0) taken_back = trainer.steps_taken_back();
      });
    }
    CHECK(taken_back > 0);
    for (auto* list : {&sent, &received}) {
      (*list)[0].insert((*list)[0].end(), (*list)[1].begin(), (*list)[1].end());
      std::sort((*list)[0].begin(), (*list)[0].end());
    }
    CHECK(!sent[0].empty());
    CHECK((sent[0] == received[0]));
  }
}
