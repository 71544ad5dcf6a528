// heddle/sim/served_load.hpp: simulates requests to instances of varying degree.
#pragma once

#include <heddle/core/error.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::sim {

/// A request of a trace. Units: seconds, tokens.
struct served_request {
  double arrival = 0;
  std::int64_t prompt = 1, answer = 1;
  std::int64_t tokens() const noexcept { return prompt + answer; }
};

/// A degree that instances may have: the tokens that the cache of one has room for, and its rows per second over those that its ranks compute as instances of their own.
struct served_degree {
  int ranks = 1;
  std::int64_t tokens = 0;
  double efficiency = 1;
};

/// Ranks that serve. Units: seconds, bytes, rows of a step; `least_step_seconds`: of a step however few rows it has. A change of degree takes `change_seconds`, and for each token in the
/// cache its bytes over the link and its runs of memory (Gyges: the published cost of the plain order is that of its runs).
struct served_ranks {
  int ranks = 4;
  std::vector<served_degree> degrees{};  ///< ascending, each divides the next
  std::int64_t step_rows = 64;           ///< of a rank
  double row_seconds = 1e-3;             ///< of one rank
  double least_step_seconds = 0;
  double change_seconds = 0;
  double token_bytes = 0, link_rate = 1, token_runs = 0, run_seconds = 0;

  double move_seconds(std::int64_t tokens) const noexcept {
    return change_seconds + static_cast<double>(tokens) * (token_bytes / link_rate + token_runs * run_seconds);
  }
};

/// What a scheduler sees of an instance. Units: tokens, of requests that run (`used`) and wait (`waiting`), with their answers; `long_requests`: of all these, those that an
/// instance of the first degree has no room for.
struct served_instance {
  int first_rank = 0;
  std::size_t degree = 0;  ///< in `served_ranks::degrees`
  std::int64_t used = 0, waiting = 0, long_requests = 0;
  double last_long = -std::numeric_limits<double>::infinity();  ///< when one of these last came or ended
};

/// Where a request goes: to an instance, which first merges with its neighbours where its degree is a smaller one; -1: nowhere.
struct served_place {
  int instance = -1;
  std::size_t degree = 0;
};

/// Decides where requests go, and which instance splits into those of the first degree: -1, none.
template <class S>
concept served_scheduler =
    requires(S& s, double now, const served_request& r, std::span<const served_instance> all, const served_ranks& of) {
      { s.place(now, r, all, of) } -> std::same_as<served_place>;
      { s.split(now, all, of) } -> std::same_as<int>;
    };

/// All instances have one degree. Requests go to the one with fewest tokens, where it has room for them at all.
struct one_degree {
  served_place place(double, const served_request& r, std::span<const served_instance> all,
                     const served_ranks& of) const {
    served_place best;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (of.degrees[all[i].degree].tokens >= r.tokens() &&
          (best.instance < 0 ||
           all[i].used + all[i].waiting < all[static_cast<std::size_t>(best.instance)].used +
                                              all[static_cast<std::size_t>(best.instance)].waiting))
        best = {static_cast<int>(i), all[i].degree};
    return best;
  }
  int split(double, std::span<const served_instance>, const served_ranks&) const { return -1; }
};

/// What became of a trace. Units: seconds from the first arrival to the last end; tokens of answers; `rows` that requests take, without `rows_again`, which were in the cache once
/// and are computed again after a change; `longest_pause_steps`: the longest time between two steps of a request that runs,
/// because of a change, in last steps of the slowest of
/// the instances that changed: all of them end their step before.
struct served_load {
  std::int64_t served = 0, rejected = 0, answer_tokens = 0, rows = 0, rows_again = 0, changes = 0;
  double seconds = 0, longest_pause = 0, longest_pause_steps = 0;
  double rows_per_second() const noexcept { return seconds > 0 ? static_cast<double>(rows) / seconds : 0; }
};

/// What ranks beside each other did together, as one instance: a step with rows of prompts and of answers, or, without rows, a change of degree to `ranks`. Units: seconds.
struct served_span {
  int first_rank = 0, ranks = 1;
  double begin = 0, end = 0;
  std::int64_t prompt_rows = 0, answer_rows = 0;
  bool is_step() const noexcept { return prompt_rows + answer_rows > 0; }
  friend bool operator==(const served_span&, const served_span&) = default;
};

namespace detail {
class load_simulation {
 public:
  load_simulation(const served_ranks& of, std::size_t degree, std::vector<served_span>* spans)
      : of_(of), spans_(spans) {
    std::string bad;
    if (of.degrees.empty() || degree >= of.degrees.size()) bad = "at least one degree, and the first of them";
    int last = 1;
    for (const served_degree& d : of.degrees) {
      if (d.ranks < 1 || of.ranks % d.ranks != 0 || d.tokens < 1 || !(d.efficiency > 0))
        bad = "degrees that divide the ranks, with tokens and efficiencies above 0";
      else if (d.ranks % last != 0 || (&d != of.degrees.data() && d.ranks == last))
        bad = "ascending degrees that each divide the next";
      last = (std::max)(d.ranks, 1);
    }
    if (of.step_rows < 1 || !(of.row_seconds > 0) || !(of.link_rate > 0))
      bad = "rows of a step, seconds of a row and a rate of links above 0";
    if (!bad.empty()) throw config_error("heddle: served_load: expected " + bad);
    const int d = of.degrees[degree].ranks;
    for (int r = 0; r < of.ranks; r += d) all_.push_back({.seen = {.first_rank = r, .degree = degree}});
  }
  template <class Scheduler>
  served_load run(std::span<const served_request> trace, Scheduler& scheduler) {
    std::size_t next = 0;
    double begin = trace.empty() ? 0 : trace.front().arrival;
    while (true) {
      const instance* first = nullptr;  // whose step begins first
      for (const instance& i : all_)
        if ((!i.running.empty() || !i.queue.empty()) && (first == nullptr || i.ready < first->ready)) first = &i;
      if (next < trace.size() && (first == nullptr || trace[next].arrival <= first->ready)) {
        now_ = (std::max)(now_, trace[next].arrival);
        take(trace[next++], scheduler);
      } else if (first == nullptr) {
        break;
      } else {
        now_ = (std::max)(now_, first->ready);
        step(all_[static_cast<std::size_t>(first - all_.data())]);
      }
      if (const int s = scheduler.split(now_, views(), of_); s >= 0) change(static_cast<std::size_t>(s), 0);
    }
    result_.seconds = end_ - begin;
    return result_;
  }

 private:
  struct sequence {
    std::int64_t prompt = 0, answer = 0, tokens = 0, in_cache = 0;
    std::int64_t again = 0;  // rows that it computes a second time
  };
  struct instance {
    served_instance seen{};
    std::deque<sequence> queue{};
    std::vector<sequence> running{};
    double ready = 0, last_step = 0;
  };

  std::vector<served_instance> views() const {
    std::vector<served_instance> seen;
    for (const instance& i : all_) seen.push_back(i.seen);
    return seen;
  }
  void count(instance& i, const sequence& s, bool runs, std::int64_t sign) {
    (runs ? i.seen.used : i.seen.waiting) += sign * s.tokens;
    if (s.tokens <= of_.degrees[0].tokens) return;
    i.seen.long_requests += sign;
    i.seen.last_long = now_;
  }
  template <class Scheduler>
  void take(const served_request& r, Scheduler& scheduler) {
    served_place to = scheduler.place(now_, r, views(), of_);
    if (to.instance < 0) return void(++result_.rejected);
    auto at = static_cast<std::size_t>(to.instance);
    if (all_[at].seen.degree != to.degree) at = change(at, to.degree);
    if (of_.degrees[all_[at].seen.degree].tokens < r.tokens()) return void(++result_.rejected);
    if (all_[at].running.empty() && all_[at].queue.empty()) all_[at].ready = (std::max)(all_[at].ready, now_);
    all_[at].queue.push_back({r.prompt, r.answer, r.tokens(), 0});
    count(all_[at], all_[at].queue.back(), false, 1);
  }
  void step(instance& i) {
    const served_degree& d = of_.degrees[i.seen.degree];
    std::int64_t rows = 0, answers = 0, left = of_.step_rows * d.ranks;
    while (i.running.empty() && !i.queue.empty() && i.queue.front().tokens > d.tokens) {  // has no room here ever
      count(i, i.queue.front(), false, -1);
      i.queue.pop_front();
      ++result_.rejected;
    }
    if (i.running.empty() && i.queue.empty()) return;
    while (!i.queue.empty() && i.seen.used + i.queue.front().tokens <= d.tokens && std::ssize(i.running) < left) {
      i.running.push_back(i.queue.front());
      i.queue.pop_front();
      i.seen.used += i.running.back().tokens, i.seen.waiting -= i.running.back().tokens;
    }
    for (const bool decodes : {true, false})
      for (sequence& s : i.running) {
        if (left == 0 || (s.prompt == 0) != decodes) continue;
        const std::int64_t n = decodes ? 1 : (std::min)(s.prompt, left);
        (decodes ? s.answer : s.prompt) -= n;
        if (!decodes && s.prompt == 0) --s.answer;  // its first token
        result_.answer_tokens += decodes || s.prompt == 0 ? 1 : 0;
        s.in_cache += n;
        rows += n, left -= n;
        answers += decodes ? n : 0;
        const std::int64_t again = (std::min)(s.again, n);
        s.again -= again;
        result_.rows += n - again;
        result_.rows_again += again;
      }
    i.last_step =
        (std::max)(of_.least_step_seconds, static_cast<double>(rows) * of_.row_seconds / (d.ranks * d.efficiency));
    i.ready = now_ + i.last_step;
    if (spans_ != nullptr) spans_->push_back({i.seen.first_rank, d.ranks, now_, i.ready, rows - answers, answers});
    end_ = (std::max)(end_, i.ready);
    result_.served += std::ssize(i.running);
    std::erase_if(i.running, [&](const sequence& s) {
      const bool ends = s.prompt == 0 && s.answer <= 0;
      if (ends) count(i, s, true, -1);
      return ends;
    });
    result_.served -= std::ssize(i.running);
  }
  // The instance at `at` and its neighbours become one of degree `to`, or it becomes several. Where the first of them is.
  std::size_t change(std::size_t at, std::size_t to) {
    const int ranks = of_.degrees[(std::max)(to, all_[at].seen.degree)].ranks,
              first = all_[at].seen.first_rank / ranks * ranks;
    std::vector<instance> from, others, made;
    for (instance& i : all_)
      (i.seen.first_rank >= first && i.seen.first_rank < first + ranks ? from : others).push_back(std::move(i));
    double begins = now_, slowest = 0;
    std::int64_t tokens = 0;
    for (const instance& i : from) {
      begins = (std::max)(begins, i.ready);
      slowest = (std::max)(slowest, i.last_step);
      for (const sequence& s : i.running) tokens += s.in_cache;
    }
    const double ready = begins + of_.move_seconds(tokens / ranks);
    for (int r = first; spans_ != nullptr && r < first + ranks; r += of_.degrees[to].ranks)
      spans_->push_back({r, of_.degrees[to].ranks, begins, ready});
    for (int r = first; r < first + ranks; r += of_.degrees[to].ranks)
      made.push_back({.seen = {.first_rank = r, .degree = to}, .ready = ready, .last_step = slowest});
    std::vector<std::int64_t> used(made.size()), load(made.size());
    const auto room = of_.degrees[to].tokens;
    const auto give = [&](const sequence& s, bool runs) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < made.size(); ++i)
        if (load[i] < load[best]) best = i;
      load[best] += s.tokens;
      if (runs && used[best] + s.tokens <= room) {
        used[best] += s.tokens;
        made[best].running.push_back(s);
        count(made[best], s, true, 1);
      } else {
        sequence again = s;                                                                  // is computed again
        again.prompt += again.in_cache + (again.in_cache > 0 && again.prompt == 0 ? 1 : 0);  // its last token, too
        again.again += again.in_cache;
        again.in_cache = 0;
        made[best].queue.push_back(again);
        count(made[best], again, false, 1);
      }
    };
    for (const instance& i : from) {
      if (!i.running.empty()) {
        result_.longest_pause = (std::max)(result_.longest_pause, ready - i.ready);
        if (slowest > 0)
          result_.longest_pause_steps = (std::max)(result_.longest_pause_steps, (ready - i.ready) / slowest);
      }
      for (const sequence& s : i.running) give(s, true);
    }
    for (const instance& i : from)
      for (const sequence& s : i.queue) give(s, false);
    const std::size_t place = others.size();
    for (instance& i : made) others.push_back(std::move(i));
    all_ = std::move(others);
    ++result_.changes;
    return place;
  }

  const served_ranks of_;
  std::vector<served_span>* spans_;
  std::vector<instance> all_{};
  served_load result_{};
  double now_ = 0, end_ = 0;
};
}  // namespace detail

/// Serves a trace, ordered by arrival, on instances that have the degree numbered `degree` at first: one event for each step of an instance. A step has a row for each answer
/// and as many rows of prompts as are left; requests begin in the order in which they came, as soon as the cache has room for all of their tokens. One
/// that a scheduler leaves in an instance which is too small for it is rejected there. `spans`: gets each step and each change of degree, for `served_chart`.
/// Errors: `config_error` for degrees that do not divide the ranks or do not ascend so that each divides the next, and numbers that are not above 0.
template <served_scheduler Scheduler>
served_load simulate_load(std::span<const served_request> trace, const served_ranks& of, Scheduler scheduler,
                          std::size_t degree = 0, std::vector<served_span>* spans = nullptr) {
  return detail::load_simulation(of, degree, spans).run(trace, scheduler);
}

}  // namespace heddle::inline v0::sim
