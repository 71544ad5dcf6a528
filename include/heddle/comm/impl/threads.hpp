// heddle/comm/impl/threads.hpp: bodies of heddle/comm/threads.hpp.
#pragma once

#include <heddle/comm/threads.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/launcher.hpp>
#include <heddle/comm/rethrow.hpp>
#include <heddle/comm/threads/shared_state.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace heddle::inline v0::detail {

// `launch_options::bind`, where it is `automatic` as the environment says. Errors: `config_error` for another word.
HEDDLE_INLINE binding binding_of(const launch_options& options) {
  if (options.bind != binding::automatic) return options.bind;
  const char* const text = std::getenv("HEDDLE_BIND");
  const std::string_view word = text == nullptr ? "" : text;
  if (word == "on") return binding::on;
  if (word == "off") return binding::off;
  if (word.empty() || word == "automatic") return binding::automatic;
  std::string message = "heddle: the environment variable HEDDLE_BIND should be on, off or automatic, it is \"";
  (message += word) += '"';
  throw config_error(message);
}

// Whether the ranks of a launch are bound to cores, and the way back of the calling thread, which becomes rank 0. That
// thread is bound only where this was asked for: pools of threads that start in a body inherit its cores and stay.
class rank_binding {
 public:
  rank_binding(const launch_options& options, int ranks) : wanted_(binding_of(options)), before_(allowed_cpus()) {
    const int threads = (std::max)(1, options.threads_per_rank);
    const auto there = static_cast<std::int64_t>(before_.size());
    const bool fits = running_.alone && static_cast<std::int64_t>(ranks) * threads <= there;
    if (ranks > 1 && there > 0 && (wanted_ == binding::on || (wanted_ == binding::automatic && fits))) {
      shares_ = cpu_shares(before_, ranks);
      smallest_ = shares_.smallest();
      bound_ = wanted_ == binding::on || smallest_ >= threads;
    }
    cores_of_bound_rank() = 0;
  }
  rank_binding(const rank_binding&) = delete;
  rank_binding& operator=(const rank_binding&) = delete;
  ~rank_binding() {
    if (bound_ && wanted_ == binding::on) bind_this_thread(before_);
    cores_of_bound_rank() = cores_before_;
  }

  // Called by the thread that becomes this rank. Where the system refuses, the rank runs where it may.
  void bind(int rank) const {
    if (!bound_) return;
    cores_of_bound_rank() = smallest_;
    if (rank != 0 || wanted_ == binding::on) bind_this_thread(shares_.share(rank));
  }

 private:
  struct running {  // a launch of this process
    running() : alone(count().fetch_add(1) == 0) {}
    running(const running&) = delete;
    running& operator=(const running&) = delete;
    ~running() { count().fetch_sub(1); }
    static std::atomic<int>& count() noexcept {
      static std::atomic<int> launches{0};
      return launches;
    }
    bool alone;
  };

  binding wanted_;
  std::vector<int> before_;
  cpu_shares shares_;
  running running_;
  int cores_before_ = cores_of_bound_rank();
  int smallest_ = 0;
  bool bound_ = false;
};

HEDDLE_INLINE void run_ranks(world_state& state, const launch_options& options, const rank_body& body) {
  require_alone();
  const rank_binding cores(options, state.size());
  const auto rank_main = [&](int rank) {
    try {
      cores.bind(rank);
      body.call(body.context, rank);
      state.throw_late_error(rank);
      if (state.rank(rank).flight != nullptr) state.rank(rank).flight->ended(nullptr);
    } catch (...) {
      if (state.rank(rank).flight != nullptr) state.rank(rank).flight->ended(std::current_exception());
      state.abort(rank, std::current_exception());
    }
    state.finish(rank);
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<std::size_t>(state.size()));
    for (int rank = 1; rank < state.size(); ++rank) others.emplace_back(rank_main, rank);
    rank_main(0);
  } catch (const std::exception& e) {
    const int rank = static_cast<int>(others.size()) + 1;
    state.abort(rank, std::make_exception_ptr(thread_not_started(rank, state.size(), e)));
  }
  for (std::thread& other : others) other.join();
  if (state.aborted()) rethrow_of_rank(state.failed_rank(), state.failure());
}

}  // namespace heddle::inline v0::detail
