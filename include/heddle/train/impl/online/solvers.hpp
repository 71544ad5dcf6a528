// heddle/train/impl/online/solvers.hpp: bodies of heddle/train/online/solvers.hpp.
#pragma once

#include <heddle/train/online/solvers.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace heddle::inline v0::train {
namespace detail {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace detail

HEDDLE_INLINE std::vector<double> halton(std::int64_t index, std::size_t dimensions) {
  constexpr std::array primes{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
  if (index < 0 || dimensions > primes.size())
    throw config_error("heddle: halton: point " + std::to_string(index) + " of " + std::to_string(dimensions) +
                       " dimensions; expected 0 or more, and at most 16");
  std::vector<double> point;
  for (std::size_t d = 0; d < dimensions; ++d) {
    double part = 1, x = 0;
    for (std::int64_t i = index + 1; i > 0; i /= primes[d]) {
      part /= primes[d];
      x += part * static_cast<double>(i % primes[d]);
    }
    point.push_back(x);
  }
  return point;
}

HEDDLE_INLINE solvers::solvers(solvers_options options, std::vector<std::string> endpoints)
    : options_(std::move(options)), endpoints_(std::move(endpoints)) {
  const solvers_options& o = options_;
  if (o.command.empty() || o.simulations < 1 || o.at_a_time < 1 || o.restarts < 0)
    throw config_error("heddle: solvers: a command of " + std::to_string(o.command.size()) + " words, " +
                       std::to_string(o.simulations) + " simulations, " + std::to_string(o.at_a_time) + " at a time, " +
                       std::to_string(o.restarts) + " restarts; expected 1 or more, restarts 0 or more");
  for (std::size_t i = 0; i < o.parameters.size(); ++i)
    if (!(o.parameters[i].first <= o.parameters[i].second))
      throw config_error("heddle: solvers: parameter " + std::to_string(i) + " from " +
                         number_text(o.parameters[i].first) + " to " + number_text(o.parameters[i].second));
  if (o.patience_seconds > 0 && !o.silent)
    throw config_error("heddle: solvers: patience_seconds needs `silent`, which says when a simulation was heard");
  thread_ = std::thread([this] { run(); });
}

HEDDLE_INLINE solvers::~solvers() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
}

HEDDLE_INLINE void solvers::wait() {
  if (thread_.joinable()) thread_.join();
  if (!failure_.empty()) throw io_error(failure_);
}

HEDDLE_INLINE solvers_counters solvers::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

HEDDLE_INLINE std::vector<double> solvers::parameters_of(std::int64_t simulation) const {
  std::vector<double> point = halton(simulation, options_.parameters.size());
  for (std::size_t i = 0; i < point.size(); ++i) {
    const auto [least, most] = options_.parameters[i];
    point[i] = least + point[i] * (most - least);
  }
  return point;
}

HEDDLE_INLINE bool solvers::kill(std::int64_t simulation) {
  const std::lock_guard lock(mutex_);
  for (const process& p : running_)
    if (p.simulation == simulation) return ::kill(-p.id, SIGKILL) == 0;
  return false;
}

// The process; 0 if it `may_wait` and there is no room for one now.
HEDDLE_INLINE int solvers::start(std::int64_t simulation, bool may_wait) const {
  std::vector<std::string> words = options_.command;
  words.insert(words.end(), {"--simulation", std::to_string(simulation)});
  const auto joined = [](const auto& all, auto&& text) {
    std::string line;
    for (const auto& x : all) line += (line.empty() ? "" : ",") + text(x);
    return line;
  };
  if (!options_.parameters.empty())
    words.insert(words.end(), {"--parameters", joined(parameters_of(simulation), [](double x) {
                                 char digits[32];
                                 return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
                               })});
  words.insert(words.end(), {"--to", joined(endpoints_, [](const std::string& e) { return e; })});
  std::vector<char*> arguments;
  for (std::string& w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  ::posix_spawnattr_t how;
  ::posix_spawnattr_init(&how);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&how, 0);
  ::pid_t id = 0;
  const int failed = ::posix_spawnp(&id, arguments[0], nullptr, &how, arguments.data(), environ);
  ::posix_spawnattr_destroy(&how);
  if (failed == EAGAIN && may_wait) return 0;
  if (failed != 0) throw io_error("heddle: cannot start '" + words[0] + "': " + std::strerror(failed));
  return static_cast<int>(id);
}

HEDDLE_INLINE void solvers::run() {
  std::map<std::int64_t, int> deaths;
  std::vector<std::int64_t> again;  // that died
  std::int64_t next = 0;
  int refusals = 0;  // starts in a row for which there was no room, while none ran
  const auto lose = [&](std::int64_t simulation) {
    {
      const std::lock_guard lock(mutex_);
      ++counters_.lost;
    }
    if (options_.on_lost) options_.on_lost(simulation);
  };
  for (;;) {
    while (!ends_ && std::ssize(running_) < options_.at_a_time && (!again.empty() || next < options_.simulations)) {
      const std::int64_t simulation = again.empty() ? next++ : again.back();
      if (!again.empty()) again.pop_back();
      try {
        const int id = start(simulation, refusals < 500);
        refusals = id == 0 && running_.empty() ? refusals + 1 : 0;
        if (id == 0) {
          again.push_back(simulation);
          break;
        }
        const std::lock_guard lock(mutex_);
        running_.push_back({simulation, id, detail::now_seconds()});
        ++counters_.started;
      } catch (const error& e) {
        failure_ = e.what();
        ends_ = true;
        // Nobody is to wait for what will not come.
        lose(simulation);
        for (const std::int64_t s : again) lose(s);
        while (next < options_.simulations) lose(next++);
        again.clear();
      }
    }
    if (running_.empty() && (ends_ || (again.empty() && next >= options_.simulations))) return;
    for (std::size_t i = 0; i < running_.size();) {
      const process p = running_[i];
      if (ends_) ::kill(-p.id, SIGKILL);
      int status = 0;
      const ::pid_t gone = ::waitpid(p.id, &status, WNOHANG);
      if (gone == 0) {
        const double now = detail::now_seconds();
        if (options_.patience_seconds > 0 && now - p.started > options_.patience_seconds &&
            options_.silent(p.simulation) > options_.patience_seconds) {
          ::kill(-p.id, SIGKILL);
          const std::lock_guard lock(mutex_);
          ++counters_.silent;
          running_[i].started = now;
        }
        ++i;
        continue;
      }
      ::kill(-p.id, SIGKILL);  // what it has left behind
      const bool well = gone == p.id && WIFEXITED(status) && WEXITSTATUS(status) == 0;
      {
        const std::lock_guard lock(mutex_);
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        ++(well ? counters_.finished : counters_.died);
      }
      if (well) {
        if (options_.on_finished) options_.on_finished(p.simulation);
        continue;
      }
      if (ends_) {
        if (!failure_.empty()) lose(p.simulation);
        continue;
      }
      if (++deaths[p.simulation] <= options_.restarts)
        again.push_back(p.simulation);
      else
        lose(p.simulation);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(ends_ ? 1 : 10));
  }
}

}  // namespace heddle::inline v0::train
