// heddle/rl/batch_buffer.hpp: finished groups of answers between generators and a trainer.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/sample.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::rl {

/// The versions of the weights that wrote an answer: the oldest and the newest.
inline std::pair<std::int64_t, std::int64_t> versions_of(const sample& s) {
  if (s.segments.empty()) return {0, 0};
  return {s.segments.front().version, s.segments.back().version};
}

/// All that a `batch_buffer` has to save. Units: groups.
struct batch_buffer_state {
  std::int64_t next = 0, came = 0, used = 0, given_up = 0, fresh_from = 0;
  std::vector<bool> seen{};                 ///< by number: those that came
  std::vector<std::int64_t> numbers{};      ///< ascending: of those that are here
  std::vector<std::vector<sample>> here{};  ///< as many; without answers: given up
  friend bool operator==(const batch_buffer_state&, const batch_buffer_state&) = default;
};

/// Groups that are finished, until a step takes them. A batch is the next `groups` of them in the order of their
/// numbers, or, where answers overtake each other (`flow::overtakes`), the first that came, those with the oldest tokens
/// first. Nothing is lost and nothing used twice: each group that came is used, given up or here.
class batch_buffer {
 public:
  batch_buffer(const flow& how, std::int64_t groups) : how_(how), groups_(groups) {}

  /// A group that is finished. Errors: `error` for one that came before.
  void add(std::int64_t id, std::vector<sample> answers) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= seen_.size()) seen_.resize(at + 1);
    if (seen_[at]) throw error("heddle: rl: group " + std::to_string(id) + " came twice");
    seen_[at] = true;
    here_.emplace(id, std::move(answers));
    ++came_;
  }
  /// The oldest version that the guard takes, for a trainer of this one.
  std::int64_t oldest_usable(std::int64_t version) const noexcept {
    return (std::max)(how_.most_age < 0 ? 0 : version - how_.most_age, fresh_from_);
  }
  /// Gives up groups with a token that is older than the guard says, for a trainer of this version; they count as left.
  /// Returns how many.
  std::int64_t give_up(std::int64_t version) {
    const std::int64_t oldest = oldest_usable(version);
    std::int64_t n = 0;
    for (auto& [id, answers] : here_) {
      if (answers.empty() || oldest_of(answers) >= oldest) continue;
      answers.clear();
      ++n;
    }
    if (how_.overtakes()) std::erase_if(here_, [](const auto& g) { return g.second.empty(); });
    given_up_ += n;
    return n;
  }
  /// From now on, groups with a token of a version before this one are given up.
  void only_from(std::int64_t version) noexcept { fresh_from_ = (std::max)(fresh_from_, version); }

  /// Groups that a batch lacks; in order, all from the first that is missing on.
  std::int64_t missing() const {
    std::int64_t n = 0;
    each_of_batch([&](auto) { ++n; });
    return groups_ - n;
  }
  /// Without overtaking: the number behind that of the last group of the next batch.
  std::int64_t until() const noexcept {
    std::int64_t id = next_, left = groups_;
    for (auto at = here_.begin(); left > 0; ++id) {
      while (at != here_.end() && at->first < id) ++at;
      if (at == here_.end() || at->first != id || !at->second.empty()) --left;
    }
    return id;
  }
  /// A batch, in the order of the groups' numbers; nothing where groups are missing.
  std::optional<std::vector<std::vector<sample>>> take() {
    std::vector<std::int64_t> ids;
    each_of_batch([&](std::int64_t id) { ids.push_back(id); });
    if (std::ssize(ids) < groups_) return std::nullopt;
    std::sort(ids.begin(), ids.end());
    std::vector<std::vector<sample>> batch;
    for (const std::int64_t id : ids) {
      const auto at = here_.find(id);
      batch.push_back(std::move(at->second));
      here_.erase(at);
    }
    if (!how_.overtakes()) {
      next_ = ids.back() + 1;
      here_.erase(here_.begin(), here_.lower_bound(next_));  // those given up
    }
    used_ += groups_;
    return batch;
  }

  /// Groups that were used or given up, those that came, those that are here and can be used, those given up.
  std::int64_t left() const noexcept { return used_ + given_up_; }
  std::int64_t came() const noexcept { return came_; }
  std::int64_t here() const noexcept { return came_ - left(); }
  std::int64_t given_up() const noexcept { return given_up_; }

  batch_buffer_state state() const {
    batch_buffer_state s{next_, came_, used_, given_up_, fresh_from_, seen_};
    for (const auto& [id, answers] : here_) s.numbers.push_back(id), s.here.push_back(answers);
    return s;
  }
  /// Goes on from a state, of a buffer for the same flow and batch.
  void restore(batch_buffer_state s) {
    next_ = s.next, came_ = s.came, used_ = s.used, given_up_ = s.given_up, fresh_from_ = s.fresh_from;
    seen_ = std::move(s.seen);
    here_.clear();
    for (std::size_t i = 0; i < s.here.size(); ++i) here_.emplace(s.numbers.at(i), std::move(s.here[i]));
  }

 private:
  static std::int64_t oldest_of(const std::vector<sample>& answers) {
    std::int64_t oldest = versions_of(answers.front()).first;
    for (const sample& s : answers) oldest = (std::min)(oldest, versions_of(s).first);
    return oldest;
  }
  // f(id) for the groups of the next batch that are here.
  template <class F>
  void each_of_batch(F&& f) const {
    std::int64_t left = groups_;
    if (!how_.overtakes()) {
      std::int64_t id = next_;
      for (auto at = here_.begin(); at != here_.end() && at->first == id && left > 0; ++at, ++id)
        if (!at->second.empty()) f(id), --left;
      return;
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> all;  // oldest version, id
    for (const auto& [id, answers] : here_) all.emplace_back(oldest_of(answers), id);
    std::sort(all.begin(), all.end());
    for (const auto& [version, id] : all)
      if (left-- > 0) f(id);
  }

  flow how_;
  std::int64_t groups_, next_ = 0, came_ = 0, used_ = 0, given_up_ = 0, fresh_from_ = 0;
  std::vector<bool> seen_;
  std::map<std::int64_t, std::vector<sample>> here_;  // without answers: given up
};

}  // namespace heddle::inline v0::rl
