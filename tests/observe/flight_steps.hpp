// tests/observe/flight_steps.hpp: a program of four ranks, one of which may do something else than the others.
#pragma once

#include <heddle/comm/world.hpp>
#include <heddle/core/monoid.hpp>

#include <chrono>
#include <csignal>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace flight_steps {

namespace hd = heddle;
using hd::dp, hd::tp;
using grid = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;

// Four steps; in step 2 rank `culprit` does what `fault` says, or with "turn012" ranks 0, 1 and 2 turn.
template <class World>
void steps(World& world, int culprit, std::string fault) {
  bool mine = world.rank() == culprit;
  if (fault.starts_with("turn") && fault != "turn") {
    mine = fault.find(std::to_string(world.rank())) != std::string::npos;
    fault = "turn";
  }
  for (int step = 0; step < 4; ++step) {
    world.mark(step);
    const bool now = mine && step == 2;
    std::vector<float> x(8, 1.0f);
    std::vector<double> y(8, 1.0);
    world.all().all_reduce(x, hd::plus{});
    if (now && fault == "throw") throw std::runtime_error("no more");
    if (now && fault == "silent") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (now && fault == "kill") {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(300));  // the others wait, and are not ended by mpirun before
      std::raise(SIGKILL);
    }
    if (now && fault == "fault") {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
    }
    if (now && fault == "return") return;
    if (!(now && fault == "skip")) world.all().all_reduce(x, hd::plus{});
    if (now && fault == "twice") world.all().all_reduce(x, hd::plus{});
    if (now && fault == "size")
      world.all().all_reduce(std::span(x).first(4), hd::plus{});
    else if (now && fault == "type")
      world.all().all_reduce(y, hd::plus{});
    else if (now && fault == "operator")
      world.all().all_reduce(x, hd::maximum{});
    else if (fault == "root")
      world.all().broadcast(x, now ? 1 : 0);
    else if (fault == "swap")
      now ? world.all().broadcast(x, 0) : world.all().all_reduce(x, hd::maximum{});
    else if (!(now && fault == "order"))
      world.all().all_reduce(x, hd::plus{});
    if (fault == "swap") now ? world.all().all_reduce(x, hd::maximum{}) : world.all().broadcast(x, 0);
    if (fault == "skip" || fault == "twice") continue;                                 // equal calls only
    if (now && fault == "turn") world.template along<dp>().all_reduce(x, hd::plus{});  // no circle of waits follows
    world.template along<tp>().all_reduce(x, hd::plus{});
    if (now && fault == "turn") continue;
    if (now && fault == "order") world.all().all_reduce(x, hd::plus{});  // behind the other group's
    world.template along<dp>().all_reduce(x, hd::plus{});
  }
}

}  // namespace flight_steps
