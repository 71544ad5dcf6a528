// heddle/sim/impl/rl_flow.hpp: bodies of heddle/sim/rl_flow.hpp.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/text.hpp>
#include <heddle/sim/rl_flow.hpp>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <queue>
#include <utility>

namespace heddle::inline v0::sim {
namespace detail {

class rl_simulation {
 public:
  rl_simulation(const rl_flow& flow, const rl_times& times, int steps, int skip)
      : f_(flow), t_(times), steps_(steps), skip_(skip) {
    const bool sizes = f_.engines > 0 && f_.slots >= 0 && f_.groups > 0 && f_.of_group > 0 && f_.steps_per_sync > 0 &&
                       f_.started >= 0 && f_.window >= 0 && f_.at_once > 0 && steps > 0 && skip >= 0 && skip < steps;
    bool possible = f_.eta >= 0 && t_.step + t_.step_per_answer > 0;
    for (const double s : {t_.step, t_.step_per_answer, t_.prefill, t_.train, t_.train_per_token, t_.publish, t_.load})
      possible = possible && s >= 0 && std::isfinite(s);
    if (!sizes || !possible || !t_.length)
      throw config_error(
          "heddle: a flow has engines, groups, answers, steps and times that are not negative, fewer steps to skip "
          "than "
          "there are, and lengths of answers");
    if (f_.started != 0 && f_.started < needed())
      throw config_error("heddle: a round needs " + std::to_string(needed()) + " groups, and starts " +
                         std::to_string(f_.started));
    if (f_.rule == rl_rule::in_flight && f_.window != 0 && f_.window < needed())
      throw config_error("heddle: a window of " + std::to_string(f_.window) + " groups never lets the " +
                         std::to_string(needed()) + " groups between two weights be complete");
    engines_.resize(static_cast<std::size_t>(f_.engines));
  }

  rl_flow_report run() {
    if (by_rounds()) begin_round();
    dispatch();
    while (done_steps_ < steps_) {
      if (events_.empty()) throw config_error("heddle: the simulated engines and trainer wait for each other for ever");
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {  // all that happens now, before anybody gets anything
        const event e = events_.top();
        events_.pop();
        happen(e);
      }
      if (by_rounds()) look_at_round();
      dispatch();
      if (!by_rounds()) train_if_ready();
    }
    return finish();
  }

 private:
  enum class kind { engine, loaded, reward, trained, published, round };
  struct event {
    double time = 0;
    std::int64_t order = 0;
    kind what = kind::engine;
    std::size_t index = 0;
    std::int64_t stamp = 0;
    std::int64_t group = 0;
    bool operator<(const event& o) const { return time != o.time ? time > o.time : order > o.order; }
  };
  struct segment {
    int version = 0, tokens = 0;
  };
  struct answer {
    std::int64_t group = 0;
    int member = 0, length = 0, generated = 0;
    std::int64_t counted = 0;  // the engine's clock up to which `generated` and `segments` are
    std::vector<segment> segments{};
    bool finished = false;
  };
  struct group {
    std::int64_t number = 0;
    std::vector<std::size_t> answers{};
    int judged = 0;
  };
  struct engine {
    std::vector<std::pair<std::int64_t, std::size_t>> active{};  // a heap: first the answer that ends first, by `clock`
    std::vector<std::size_t> incoming{};
    std::int64_t clock = 0;  // tokens of each answer so far
    int version = 0;
    double began = 0, since = 0, each = 0;  // of the prefill and of the tokens that it is at
    int tokens = 0;                         // of each answer, until its next boundary
    bool running = false, standing = false, wants_weights = false;
    std::int64_t stamp = 0;
    std::int64_t prefill = 0;
  };

  void happen(const event& e) {
    switch (e.what) {
      case kind::engine:
        if (engines_[e.index].stamp == e.stamp) boundary(e.index);
        break;
      case kind::loaded:
        loaded(e.index);
        break;
      case kind::reward:
        complete(e.group);
        break;
      case kind::trained:
        trained();
        break;
      case kind::published:
        published();
        break;
      case kind::round:
        next_round();
        break;
    }
  }
  bool by_rounds() const { return f_.rule == rl_rule::sync || f_.rule == rl_rule::one_step_off; }
  int needed() const { return f_.groups * f_.steps_per_sync; }
  void at(double time, kind what, std::size_t index = 0, std::int64_t stamp = 0, std::int64_t of = 0) {
    events_.push({time, order_++, what, index, stamp, of});
  }

  // ---- answers -------------------------------------------------------------------------------------------------------
  std::int64_t new_group() {
    group g;
    g.number = static_cast<std::int64_t>(groups_.size());
    for (int m = 0; m < f_.of_group; ++m) {
      answer a;
      a.group = g.number;
      a.member = m;
      a.length = t_.length(g.number, m);
      if (a.length < 1) throw config_error("heddle: an answer has at least 1 token, got " + std::to_string(a.length));
      g.answers.push_back(answers_.size());
      answers_.push_back(std::move(a));
    }
    groups_.push_back(std::move(g));
    ++started_;
    return groups_.back().number;
  }
  void submit(std::int64_t number) {
    for (const std::size_t a : groups_[static_cast<std::size_t>(number)].answers)
      if (!answers_[a].finished) waiting_.push_back(a);
  }
  bool window_is_open() const {
    if (f_.rule == rl_rule::in_flight && f_.window == 0) return true;
    const double groups = f_.rule == rl_rule::in_flight ? f_.window : std::floor((1 + f_.eta) * needed() + 1e-9);
    return static_cast<double>(started_) < static_cast<double>(learned_at_sync_) + groups;
  }
  bool has_slot(const engine& e) const {
    const auto n = e.active.size() + e.incoming.size();
    return !e.standing && !(e.wants_weights && f_.load == rl_load::drain) &&
           (f_.slots == 0 || n < static_cast<std::size_t>(f_.slots));
  }
  // Gives waiting answers, and new ones as far as the window reaches, to engines.
  void dispatch() {
    if (waiting_.empty() && (by_rounds() || !window_is_open())) return;
    using place = std::pair<std::size_t, std::size_t>;  // answers of an engine, and its number
    std::priority_queue<place, std::vector<place>, std::greater<place>> with_slots;
    for (std::size_t e = 0; e < engines_.size(); ++e)
      if (has_slot(engines_[e])) with_slots.push({load_of(e), e});
    std::vector<bool> woken(engines_.size());
    while (!with_slots.empty()) {
      if (waiting_.empty()) {
        if (by_rounds() || !window_is_open()) break;
        if (f_.slots == 0 && f_.rule == rl_rule::in_flight && f_.window == 0)
          throw config_error("heddle: engines that always go on have slots or a window, got neither");
        submit(new_group());
        continue;
      }
      const std::size_t to = with_slots.top().second;
      with_slots.pop();
      engines_[to].incoming.push_back(waiting_.front());
      waiting_.pop_front();
      woken[to] = true;
      if (has_slot(engines_[to])) with_slots.push({load_of(to), to});
    }
    for (std::size_t e = 0; e < engines_.size(); ++e)
      if (woken[e]) interrupt(e);
  }
  std::size_t load_of(std::size_t e) const { return engines_[e].active.size() + engines_[e].incoming.size(); }

  // ---- engines -------------------------------------------------------------------------------------------------------
  // Lets the engine come to a boundary at the end of the token that it is at.
  void interrupt(std::size_t index) {
    engine& e = engines_[index];
    if (e.standing) return;
    if (!e.running) return at(now_, kind::engine, index, ++e.stamp);
    const double tokens = std::ceil((now_ - e.since) / e.each - 1e-7);
    const int n = (std::max)(0, static_cast<int>((std::min)(tokens, 2e9)));
    if (n >= e.tokens) return;
    e.tokens = n;
    at((std::max)(now_, e.since + n * e.each), kind::engine, index, ++e.stamp);
  }
  void boundary(std::size_t index) {
    engine& e = engines_[index];
    if (e.standing) return;
    if (e.running) {
      e.running = false;
      busy_ += (std::max)(0.0, now_ - (std::max)(e.began, counting_since_));
    }
    e.clock += e.tokens;
    const std::int64_t made = e.tokens * std::ssize(e.active);
    all_generated_ += made;
    if (counts()) report_.generated += made;
    e.tokens = 0;
    while (!e.active.empty() && e.active.front().first == e.clock) {
      const std::size_t a = e.active.front().second;
      std::pop_heap(e.active.begin(), e.active.end(), std::greater{});
      e.active.pop_back();
      answer& of = answers_[a];
      count(e, of);
      of.finished = true;
      at(now_ + (t_.reward ? t_.reward(of.group, of.member) : 0), kind::reward, 0, 0, of.group);
    }
    if (aborting_) {
      count_all(e);
      for (const auto& [end, a] : e.active) stopped_.push_back(a);
      stopped_.insert(stopped_.end(), e.incoming.begin(), e.incoming.end());
      e.active.clear();
      e.incoming.clear();
    }
    if (e.wants_weights && (f_.load != rl_load::drain || e.active.empty()) && may_load()) return load(index);
    for (const std::size_t a : e.incoming) {
      answer& of = answers_[a];
      e.prefill += of.generated + (t_.prompt ? t_.prompt(of.group) : 0);
      of.counted = e.clock;
      e.active.emplace_back(e.clock + of.length - of.generated, a);
      std::push_heap(e.active.begin(), e.active.end(), std::greater{});
    }
    e.incoming.clear();
    if (e.active.empty()) return;
    if (counts()) report_.prefilled += e.prefill;
    const double prefill = static_cast<double>(e.prefill) * t_.prefill;
    e.prefill = 0;
    e.each = t_.step + t_.step_per_answer * static_cast<double>(e.active.size());
    e.since = now_ + prefill;
    e.began = now_;
    e.running = true;
    e.tokens = static_cast<int>(e.active.front().first - e.clock);
    at(e.since + e.tokens * e.each, kind::engine, index, ++e.stamp);
  }
  // Writes down the tokens that an answer has since it was last looked at, under the engine's weights.
  static void count(const engine& e, answer& of) {
    const auto n = static_cast<int>(e.clock - of.counted);
    of.counted = e.clock;
    if (n == 0) return;
    of.generated += n;
    if (of.segments.empty() || of.segments.back().version != e.version) of.segments.push_back({e.version, 0});
    of.segments.back().tokens += n;
  }
  void count_all(const engine& e) {
    for (const auto& [end, a] : e.active) count(e, answers_[a]);
  }

  // ---- weights -------------------------------------------------------------------------------------------------------
  bool may_load() const {
    if (f_.load == rl_load::rolling) return loading_ < f_.at_once;
    return true;
  }
  void load(std::size_t index) {
    engine& e = engines_[index];
    e.standing = true;
    ++loading_;
    if (counts()) report_.most_standing = (std::max)(report_.most_standing, loading_);
    if (f_.load != rl_load::stop) return at(now_ + t_.load, kind::loaded, index);
    if (loading_ < f_.engines) return;  // all together
    for (std::size_t i = 0; i < engines_.size(); ++i) at(now_ + t_.load, kind::loaded, i);
  }
  void loaded(std::size_t index) {
    engine& e = engines_[index];
    e.standing = false;
    --loading_;
    count_all(e);
    e.version = published_;
    e.wants_weights = false;
    if (f_.recompute)
      for (const auto& [end, a] : e.active)
        e.prefill += answers_[a].generated + (t_.prompt ? t_.prompt(answers_[a].group) : 0);
    if (f_.load == rl_load::stop && loading_ == 0) trainer_waits_ = false;
    at(now_, kind::engine, index, ++e.stamp);
    if (f_.load == rl_load::rolling)
      for (std::size_t i = 0; i < engines_.size(); ++i)
        if (engines_[i].wants_weights && !engines_[i].standing) interrupt(i);
  }
  void published() {  // engines that go on all the time
    published_ = publishing_.front();
    publishing_.pop_front();
    learned_at_sync_ = std::int64_t{published_} * f_.groups;  // not before: what starts has these weights
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      engines_[i].wants_weights = true;
      interrupt(i);
    }
  }

  // ---- groups and rounds ---------------------------------------------------------------------------------------------
  void complete(std::int64_t number) {
    group& g = groups_[static_cast<std::size_t>(number)];
    if (++g.judged < f_.of_group) return;
    if (f_.in_order)
      complete_.insert(std::lower_bound(complete_.begin(), complete_.end(), number), number);
    else
      complete_.push_back(number);
  }
  void begin_round() {
    generating_ = true;
    aborting_ = false;
    const int start = (std::max)(f_.completion == rl_completion::partial ? f_.started : 0, needed());
    int in_flight = static_cast<int>(complete_.size());  // those that were finished beyond the last round's need
    while (in_flight < start) {
      if (!kept_.empty()) {  // the oldest first
        submit(kept_.front());
        for (const std::size_t a : groups_[static_cast<std::size_t>(kept_.front())].answers)
          if (counts() && !answers_[a].finished) inherited_ += answers_[a].generated;
        kept_.pop_front();
      } else {
        submit(new_group());
      }
      ++in_flight;
    }
  }
  void look_at_round() {
    if (generating_ && std::ssize(complete_) >= needed() && !aborting_) {
      aborting_ = true;
      for (const std::size_t a : waiting_) stopped_.push_back(a);
      waiting_.clear();
      for (std::size_t i = 0; i < engines_.size(); ++i)
        if (load_of(i) > 0) interrupt(i);
    }
    if (generating_ && aborting_ && std::all_of(engines_.begin(), engines_.end(), [](const engine& e) {
          return !e.running && e.active.empty() && e.incoming.empty();
        })) {
      generating_ = false;
      std::vector<std::int64_t> numbers;
      for (const std::size_t a : stopped_) numbers.push_back(answers_[a].group);
      stopped_.clear();
      std::sort(numbers.begin(), numbers.end());
      numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
      kept_.insert(kept_.end(), numbers.begin(), numbers.end());
      std::sort(kept_.begin(), kept_.end());
      kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
      generated_ = true;
    }
    if (!generated_ || training_ || meeting_) return;
    generated_ = false;
    take_batch();
    if (f_.rule == rl_rule::sync) return train();
    meeting_ = true;  // both give what they have
    at(now_ + t_.publish + t_.load, kind::round);
  }
  void take_batch() {
    for (int i = 0; i < needed(); ++i) {
      batch_.push_back(complete_.front());
      complete_.pop_front();
    }
  }
  void next_round() {
    meeting_ = false;
    for (engine& e : engines_) e.version = done_steps_;
    if (f_.rule == rl_rule::one_step_off) train();
    begin_round();
  }

  // ---- the trainer ---------------------------------------------------------------------------------------------------
  void train_if_ready() {
    if (training_ || trainer_waits_ || std::ssize(complete_) < f_.groups) return;
    if (f_.in_order && complete_[static_cast<std::size_t>(f_.groups - 1)] >= std::int64_t{done_steps_ + 1} * f_.groups)
      return;
    for (int i = 0; i < f_.groups; ++i) {
      batch_.push_back(complete_.front());
      complete_.pop_front();
    }
    train();
  }
  void train() {
    if (done_steps_ == steps_) return;
    training_ = true;
    rl_flow_step step;
    step.begin = now_;
    std::int64_t old = 0;
    int newest = 0;
    const auto each = [&](auto&& f) {
      for (int i = 0; i < f_.groups; ++i)
        for (const std::size_t a : groups_[static_cast<std::size_t>(batch_[static_cast<std::size_t>(i)])].answers)
          f(answers_[a]);
    };
    each([&](const answer& a) { newest = (std::max)(newest, a.segments.back().version); });
    each([&](answer& a) {
      for (const segment& s : a.segments) {
        const int lag = done_steps_ - s.version;
        step.greatest_lag = (std::max)(step.greatest_lag, lag);
        step.tokens += s.tokens;
        if (s.version != newest) old += s.tokens;
        if (!counts()) continue;
        if (report_.tokens_of_lag.size() <= static_cast<std::size_t>(lag))
          report_.tokens_of_lag.resize(static_cast<std::size_t>(lag) + 1);
        report_.tokens_of_lag[static_cast<std::size_t>(lag)] += s.tokens;
      }
      if (counts()) {
        ++report_.answers;
        report_.most_versions = (std::max)(report_.most_versions, static_cast<int>(a.segments.size()));
      }
      a.segments = {};
    });
    batch_.erase(batch_.begin(), batch_.begin() + f_.groups);
    all_learned_ += step.tokens;
    if (counts()) {
      report_.learned += step.tokens;
      stale_ += old;
    }
    step.end = now_ + t_.train + t_.train_per_token * static_cast<double>(step.tokens);
    if (counts()) trainer_busy_ += step.end - now_;
    report_.steps.push_back(step);
    at(step.end, kind::trained);
  }
  void trained() {
    training_ = false;
    ++done_steps_;
    if (done_steps_ == skip_ && skip_ > 0) {
      counting_since_ = now_;
      busy_ = 0;
    }
    if (by_rounds()) {
      if (!batch_.empty()) return train();
      if (f_.rule == rl_rule::sync) at(now_ + t_.publish + t_.load, kind::round);
      return;
    }
    if (done_steps_ % f_.steps_per_sync != 0) return;
    publishing_.push_back(done_steps_);
    if (f_.load == rl_load::stop) trainer_waits_ = true;
    at(now_ + t_.publish, kind::published);
  }

  bool counts() const { return done_steps_ >= skip_; }
  rl_flow_report finish() {
    report_.seconds = now_ - counting_since_;
    for (const engine& e : engines_) count_all(e);
    report_.all_generated = all_generated_;
    report_.all_learned = all_learned_;
    for (const answer& a : answers_)
      for (const segment& s : a.segments) report_.buffered += s.tokens;
    if (report_.learned > 0) report_.stale = static_cast<double>(stale_) / static_cast<double>(report_.learned);
    if (inherited_ > 0)
      report_.inherited = static_cast<double>(inherited_) / static_cast<double>(inherited_ + report_.generated);
    if (report_.seconds > 0) {
      double running = busy_;
      for (const engine& e : engines_)  // until now
        if (e.running) running += (std::max)(0.0, now_ - (std::max)(e.began, counting_since_));
      report_.engine_idle = (std::max)(0.0, 1 - running / (report_.seconds * f_.engines));
      report_.trainer_idle = (std::max)(0.0, 1 - trainer_busy_ / report_.seconds);
    }
    return std::move(report_);
  }

  const rl_flow& f_;
  const rl_times& t_;
  int steps_, skip_;
  double now_ = 0, counting_since_ = 0;
  std::int64_t order_ = 0;
  std::priority_queue<event> events_{};
  std::vector<answer> answers_{};
  std::vector<group> groups_{};
  std::vector<engine> engines_{};
  std::deque<std::size_t> waiting_{};
  std::vector<std::size_t> stopped_{};
  std::deque<std::int64_t> complete_{}, kept_{}, batch_{};
  std::deque<int> publishing_{};
  std::int64_t started_ = 0, learned_at_sync_ = 0, all_generated_ = 0, all_learned_ = 0, stale_ = 0, inherited_ = 0;
  int done_steps_ = 0, published_ = 0, loading_ = 0;
  bool generating_ = false, generated_ = false, aborting_ = false, training_ = false, trainer_waits_ = false,
       meeting_ = false;
  double busy_ = 0, trainer_busy_ = 0;
  rl_flow_report report_{};
};

}  // namespace detail

HEDDLE_INLINE int rl_lengths::operator()(std::int64_t group, int member) const {
  // Two normal numbers of each index.
  const auto number = [&](std::uint64_t stream, std::uint64_t index) {
    const counter_random draw(seed, stream);
    const double u = 1 - draw.uniform(2 * index), v = draw.uniform(2 * index + 1);
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  };
  const auto g = static_cast<std::uint64_t>(group);
  const double own = number(1, g * 4096 + static_cast<std::uint64_t>(member));
  const double tokens = median * std::exp(between * number(0, g) + within * own);
  return static_cast<int>((std::clamp)(std::round(tokens), 1.0, static_cast<double>(cap)));
}

HEDDLE_INLINE std::string to_string(const rl_flow_report& r) {
  std::size_t lag = r.tokens_of_lag.size();
  while (lag > 0 && r.tokens_of_lag[lag - 1] == 0) --lag;
  return rounded_text(r.tokens_per_second(), 0) + " tokens/s, engines idle " + rounded_text(100 * r.engine_idle, 1) +
         " %, trainer " + rounded_text(100 * r.trainer_idle, 1) + " %, lag " + rounded_text(r.mean_lag(), 2) +
         " (most " + std::to_string(lag == 0 ? 0 : lag - 1) + "), stale " + rounded_text(100 * r.stale, 1) + " %";
}

HEDDLE_INLINE rl_flow_report simulate(const rl_flow& flow, const rl_times& times, int steps, int skip) {
  return detail::rl_simulation(flow, times, steps, skip).run();
}

}  // namespace heddle::inline v0::sim
