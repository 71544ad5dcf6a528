// heddle/train/online/solvers.hpp: runs simulations as processes, and restarts them.
#pragma once

#include <heddle/core/config.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::train {

/// The `index`-th point of a Halton sequence: numbers in [0, 1), one for each dimension, of up to 16.
/// Source: Halton 1960; base of dimension d is the d-th prime.
HEDDLE_INLINE std::vector<double> halton(std::int64_t index, std::size_t dimensions);

/// Which simulations run, and how.
struct solvers_options {
  std::vector<std::string>
      command{};  ///< program and arguments; looked for in PATH. --simulation, --parameters, --to are added
  std::vector<std::pair<double, double>> parameters{};  ///< least and largest of each; points are those of `halton`
  std::int64_t simulations = 1;
  int at_a_time = 1;
  int restarts = 3;             ///< of one simulation; then it is lost
  double patience_seconds = 0;  ///< one that is silent for longer is killed and started again; 0: none is
  /// Seconds since a simulation was heard, as of `zmq_receiver::silent`.
  std::function<double(std::int64_t)> silent{};
  /// Called for a simulation that is lost, as to `zmq_receiver::give_up`.
  std::function<void(std::int64_t)> on_lost{};
  /// Called for a simulation whose process has ended with status 0, as to `zmq_receiver::gone`: without it, training
  /// waits for ever for one that never says that it ended.
  std::function<void(std::int64_t)> on_finished{};
};

/// What became of them.
struct solvers_counters {
  std::int64_t started = 0, finished = 0, died = 0, silent = 0, lost = 0;
};

/// Processes with `--simulation 7 --parameters 0.5,0.25 --to tcp://...,tcp://...` behind the command, in groups of
/// their own. A thread starts them and waits for them; status 0: finished. The destructor kills those that run.
/// Errors of the constructor: `config_error` for an empty command, numbers below 1, parameters whose least is above
/// the largest.
class solvers {
 public:
  solvers(solvers_options options, std::vector<std::string> endpoints);
  solvers(const solvers&) = delete;
  solvers& operator=(const solvers&) = delete;
  ~solvers();

  /// Returns when no more runs. Errors: `io_error` with the system's text if the command cannot be started; then
  /// simulations that run are killed, and all that have not finished are lost. While the system has no room for a
  /// process, its start is tried again: as long as others run, else for 5 s.
  void wait();
  solvers_counters counters() const;
  /// Of a simulation.
  std::vector<double> parameters_of(std::int64_t simulation) const;
  /// Kills a simulation that runs, as tests do; false if it does not run.
  bool kill(std::int64_t simulation);

 private:
  struct process {
    std::int64_t simulation = 0;
    int id = 0;
    double started = 0;
  };
  void run();
  int start(std::int64_t simulation, bool may_wait) const;

  solvers_options options_;
  std::vector<std::string> endpoints_;
  mutable std::mutex mutex_{};
  std::vector<process> running_{};
  solvers_counters counters_{};
  std::string failure_{};
  std::atomic<bool> ends_{false};
  std::thread thread_{};
};

}  // namespace heddle::inline v0::train

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/train/impl/online/solvers.hpp>
#endif
