// heddle/plan/atomization/broker.hpp: announces windows to jobs, collects their offers, grants pieces, takes reports.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/plan/atomization/protocol.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan::sja {

namespace detail {
template <class P>
inline constexpr bool broker_accepts = false;
template <policy P>
inline constexpr bool broker_accepts<P> = contains<typename P::kind, score_kind, clearing_kind>;

// Stops at the first mistake, so that one mistake gives one error.
template <class... Ps>
constexpr bool broker_policies_checked() {
  if constexpr (!(broker_accepts<Ps> && ...)) {
    static_assert((broker_accepts<Ps> && ...),
                  "heddle: broker<...> takes a score (weighted, response_ratio) and a clearing (one_winner, "
                  "interval_clearing)");
    return false;
  } else {
    static_assert(((policies_of_kind<typename Ps::kind, Ps...> == 1) && ...),
                  "heddle: broker<...> got two policies of one kind; keep one of them");
    return ((policies_of_kind<typename Ps::kind, Ps...> == 1) && ...);
  }
}
template <class Kind, class Default, class... Ps>
constexpr auto broker_policy() {
  if constexpr (broker_policies_checked<Ps...>())
    return std::type_identity<select_policy<Kind, Default, Ps...>>{};
  else
    return std::type_identity<Default>{};
}
template <class Job>
struct is_atomizable {
  static constexpr bool value = atomizable_job<Job>;
};
}  // namespace detail

/// The scheduler's side of the protocol. Per window: one announcement, a bid of each job, then grants or a withdrawal,
/// and a report for each piece. A job whose state has moved on since it answered declines, and the window is
/// cleared again without it. Policies in any order: a score (`weighted`), a clearing (`one_winner`,
/// `interval_clearing`). Windows that are open at once may share slices (a gang's and those of its parts): the first
/// that is granted withdraws the others. Safety is the jobs' side.
/// Source: Konopa, Fesl, Beranek, arXiv 2509.19086; clearing several pieces at once as in arXiv 2510.14599.
template <class... Policies>
class broker {
 public:
  static constexpr bool is_valid = detail::broker_policies_checked<Policies...>();
  using score = typename decltype(detail::broker_policy<score_kind, weighted, Policies...>())::type;
  using clearing = typename decltype(detail::broker_policy<clearing_kind, one_winner, Policies...>())::type;

  explicit broker(Policies... policies) {
    if constexpr (is_valid) (set(std::move(policies)), ...);
  }

  /// Announces windows to jobs, collects the bids of all of them, then clears window by window. Returns the pieces in
  /// the order they were granted; whoever runs them calls `close`. `jobs`: a range of jobs or of pointers to them.
  template <class Jobs>
  std::vector<subjob> open(std::span<const window> windows, Jobs&& jobs, double now) {
    using job_type = std::remove_cvref_t<decltype(as_job(*std::begin(jobs)))>;
    static_assert(detail::is_atomizable<job_type>::value,
                  "heddle: a job has id(), offers(window, most), materialize(window, offer) and report(usage); see "
                  "atomizable_job");
    std::vector<subjob> granted;
    if constexpr (atomizable_job<job_type>) {
      std::vector<int> ids;
      for (window w : windows) {
        w.announced = now;
        ids.push_back(announce(std::move(w)));
      }
      for (const int id : ids)
        for (auto&& job : jobs)
          bid_for(id, as_job(job).id(), as_job(job).offers(at(id).what, clearing::pieces_offered), now);
      for (const int id : ids)
        for (subjob& s : clear(id, jobs, now)) granted.push_back(std::move(s));
    }
    return granted;
  }

  /// One by one: an announcement is open to bids until it is cleared, or until `reply_by`. Returns the window's number.
  /// A window that is over before it begins gets no pieces. Errors: `config_error` for one whose times are no numbers,
  /// or that has a slice twice.
  int announce(window w, double reply_by = std::numeric_limits<double>::infinity()) {
    w.id = static_cast<int>(books_.size());
    check(w);
    books_.push_back({std::move(w), reply_by, {}, {}, state::open});
    const window& what = books_.back().what;
    if (keeps_log_) log_.push_back({what.announced, announcement{what, reply_by}});
    return what.id;
  }
  /// What a job answers; no offers: it is not interested. False: too late, the bid does not count.
  /// Errors: `config_error` for a second bid, offers of another job or of pieces outside of the window.
  bool bid_for(int id, int job, std::vector<offer> offers, double now) {
    book& b = at(id);
    if (b.is != state::open || now > b.reply_by) return false;
    if (std::find(b.bidders.begin(), b.bidders.end(), job) != b.bidders.end()) refuse(b.what, job, "bids again");
    for (const offer& o : offers) {
      if (o.job != job) refuse(b.what, job, "offers a piece of another job");
      if (!(o.start >= b.what.start && o.start <= o.end && o.end <= b.what.end))
        refuse(b.what, job, "offers a piece outside of it");
      if (o.units < 1 || o.first < 0) refuse(b.what, job, "offers a piece without units");
    }
    b.bidders.push_back(job);
    b.offers.insert(b.offers.end(), offers.begin(), offers.end());
    if (keeps_log_) log_.push_back({now, bid{id, job, std::move(offers)}});
    return true;
  }
  /// Chooses among the offers and lets the winners make their pieces. Errors: `config_error` for a window that was
  /// cleared before, or a job that makes another piece than it offered. When a job throws, it counts as one that declines;
  /// the pieces that others have made are in `running()`.
  template <class Jobs>
  std::vector<subjob> clear(int id, Jobs&& jobs, double now) {
    book& b = at(id);
    if (b.is != state::open) throw config_error("heddle: window " + std::to_string(id) + " has been cleared before");
    b.is = state::closed;
    std::vector<subjob> pieces;
    const auto settle = [&] {
      if (pieces.empty()) tell(now, withdrawal{id});
      b.offers = {};
      b.bidders = {};
      running_.insert(running_.end(), pieces.begin(), pieces.end());
    };
    try {
      if (!is_taken(b.what)) make_pieces(b, pieces, jobs, now);
    } catch (...) {
      settle();
      throw;
    }
    settle();
    return pieces;
  }

  /// A piece has ended: the job learns, the slices are free. `now` may be before the piece's granted end.
  /// Errors: `config_error` for a piece that does not run.
  template <class Job>
  void close(Job& job, const usage& u, double now) {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const subjob& s) { return s.window == u.window && s.job == u.job; });
    if (found == running_.end())
      throw config_error("heddle: job " + std::to_string(u.job) + " has no piece in window " +
                         std::to_string(u.window));
    job.report(u);
    running_.erase(found);
    tell(now, report{u});
  }

  /// Pieces that were granted and have not reported.
  std::span<const subjob> running() const noexcept { return running_; }
  /// All messages so far, in order; `keep_log(false)` stops writing them down.
  std::span<const message> log() const noexcept { return log_; }
  void keep_log(bool keep) noexcept { keeps_log_ = keep; }
  const window& announced(int id) const { return at(id).what; }
  int windows() const noexcept { return static_cast<int>(books_.size()); }

 private:
  enum class state : std::uint8_t { open, closed };
  struct book {
    window what;
    double reply_by = 0;
    std::vector<offer> offers;
    std::vector<int> bidders;
    state is = state::open;
  };

  void set(score s) { score_ = std::move(s); }
  void set(clearing c) { clearing_ = std::move(c); }
  const book& at(int id) const {
    if (id < 0 || id >= windows())
      throw config_error("heddle: window " + std::to_string(id) + " has not been announced");
    return books_[static_cast<std::size_t>(id)];
  }
  book& at(int id) { return const_cast<book&>(std::as_const(*this).at(id)); }
  [[noreturn]] static void refuse(const window& w, int job, const char* what) {
    std::string text = "heddle: job ";
    text += std::to_string(job);
    text += ' ';
    text += what;
    text += ", for window ";
    text += std::to_string(w.id);
    throw config_error(text);
  }
  static void check(const window& w) {
    if (std::isnan(w.start) || std::isnan(w.end) || std::isnan(w.bytes))
      throw config_error("heddle: window " + std::to_string(w.id) + " is from " + std::to_string(w.start) + " s to " +
                         std::to_string(w.end) + " s, of " + std::to_string(w.bytes) + " bytes; give numbers");
    for (auto slice = w.slices.begin(); slice != w.slices.end(); ++slice)
      if (std::find(w.slices.begin(), slice, *slice) != slice)
        throw config_error("heddle: window " + std::to_string(w.id) + " has slice " + std::to_string(*slice) +
                           " twice");
  }
  template <class Job>
  static auto& as_job(Job& job) {
    if constexpr (requires { *job; })
      return *job;
    else
      return job;
  }

  template <class Message>
  void tell(double now, const Message& m) {
    if (keeps_log_) log_.push_back({now, m});
  }
  // Whether a running piece has one of the slices at that time.
  bool is_taken(const window& w) const {
    for (const subjob& s : running_) {
      if (s.end <= w.start || s.start >= w.end) continue;
      for (const int slice : w.slices)
        if (std::find(s.slices.begin(), s.slices.end(), slice) != s.slices.end()) return true;
    }
    return false;
  }

  template <class Jobs>
  void make_pieces(book& b, std::vector<subjob>& made, Jobs& jobs, double now) {
    double longest = 0;
    for (const offer& o : b.offers) longest = (std::max)(longest, o.waiting);
    for (offer& o : b.offers) o.score = score_(o, b.what, longest);
    // Once around, and again after each job that declined.
    while (const auto declined = grant_chosen(b, made, jobs, now))
      std::erase_if(b.offers,
                    [&](const offer& o) { return o.job == *declined || (!is_made(made, o) && collides(made, o)); });
  }
  // Returns the first job that declines.
  template <class Jobs>
  std::optional<int> grant_chosen(book& b, std::vector<subjob>& made, Jobs& jobs, double now) {
    for (const std::size_t i : clearing_(std::span<const offer>(b.offers))) {
      const offer& o = b.offers[i];
      if (collides(made, o)) continue;
      for (auto&& candidate : jobs) {
        auto& job = as_job(candidate);
        if (job.id() != o.job) continue;
        tell(now, grant{b.what.id, o});
        std::optional<subjob> s;
        try {
          s = job.materialize(b.what, o);
        } catch (...) {
          tell(now, decline{b.what.id, o.job});
          throw;
        }
        if (!s) {
          tell(now, decline{b.what.id, o.job});
          return o.job;
        }
        if (s->job != o.job || s->window != b.what.id || s->start < o.start || s->end > o.end || s->units > o.units)
          throw config_error("heddle: job " + std::to_string(o.job) + " made another piece than it offered for window " +
                             std::to_string(b.what.id));
        made.push_back(std::move(*s));
        break;
      }
    }
    return std::nullopt;
  }
  static bool is_made(const std::vector<subjob>& made, const offer& o) {
    for (const subjob& s : made)
      if (s.job == o.job && s.start == o.start && s.end == o.end) return true;
    return false;
  }
  static bool collides(const std::vector<subjob>& made, const offer& o) {
    for (const subjob& s : made)
      if (s.job == o.job || (o.start < s.end && s.start < o.end)) return true;
    return false;
  }

  score score_{};
  clearing clearing_{};
  std::vector<book> books_;
  std::vector<subjob> running_;
  std::vector<message> log_;
  bool keeps_log_ = true;
};
template <class... Policies>
broker(Policies...) -> broker<Policies...>;

}  // namespace heddle::inline v0::plan::sja
