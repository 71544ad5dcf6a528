// heddle/plan/atomization/broker.hpp: a broker of windows: announces, collects, grants.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/ledger.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/plan/atomization/protocol.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::plan::sja {

namespace detail {
struct broker_policies : policy_set<broker_policies, score_kind, clearing_kind> {
  template <class P>
  static constexpr void refuse_unknown() {
    static_assert(takes<P>,
                  "heddle: broker<...> takes a score (weighted, response_ratio) and a clearing (one_winner, "
                  "interval_clearing)");
  }
  template <class... Ps>
  static constexpr void refuse_doubled() {
    static_assert((only_policy_of_its_kind<Ps, Ps...> && ...),
                  "heddle: broker<...> got two policies of one kind; keep one of them");
  }
};
template <class... Ps>
struct chosen_by_broker {
  using score = select_policy<score_kind, response_ratio, Ps...>;
  using clearing = select_policy<clearing_kind, one_winner, Ps...>;
  static constexpr bool fits() { return true; }
};
template <class Job>
inline constexpr bool is_atomizable = atomizable_job<Job>;
}  // namespace detail

/// The scheduler's side of the protocol. Per window: one announcement, a bid of each job, then grants or a withdrawal,
/// and a report for each piece. A job whose state has moved on since it answered declines, and the window is
/// cleared again without it. Policies in any order: a score (`response_ratio`, which is the default, or `weighted`), a
/// clearing (`one_winner`, `interval_clearing`). Windows that are open at once may share slices (a gang's and those of its
/// parts): the first that is granted withdraws the others. Safety is the jobs' side.
///
/// A broker does not believe its jobs: what an offer says of waiting, urgency and trust is replaced by the broker's own
/// record (`job_record`), which follows from what pieces brought; offers whose numbers cannot be, and pieces that are not
/// what was granted, are refused, counted, and never win. It believes whoever runs it: the jobs given to `open` are those
/// that the cluster let in, `id()` is the number under which it did, and `close` gets what the cluster measured.
///
/// A job that throws harms nobody else: out of `offers` it has made no bid, out of `materialize` it has declined and the
/// window goes to the next. Both are refused, counted and told with the exception's text. What anything else throws (a
/// policy, `id()`, a window that cannot be) leaves `open` and `clear`; no window that `open` announced stays open behind it,
/// and pieces that were made by then are in `running()`.
///
/// Its books are bounded: `ledger::most` jobs, `closed_windows` windows that are closed, `log_limit` messages. Windows that
/// were announced one by one are kept until they are cleared.
/// Source: Konopa, Fesl, Beranek, arXiv 2509.19086; clearing several pieces at once as in arXiv 2510.14599.
template <class... Policies>
class broker {
  using chosen = typename decltype(detail::broker_policies::choose<detail::chosen_by_broker<Policies...>,
                                                                   detail::chosen_by_broker<>, Policies...>())::type;

 public:
  static constexpr bool is_valid = detail::broker_policies::accepts<Policies...>();
  using score = typename chosen::score;
  using clearing = typename chosen::clearing;

  static constexpr std::size_t closed_windows = 1024;  ///< the last that are remembered
  static constexpr std::size_t log_limit = 1 << 16;    ///< messages, unless `keep_log` says otherwise
  static constexpr std::size_t exception_text = 200;   ///< characters of it that a refusal keeps

  explicit broker(Policies... policies) {
    if constexpr (is_valid) (set(std::move(policies)), ...);
  }

  /// Announces windows to jobs, collects the bids of all of them, then clears window by window. Returns the pieces in
  /// the order they were granted; whoever runs them calls `close`. `jobs`: a range of jobs or of pointers to them.
  /// Errors: those of `announce`. Behind an exception all these windows are closed; see above.
  template <class Jobs>
  std::vector<subjob> open(std::span<const window> windows, Jobs&& jobs, double now) {
    using job_type = std::remove_cvref_t<decltype(as_job(*std::begin(jobs)))>;
    static_assert(detail::is_atomizable<job_type>,
                  "heddle: a job has id(), offers(window, most), materialize(window, offer) and report(usage); see "
                  "atomizable_job");
    std::vector<subjob> granted;
    if constexpr (atomizable_job<job_type>) {
      const int first = announced_;
      try {
        for (window w : windows) {
          w.announced = now;
          announce(std::move(w));
        }
        const int end = announced_;
        for (int id = first; id < end; ++id)
          for (auto&& job : jobs) ask(id, as_job(job), now);
        for (int id = first; id < end; ++id)
          for (subjob& s : clear(id, jobs, now)) granted.push_back(std::move(s));
      } catch (...) {
        withdraw_from(first, now);
        throw;
      }
    }
    return granted;
  }

  /// What the cluster knows of a job. Once a job has been admitted, only admitted ones may bid, and those that did before;
  /// until then any may, without a deadline, and waits from its first bid on. Errors: `config_error` for one that is in, and for times that are none.
  void admit(int job, const admission& a) { jobs_.admit(job, a); }
  /// A job has ended: its record is dropped, and it may not bid unless it is admitted again.
  /// Errors: `config_error` if a piece of it runs.
  void retire(int job) { jobs_.retire(job); }
  /// Pieces of less than so many seconds are refused: a job that offers nothing else cannot keep a broker busy.
  /// Errors: `config_error` for less than a microsecond, which is what holds if nothing is said.
  void shortest_piece(double seconds) {
    if (!(seconds >= 1e-6) || !std::isfinite(seconds))
      throw config_error("heddle: the shortest piece must take a microsecond or more, got " + number_text(seconds) +
                         " s");
    shortest_ = seconds;
  }
  /// The record of a job; null if there is none.
  const job_record* record(int job) const noexcept { return jobs_.find(job); }

  /// One by one: an announcement is open to bids until it is cleared, or until `reply_by`. Returns the window's number.
  /// A window that is over before it begins gets no pieces. Errors: `config_error` for one whose times are no numbers,
  /// or that has no slice, or one twice.
  int announce(window w, double reply_by = std::numeric_limits<double>::infinity()) {
    w.id = announced_;
    check(w);
    const int id = announced_++;
    const window& what = books_.emplace(id, book{std::move(w), reply_by, {}, {}, state::open}).first->second.what;
    tell(what.announced, announcement{what, reply_by});
    return id;
  }
  /// What a job answers; no offers: it is not interested. False: the bid does not count, because it is late, the second
  /// of its job, or of a job that was not admitted. Offers with numbers that cannot be (`fault_in`), of another job, or
  /// beyond `pieces_offered` of the clearing are refused, the others count. Errors: `config_error` for a window that was
  /// not announced.
  bool bid_for(int id, int job, std::vector<offer> offers, double now) {
    book& b = at(id);
    if (b.is != state::open || now > b.reply_by) return false;
    job_record* const known = jobs_.find_or_add(job, b.what.announced);
    if (!known) {
      refuse(b.what, job, jobs_.admits_all() ? "finds no room in the books" : "was not admitted", now);
      return false;
    }
    known->hear(now);
    if (std::find(b.bidders.begin(), b.bidders.end(), job) != b.bidders.end()) {
      refuse(b.what, job, "bids again", now);
      return false;
    }
    std::size_t taken = 0;
    for (std::size_t i = 0; i < offers.size(); ++i) {
      const char* fault =
          offers[i].job != job ? "offers a piece of another job" : fault_in(offers[i], b.what, shortest_);
      if (i >= static_cast<std::size_t>(clearing::pieces_offered)) fault = "offers more pieces than were asked for";
      if (fault)
        refuse(b.what, job, fault, now);
      else
        offers[taken++] = offers[i];
    }
    offers.resize(taken);
    b.bidders.push_back(job);
    for (const offer& o : offers) b.bids.push_back({o, known->progress()});
    tell(now, bid{id, job, std::move(offers)});
    return true;
  }
  /// Chooses among the offers and lets the winners make their pieces. A job that makes another piece than it was granted
  /// (other slices, units or times) has declined, and is believed less. Errors: `config_error` for a window that was
  /// cleared before.
  template <class Jobs>
  std::vector<subjob> clear(int id, Jobs&& jobs, double now) {
    book& b = at(id);
    if (b.is != state::open) throw config_error("heddle: window " + std::to_string(id) + " has been cleared before");
    b.is = state::closed;
    std::vector<subjob> pieces;
    std::vector<promise> held_to;
    try {
      if (!is_taken(b.what)) make_pieces(b, pieces, held_to, jobs, now);
    } catch (...) {
      close_window(b, pieces, held_to, now);
      throw;
    }
    close_window(b, pieces, held_to, now);
    return pieces;
  }

  /// A piece has ended: the slices are free, its record follows from what it brought, the job learns. `now` may be before
  /// the piece's granted end; what comes after that end counts nothing. `u` is what the cluster measured.
  /// Errors: `config_error` for a piece that does not run, more units than it was granted, or numbers that cannot be: the
  /// piece still runs then.
  template <class Job>
  void close(Job& job, const usage& u, double now) {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const subjob& s) { return s.window == u.window && s.job == u.job; });
    if (found == running_.end())
      throw config_error("heddle: job " + std::to_string(u.job) + " has no piece in window " +
                         std::to_string(u.window));
    if (!(u.seconds >= 0 && u.bytes >= 0) || !std::isfinite(u.seconds + u.bytes + u.set_up + u.finish) ||
        !std::isfinite(now) || u.units < 0 || u.units > found->units)
      throw config_error("heddle: job " + std::to_string(u.job) + " reports " + std::to_string(u.units) + " of " +
                         std::to_string(found->units) + " units, " + number_text(u.seconds) + " s and " +
                         std::to_string(u.bytes) + " bytes for its piece in window " + std::to_string(u.window) +
                         " at " + number_text(now) + " s, which cannot be");
    const auto place = promised_.begin() + (found - running_.begin());
    if (job_record* const known = jobs_.find(u.job)) known->ended(*place, u, now);
    promised_.erase(place);
    running_.erase(found);
    tell(now, report{u});
    job.report(u);
  }

  /// Pieces that were granted and have not reported.
  std::span<const subjob> running() const noexcept { return running_; }
  /// The messages so far, in order; `keep_log(false)` stops writing them down. When there are `most` of them, the older
  /// half is dropped: to check a longer run with `broken_rule`, ask for more.
  std::span<const message> log() const noexcept { return log_; }
  void keep_log(bool keep, std::size_t most = log_limit) noexcept {
    keeps_log_ = keep;
    log_most_ = (std::max)(most, std::size_t{2});
  }
  /// How many jobs have a record.
  std::size_t records() const noexcept { return jobs_.size(); }
  /// Bids, offers and pieces that did not count, and exceptions, of all jobs, and the last of them.
  std::int64_t refusals() const noexcept { return refusals_; }
  const refusal& last_refusal() const noexcept { return last_refusal_; }
  /// A window that is open, or among the last that were closed.
  const window& announced(int id) const { return at(id).what; }
  /// How many have been announced.
  int windows() const noexcept { return announced_; }

 private:
  enum class state : std::uint8_t { open, closed };
  struct told {
    offer said;
    double progress = 0;  // of the job, when it said so
  };
  struct book {
    window what;
    double reply_by = 0;
    std::vector<told> bids;
    std::vector<int> bidders;
    state is = state::open;
    std::vector<offer> offers{};  // what the broker believes of each
  };

  void set(score s) { score_ = std::move(s); }
  void set(clearing c) { clearing_ = std::move(c); }
  const book& at(int id) const {
    if (id < 0 || id >= announced_)
      throw config_error("heddle: window " + std::to_string(id) + " has not been announced");
    const auto found = books_.find(id);
    if (found == books_.end())
      throw config_error("heddle: window " + std::to_string(id) + " has been forgotten: a broker remembers the last " +
                         std::to_string(closed_windows) + " that were closed");
    return found->second;
  }
  book& at(int id) { return const_cast<book&>(std::as_const(*this).at(id)); }
  void refuse(const window& w, int job, std::string why, double now) {
    ++refusals_;
    last_refusal_ = {w.id, job, std::move(why)};
    tell(now, last_refusal_);
  }
  // To be called where an exception of a job is caught. Not more of its text than the log has room for.
  void refuse_thrown(const window& w, int job, const char* where, double now) {
    std::string why = std::string("throws in ") + where + ": ";
    try {
      throw;
    } catch (const std::exception& e) {
      why += std::string_view(e.what()).substr(0, exception_text);
    } catch (...) {
      why += "no std::exception";
    }
    refuse(w, job, std::move(why), now);
  }
  template <class Job>
  void ask(int id, const Job& job, double now) {
    const int number = job.id();
    std::vector<offer> offers;
    try {
      offers = job.offers(at(id).what, clearing::pieces_offered);
    } catch (...) {
      refuse_thrown(at(id).what, number, "offers", now);
      return;
    }
    bid_for(id, number, std::move(offers), now);
  }
  // A window that gets no more pieces. It may be forgotten at once, and `b` with it.
  void close_window(book& b, const std::vector<subjob>& pieces, const std::vector<promise>& held_to, double now) {
    const int id = b.what.id;
    b.is = state::closed;
    b.offers = {};
    b.bids = {};
    b.bidders = {};
    if (pieces.empty()) tell(now, withdrawal{id});
    running_.insert(running_.end(), pieces.begin(), pieces.end());
    promised_.insert(promised_.end(), held_to.begin(), held_to.end());
    closed_.push_back(id);
    if (closed_.size() <= closed_windows) return;
    books_.erase(closed_.front());
    closed_.pop_front();
  }
  // All that are open, from this one on, are nobody's.
  void withdraw_from(int first, double now) {
    for (int id = first; id < announced_; ++id)
      if (const auto found = books_.find(id); found != books_.end() && found->second.is == state::open)
        close_window(found->second, {}, {}, now);
  }
  static void check(const window& w) {
    if (std::isnan(w.start) || std::isnan(w.end) || std::isnan(w.bytes))
      throw config_error("heddle: window " + std::to_string(w.id) + " is from " + std::to_string(w.start) + " s to " +
                         std::to_string(w.end) + " s, of " + std::to_string(w.bytes) + " bytes; give numbers");
    if (w.slices.empty()) throw config_error("heddle: window " + std::to_string(w.id) + " has no slice");
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
    if (!keeps_log_) return;
    if (log_.size() >= log_most_) log_.erase(log_.begin(), log_.end() - static_cast<std::ptrdiff_t>(log_most_ / 2));
    log_.push_back({now, m});
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
  void make_pieces(book& b, std::vector<subjob>& made, std::vector<promise>& held_to, Jobs& jobs, double now) {
    believe(b, now);
    // Once around, and again after each job that declined.
    while (const auto declined = grant_chosen(b, made, held_to, jobs, now))
      keep(b, [&](const offer& o) { return o.job != *declined && (is_made(made, o) || !collides(made, o)); });
  }
  // Scores the offers by the broker's own records. An offer without a score that is a number is refused.
  void believe(book& b, double now) {
    double longest = 0, untold = 0;  // a job that does not tell its rest counts as the longest of those that do
    for (const told& t : b.bids) untold = (std::max)(untold, t.said.rest);
    for (const told& t : b.bids) {
      offer& o = b.offers.emplace_back(t.said);
      const job_record* const known = jobs_.find_or_add(o.job, b.what.announced);
      o.score = known ? 0 : -1;  // it was retired behind its bid
      if (known) known->believe(o, b.what.announced, t.progress, untold);
    }
    keep(b, [&](const offer& o) {
      if (o.score < 0) refuse(b.what, o.job, "was retired, or there is no room in the books", now);
      return o.score >= 0;
    });
    for (const offer& o : b.offers) longest = (std::max)(longest, o.waiting);
    for (offer& o : b.offers) o.score = score_(o, b.what, longest);
    keep(b, [&](const offer& o) {
      if (std::isfinite(o.score) && std::isfinite(o.weight())) return true;
      refuse(b.what, o.job, "offers a piece whose score is no number", now);
      return false;
    });
  }
  template <class Stays>
  static void keep(book& b, Stays&& stays) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < b.offers.size(); ++i) {
      if (!stays(std::as_const(b.offers[i]))) continue;
      b.offers[kept] = b.offers[i];
      b.bids[kept++] = b.bids[i];
    }
    b.offers.resize(kept);
    b.bids.resize(kept);
  }
  // Returns the first job that declines.
  template <class Jobs>
  std::optional<int> grant_chosen(book& b, std::vector<subjob>& made, std::vector<promise>& held_to, Jobs& jobs,
                                  double now) {
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
          refuse_thrown(b.what, o.job, "materialize", now);
          return o.job;
        }
        if (!s) {
          tell(now, decline{b.what.id, o.job});
          return o.job;
        }
        job_record* const known = jobs_.find(o.job);
        if (!is_granted(*s, b.what, o)) {
          tell(now, decline{b.what.id, o.job});
          refuse(b.what, o.job, "made another piece than it was granted", now);
          if (known) known->broke_off(now);
          return o.job;
        }
        // Other pieces of a parallel job may have taken the units that it offered.
        const bool fewer = s->units < o.units && has_others(o.job, made);
        const double part = fewer ? static_cast<double>(s->units) / static_cast<double>(o.units) : 1;
        const promise p{o.start,     o.end, o.useful * part, fewer ? s->units : o.units, b.bids[i].said.bytes,
                        b.what.bytes};
        if (known) known->granted(p, b.bids[i].said.rest, b.bids[i].progress);
        held_to.push_back(p);
        made.push_back(std::move(*s));
        break;
      }
    }
    return std::nullopt;
  }
  // Whether a piece is the one that was granted. Where other pieces of a (parallel) job run, its units may be others.
  bool is_granted(const subjob& s, const window& w, const offer& o) const {
    if (s.job != o.job || s.window != w.id || s.slices != w.slices) return false;
    if (!(s.start >= o.start && s.start <= s.end && s.end <= o.end)) return false;
    if (s.units < 1 || s.units > o.units || s.first < 0) return false;
    if (s.first > (std::numeric_limits<std::int64_t>::max)() - s.units) return false;
    bool others = false;
    for (const subjob& r : running_) {
      if (r.job != s.job) continue;
      if (s.first < r.first + r.units && r.first < s.first + s.units) return false;
      others = true;
    }
    return others || s.first == o.first;
  }
  bool has_others(int job, const std::vector<subjob>& made) const {
    const auto is_its = [&](const subjob& s) { return s.job == job; };
    return std::any_of(running_.begin(), running_.end(), is_its) || std::any_of(made.begin(), made.end(), is_its);
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
  ledger jobs_;
  double shortest_ = 1e-6;
  std::map<int, book> books_;
  std::deque<int> closed_;  // the windows that are, oldest first
  int announced_ = 0;
  std::vector<subjob> running_;
  std::vector<promise> promised_;  // of each
  std::vector<message> log_;
  std::size_t log_most_ = log_limit;
  bool keeps_log_ = true;
  std::int64_t refusals_ = 0;
  refusal last_refusal_;
};
template <class... Policies>
broker(Policies...) -> broker<Policies...>;

}  // namespace heddle::inline v0::plan::sja
