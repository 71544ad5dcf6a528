// heddle/rl/impl/rollout.hpp: admission, rounds and states of a rollout.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/rl/rollout.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace heddle::inline v0::rl {

namespace detail {
[[noreturn]] inline void rollout_error(const std::string& what) {
  throw config_error("heddle: rl::rollout: " + what);
}
inline void require_rollout(bool holds, const std::string& setting, const std::string& accepted, std::int64_t got) {
  if (!holds) rollout_error(setting + " should be " + accepted + ", got " + std::to_string(got));
}
inline bool has_ended(const sample& s) noexcept { return s.finish != infer::finish_reason::none; }
inline std::size_t length_of(const sample& s) noexcept { return s.prompt.size() + s.tokens.size(); }
}  // namespace detail

HEDDLE_INLINE void rollout::begin(const completion_rule& rule, rollout_options options) {
  rule_ = rule;
  options_ = std::move(options);
  const rollout_options& o = options_;
  const infer::sampling_options& s = o.sampling;
  const auto require = detail::require_rollout;
  require(rule.over >= 0, "completion.over", "at least 0", rule.over);
  require(rule.slots >= 0, "completion.slots", "at least 0", rule.slots);
  require(o.groups >= 1, "groups", "at least 1", o.groups);
  require(o.answers >= 1, "answers", "at least 1", o.answers);
  require(o.answers >= 2 || !o.compared, "answers", "at least 2, where advantages compare them (else `compared` is false)",
          o.answers);
  require(o.max_tokens >= 1, "max_tokens", "at least 1", o.max_tokens);
  require(o.window == 0 || o.window >= o.groups, "window",
          "at least the " + std::to_string(o.groups) + " groups of a round, or 0 for no bound", o.window);
  if (!(s.temperature > 0) || !std::isfinite(s.temperature))
    detail::rollout_error("sampling.temperature should be a finite number above 0, got " + number_text(s.temperature));
  const infer::sampling_options plain{.temperature = s.temperature, .seed = s.seed};
  if (s != plain)
    detail::rollout_error(
        "sampling should have a temperature and a seed alone: with top_k " + std::to_string(s.top_k) + ", top_p " +
        number_text(s.top_p) + ", min_p " + number_text(s.min_p) +
        " and penalties tokens are drawn from another distribution than the one that is trained");
  require(engine_->options().max_waiting == 0, "the engine's max_waiting", "0: any number", engine_->options().max_waiting);
  const std::int64_t vocabulary = engine_->limits().vocabulary;
  for (const std::int32_t t : o.stop_tokens)
    require(t >= 0 && t < vocabulary, "stop_tokens", "below the vocabulary's " + std::to_string(vocabulary), t);
}

HEDDLE_INLINE void rollout::require_prompt(const rollout_prompt& p) const {
  const std::string name = "the prompt of group " + std::to_string(p.group);
  const infer::step_limits limits = engine_->limits();
  const auto length = std::ssize(p.tokens);
  if (length < 1 || length >= engine_->context())
    detail::rollout_error(name + " has " + std::to_string(length) + " tokens; prompt and answer have at least one each, and at most " +
                          std::to_string(engine_->context()) + " together");
  for (const std::int32_t t : p.tokens)
    if (t < 0 || t >= limits.vocabulary)
      detail::rollout_error(name + " has the token " + std::to_string(t) + ", which is not in the vocabulary of " +
                            std::to_string(limits.vocabulary));
}

HEDDLE_INLINE void rollout::add(rollout_prompt prompt) {
  if (prompt.group <= last_group_)
    detail::rollout_error("groups should ascend: got the prompt of group " + std::to_string(prompt.group) + " after " +
                          std::to_string(last_group_));
  if (prompt.group > (std::numeric_limits<std::int64_t>::max)() / options_.answers - 1)
    detail::rollout_error("group " + std::to_string(prompt.group) + " is too great for ids of answers");
  require_prompt(prompt);
  last_group_ = prompt.group;
  prompts_.push_back(std::move(prompt));
}

HEDDLE_INLINE void rollout::start(std::int64_t n) {
  if (n == 0) n = options_.groups;
  detail::require_rollout(n > 0, "a round's number of groups", "at least 1", n);
  detail::require_rollout(options_.window == 0 || n <= options_.window, "a round's number of groups",
                          "within the window of " + std::to_string(options_.window), n);
  wanted_ = n;
}

HEDDLE_INLINE bool rollout::step() {
  const bool goes_on = rule_.over == 0;  // beyond the round
  if (!goes_on && finished_ >= wanted_) return false;
  admit();
  if (in_flight_.empty()) return false;
  std::string problem;
  for (const infer::event& e : engine_->step()) {
    const auto at = in_flight_.find(e.id);
    if (at == in_flight_.end()) continue;  // it was cancelled
    sample& s = at->second.get();
    if (e.token) {
      if (s.segments.empty() || s.segments.back().version != version_) s.segments.push_back({version_, std::ssize(s.tokens)});
      s.tokens.push_back(*e.token);
      s.log_probabilities.push_back(e.log_probability.value());
      ++counts_.generated;
    }
    if (e.finish == infer::finish_reason::none) continue;
    if (e.finish == infer::finish_reason::error) problem = e.message;
    const place p = at->second;
    in_flight_.erase(at);
    end(p, e.finish);
  }
  const bool complete = finished_ >= wanted_;
  if (complete && !goes_on) cancel_rest();
  if (!problem.empty()) throw numeric_error(problem);
  return wanted_ > 0 ? !complete : !in_flight_.empty() || !pending_.empty() || may_start();
}

// As many answers as have room. What has a request takes a block more with its next tokens.
HEDDLE_INLINE void rollout::admit() {
  const infer::engine_counts c = engine_->counts();
  if (c.waiting > 0) return;
  const std::int64_t rows = engine_->limits().block_rows;
  std::int64_t most = engine_->options().max_running, room = c.cache.blocks - c.cache.used - c.running;
  if (rule_.slots > 0) most = (std::min)(most, rule_.slots);
  while (in_flight() < most && (!pending_.empty() || may_start())) {
    const std::size_t length = pending_.empty() ? prompts_.front().tokens.size() : detail::length_of(pending_.front().get());
    room -= (static_cast<std::int64_t>(length) + rows - 1) / rows + 1;
    if (room < 0 && !in_flight_.empty()) return;  // alone it has room
    if (pending_.empty()) start_group();
    const place p = pending_.front();
    pending_.pop_front();
    submit(p);
  }
}

HEDDLE_INLINE bool rollout::may_start() const {
  return !prompts_.empty() && (options_.window == 0 || counts_.started - counts_.consumed < options_.window) &&
         (rule_.over == 0 || std::ssize(groups_) < rule_.over * wanted_);
}

HEDDLE_INLINE void rollout::start_group() {
  const rollout_prompt prompt = std::move(prompts_.front());
  prompts_.pop_front();
  group& g = groups_.emplace_back();
  for (std::int64_t i = 0; i < options_.answers; ++i)
    g.samples.push_back({.prompt = prompt.tokens, .id = prompt.group * options_.answers + i, .group = prompt.group});
  g.unfinished = options_.answers;
  ++counts_.started;
  for (std::size_t i = 0; i < g.samples.size(); ++i) pending_.push_back({&g, i});
}

HEDDLE_INLINE void rollout::submit(place p) {
  const sample& s = p.get();
  infer::request r{.prompt = s.prompt,
                   .max_tokens = options_.max_tokens - std::ssize(s.tokens),
                   .sampling = options_.sampling,
                   .log_probabilities = 0,
                   .log_probabilities_of = infer::log_probability_of::drawn,
                   .stop_tokens = options_.stop_tokens};
  r.prompt.insert(r.prompt.end(), s.tokens.begin(), s.tokens.end());
  if (r.max_tokens <= 0 || std::ssize(r.prompt) >= engine_->context()) return end(p, infer::finish_reason::length);
  r.sampling.seed = seed_of_sample(options_.sampling.seed.value_or(0), s.id);
  in_flight_.emplace(engine_->submit(std::move(r)), p);
  ++counts_.requests;
}

HEDDLE_INLINE void rollout::end(place p, infer::finish_reason why) {
  p.get().finish = why;
  if (--p.of->unfinished == 0) ++finished_;
}

// Where nothing has a request: what has not ended waits to begin, the oldest first.
HEDDLE_INLINE void rollout::wait_again() {
  pending_.clear();
  for (group& g : groups_)
    for (std::size_t i = 0; i < g.samples.size(); ++i)
      if (!detail::has_ended(g.samples[i])) pending_.push_back({&g, i});
}

HEDDLE_INLINE void rollout::cancel_rest() {
  for (const auto& [id, p] : in_flight_) engine_->cancel(id);
  counts_.cancelled += in_flight();
  in_flight_.clear();
  wait_again();
}

HEDDLE_INLINE std::vector<sample> rollout::take_finished(std::int64_t n) {
  if (n == 0) n = wanted_ > 0 ? wanted_ : finished_;
  std::vector<sample> taken;
  for (auto g = groups_.begin(); g != groups_.end() && n > 0;) {
    if (g->unfinished > 0) {
      ++g;
      continue;
    }
    for (sample& s : g->samples) {
      counts_.delivered += std::ssize(s.tokens);
      taken.push_back(std::move(s));
    }
    g = groups_.erase(g);
    --finished_, --n;
    ++counts_.taken;
  }
  return taken;
}

HEDDLE_INLINE void rollout::consumed(std::int64_t groups) {
  if (groups < 0 || counts_.consumed + groups > counts_.taken)
    detail::rollout_error("of " + std::to_string(counts_.taken) + " groups that were taken, " + std::to_string(counts_.consumed) +
                          " were consumed before: " + std::to_string(groups) + " more cannot be");
  counts_.consumed += groups;
}

HEDDLE_INLINE void rollout::weights_changed(std::int64_t version, kv what) {
  detail::require_rollout(version >= version_, "the version of weights",
                          "at least the last one's " + std::to_string(version_), version);
  version_ = version;
  engine_->weights_changed(what);
}

HEDDLE_INLINE std::int64_t rollout::buffered_tokens() const {
  std::int64_t n = 0;
  for (const group& g : groups_)
    for (const sample& s : g.samples) n += std::ssize(s.tokens);
  return n;
}

HEDDLE_INLINE rollout_state rollout::state() const {
  rollout_state s{.version = version_, .wanted = wanted_, .counts = counts_};
  s.prompts.assign(prompts_.begin(), prompts_.end());
  for (const group& g : groups_) s.groups.push_back(g.samples);
  return s;
}

HEDDLE_INLINE void rollout::restore(rollout_state state) {
  if (counts_ != rollout_counts{} || !prompts_.empty()) detail::rollout_error("a state is for a rollout that has not begun");
  for (const std::vector<sample>& g : state.groups) {
    detail::require_rollout(std::ssize(g) == options_.answers, "answers of a group of the state",
                            std::to_string(options_.answers), std::ssize(g));
    for (const sample& s : g)
      if (s.prompt.empty() || s.log_probabilities.size() != s.tokens.size() || s.group != g.front().group)
        detail::rollout_error("answer " + std::to_string(s.id) + " of the state is not one of a rollout");
    require_prompt({g.front().group, g.front().prompt});
  }
  for (const rollout_prompt& p : state.prompts) require_prompt(p);
  version_ = state.version;
  wanted_ = state.wanted;
  counts_ = state.counts;
  for (std::vector<sample>& samples : state.groups) {
    group& g = groups_.emplace_back();
    g.samples = std::move(samples);
    g.unfinished = std::count_if(g.samples.begin(), g.samples.end(), [](const sample& s) { return !detail::has_ended(s); });
    finished_ += g.unfinished == 0 ? 1 : 0;
    last_group_ = (std::max)(last_group_, g.samples.front().group);
  }
  for (rollout_prompt& p : state.prompts) {
    last_group_ = (std::max)(last_group_, p.group);
    prompts_.push_back(std::move(p));
  }
  wait_again();
}

}  // namespace heddle::inline v0::rl
