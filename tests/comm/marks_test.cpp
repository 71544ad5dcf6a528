// Ranks mark the step that they are at: a rank that leaves out one of several equal calls is named, with the step.
#include "support.hpp"

using namespace comm_test;

namespace {

constexpr int steps = 4, calls_of_a_step = 6;

// The steps of a program whose calls are all equal, but for one rank in step 1, which leaves its fourth call out, makes it twice,
// or is in the next step already when it makes it. Gives what each rank is told.
enum class fault : unsigned char { none, left_out, twice, early };
std::vector<std::string> equal_calls(int ranks, int culprit, fault what, bool started) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  launch(line{ranks}, options_ms(20'000), [&](auto& world) {
    const auto call = [&] {
      float x = 1;
      if (!started) return world.all().all_reduce(x, hd::plus{});
      world.all().start_all_reduce(std::span(&x, 1), hd::plus{}).wait();
    };
    try {
      for (int step = 0; step < steps; ++step) {
        world.mark(step);
        for (int i = 0; i < calls_of_a_step; ++i) {
          const bool here = step == 1 && i == 3 && world.rank() == culprit;
          if (here && what == fault::left_out) continue;
          if (here && what == fault::twice) call();
          if (here && what == fault::early) world.mark(step + 1);
          call();
        }
      }
    } catch (const hd::comm_error& e) {
      told[static_cast<std::size_t>(world.rank())] = e.what();
    }
  });
  share(told);
  return told;
}

std::string entered(int rank, bool started, int step) {
  return "rank " + std::to_string(rank) + " entered " + (started ? "start_" : "") +
         "all_reduce of 1 float with plus in step " + std::to_string(step);
}

}  // namespace

TEST_CASE("a rank that leaves out, doubles or is early with one of equal calls is named with its step",
          "[comm][marks]") {
  for (const bool started : {false, true}) {
    if (started && !on_threads) continue;  // who has started a call and gone on cannot be asked: see below
    for (const int ranks : rank_counts({2, 3, 5, 8}))
      for (const int culprit : {0, ranks - 1})
        for (const fault what : {fault::left_out, fault::twice, fault::early}) {
          if (ranks < 2) continue;
          INFO(ranks << " ranks, culprit " << culprit << ", fault " << static_cast<int>(what) << ", started "
                     << started);
          // Whoever left a call out makes the first call of step 2 when the others make the last one of step 1.
          const int its = what == fault::twice ? 1 : 2, others = what == fault::twice ? 2 : 1;
          const int other = culprit == 0 ? 1 : culprit;  // the first that differs from rank 0
          for (const std::string& text : equal_calls(ranks, culprit, what, started)) {
            INFO(text);
            CHECK(contains(text, "ranks disagree about " + std::string(started ? "started " : "") + "call " +
                                     std::to_string(what == fault::left_out ? 12
                                                    : what == fault::twice  ? 13
                                                                            : 10) +
                                     " on communicator (dp): " + entered(other, started, culprit == 0 ? others : its) +
                                     "; " + entered(0, started, culprit == 0 ? its : others)));
          }
        }
  }
}

TEST_CASE("a started call of another step is an error on every rank", "[comm][marks]") {
  for (const int ranks : rank_counts({2, 4}))
    for (const std::string& text : equal_calls(ranks, ranks - 1, fault::left_out, true)) {
      INFO(text);
      CHECK((ranks < 2 || contains(text, "ranks disagree about")));
      CHECK((ranks < 2 || contains(text, " in step ")));
    }
}

TEST_CASE("correct calls give no alarm, whatever the worlds and their marks", "[comm][marks]") {
  // More than 100,000 calls in all; processes with more ranks than cores take their time.
  constexpr int steps_of_all = on_threads ? 25'000 : 2'000;
  for (const int ranks : rank_counts({1, 2, 4})) {
    notes notes(ranks);
    launch(hd::mesh<hd::axis<dp>, hd::axis<tp>>{ranks, 1}, options_ms(20'000), [&](auto& world) {
      // A part of the world that is ahead of the rest, as a trainer beside generators is.
      auto part = world.template sub<dp>();
      auto halves = world.all().split(world.rank() % 2, 0);
      std::int64_t sum = 0;
      for (int step = 0; step < steps_of_all; ++step) {
        part.mark(3 * step);
        std::int64_t x = 1;
        part.all().all_reduce(x, hd::plus{});
        sum += x;
        if (step % 10 != 0) continue;
        world.mark(step);
        x = 1;
        world.template along<dp>().all_reduce(x, hd::plus{});
        world.control().all_reduce(x, hd::maximum{});
        sum += x;
        x = 1;
        halves.all_reduce(x, hd::plus{});  // it has the world's mark
        world.mark(-1);
        world.all().barrier();
      }
      notes.expect(world.rank(), sum == (steps_of_all + steps_of_all / 10) * ranks, "sum " + std::to_string(sum));
    });
    notes.report();
  }
}

TEST_CASE("who waits is shown with its step", "[comm][marks][threads]") {
  const ending end = run_to_the_end(2, options_ms(100), [](auto& world) {
    world.mark(7);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    if (world.rank() == 1) return;
    world.all().barrier();
  });
  INFO(end.ranks[0]);
  CHECK(contains(end.ranks[0], "in barrier in step 7, call 1 on communicator (dp)"));
}
