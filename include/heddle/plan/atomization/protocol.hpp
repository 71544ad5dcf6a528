// heddle/plan/atomization/protocol.hpp: messages of broker and jobs, and their rules.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/plan/atomization/calibration.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// Broker to all jobs: free time. Units: seconds.
struct announcement {
  window what;
  double reply_by = std::numeric_limits<double>::infinity();  ///< bids that come later do not count
};
/// Job to broker: the pieces it could make. None: it is not interested. Nothing is made yet.
struct bid {
  int window = -1;
  int job = -1;
  std::vector<offer> offers{};
};
/// Broker to the job that made the offer, whose epoch goes with it: the job makes the piece, or declines.
struct grant {
  int window = -1;
  offer chosen{};
};
/// Job to broker: it has moved on since it made its bid.
struct decline {
  int window = -1;
  int job = -1;
};
/// Broker to all jobs: nobody got the window.
struct withdrawal {
  int window = -1;
};
/// Job to broker: a piece has ended.
struct report {
  usage what;
};
/// Broker to one job: a bid, an offer or a piece does not count, or the job threw an exception, and why.
struct refusal {
  int window = -1;
  int job = -1;
  std::string why{};
};

/// A message of the protocol and when it was sent.
struct message {
  double at = 0;
  std::variant<announcement, bid, grant, decline, withdrawal, report, refusal> what;

  int window() const noexcept {
    struct number {
      int operator()(const announcement& a) const noexcept { return a.what.id; }
      int operator()(const report& r) const noexcept { return r.what.window; }
      int operator()(const bid& b) const noexcept { return b.window; }
      int operator()(const grant& g) const noexcept { return g.window; }
      int operator()(const decline& d) const noexcept { return d.window; }
      int operator()(const withdrawal& w) const noexcept { return w.window; }
      int operator()(const refusal& r) const noexcept { return r.window; }
    };
    return std::visit(number{}, what);
  }
  /// -1: it is about all jobs.
  int job() const noexcept {
    if (const auto* b = std::get_if<bid>(&what)) return b->job;
    if (const auto* g = std::get_if<grant>(&what)) return g->chosen.job;
    if (const auto* d = std::get_if<decline>(&what)) return d->job;
    if (const auto* r = std::get_if<report>(&what)) return r->what.job;
    if (const auto* r = std::get_if<refusal>(&what)) return r->job;
    return -1;
  }
  template <class M>
  bool is() const noexcept {
    return std::holds_alternative<M>(what);
  }
};

/// How many messages of a window there are: 1 announcement, as many bids as jobs, 1 grant for each piece and each decline,
/// or 1 withdrawal, 1 report for each piece; a refusal for each offer that did not count and each exception of a job, which
/// then has no bid, or declines.
struct message_counts {
  int announcements = 0, bids = 0, grants = 0, declines = 0, withdrawals = 0, reports = 0, refusals = 0;
};
/// The messages of one window in a log, by their kind.
inline message_counts count_messages(std::span<const message> log, int window) {
  message_counts n;
  for (const message& m : log) {
    if (m.window() != window) continue;
    n.announcements += m.is<announcement>();
    n.bids += m.is<bid>();
    n.grants += m.is<grant>();
    n.declines += m.is<decline>();
    n.withdrawals += m.is<withdrawal>();
    n.reports += m.is<report>();
    n.refusals += m.is<refusal>();
  }
  return n;
}

namespace detail {

// Follows a log message by message.
template <class IsParallel>
class protocol_check {
 public:
  explicit protocol_check(const IsParallel& is_parallel) : is_parallel_(is_parallel) {}

  // What is wrong with the next message, if `then` comes behind it (null: none); null: nothing.
  const char* next(const message& m, const message* then) {
    if (const auto* a = std::get_if<announcement>(&m.what))
      return windows_.try_emplace(m.window(), state{.told = a}).second ? nullptr : "announced twice";
    const auto found = windows_.find(m.window());
    if (found == windows_.end()) return "a message before the announcement";
    state& w = found->second;
    if (m.is<refusal>()) return nullptr;
    if (const auto* b = std::get_if<bid>(&m.what)) return take(w, *b, m.at);
    if (const auto* g = std::get_if<grant>(&m.what))
      return take(w, *g, then && then->is<decline>() && then->window() == g->window && then->job() == m.job());
    const auto live =
        std::find_if(w.pieces.begin(), w.pieces.end(), [&](const piece& p) { return p.job == m.job() && !p.reported; });
    if (m.is<decline>()) {
      if (live == w.pieces.end()) return "a decline without a grant";
      w.pieces.erase(live);
      w.declined.push_back(m.job());
    } else if (m.is<report>()) {
      if (live == w.pieces.end()) return "a report without a piece";
      live->reported = true;
      live->end = (std::min)(live->end, m.at);
    } else {
      if (w.withdrawn) return "withdrawn twice";
      if (!w.pieces.empty()) return "withdrawn after a grant";
      w.cleared = w.withdrawn = true;
    }
    return nullptr;
  }
  // What is open for a window when the log is over, and for which.
  const char* open(int& window) const {
    for (const auto& [number, w] : windows_) {
      window = number;
      if (w.pieces.empty() && !w.withdrawn) return "neither granted nor withdrawn";
      for (const piece& p : w.pieces)
        if (!p.reported) return "a piece that never reported";
    }
    return nullptr;
  }

 private:
  struct piece {
    int job = -1;
    double start = 0, end = 0;  // the end moves forward when it reports
    bool reported = false;
  };
  struct state {
    const announcement* told = nullptr;
    bool cleared = false, withdrawn = false;
    std::map<int, const bid*> bids{};
    std::vector<int> declined{};
    std::vector<piece> pieces{};
  };

  const char* take(state& w, const bid& b, double at) {
    if (w.cleared) return "a bid after the window was cleared";
    if (at > w.told->reply_by) return "a bid after the time for bids";
    return w.bids.emplace(b.job, &b).second ? nullptr : "a second bid";
  }
  const char* take(state& w, const grant& g, bool is_declined) {
    w.cleared = true;
    const offer& o = g.chosen;
    if (w.withdrawn) return "a grant after the withdrawal";
    const auto from = w.bids.find(o.job);
    if (from == w.bids.end() || from->second->offers.empty()) return "a grant to a job that was not interested";
    if (std::find(w.declined.begin(), w.declined.end(), o.job) != w.declined.end())
      return "a grant to a job that has declined";
    const auto same = [&](const offer& x) {
      return x.epoch == o.epoch && x.first == o.first && x.units == o.units && x.start == o.start && x.end == o.end;
    };
    if (std::none_of(from->second->offers.begin(), from->second->offers.end(), same))
      return "a grant of what was not offered";
    const window& here = w.told->what;
    if (o.start < here.start || o.end > here.end || o.start > o.end) return "a piece outside of the window";
    for (const auto& [number, other] : windows_)
      for (const piece& p : other.pieces) {
        if (is_declined) break;
        if (o.start >= p.end || p.start >= o.end) continue;
        if (p.job == o.job && !is_parallel_(o.job)) return "two live pieces of one job";
        for (const int slice : other.told->what.slices)
          if (std::find(here.slices.begin(), here.slices.end(), slice) != here.slices.end())
            return "two pieces on one slice at the same time";
      }
    w.pieces.push_back({o.job, o.start, o.end, false});
    return nullptr;
  }

  const IsParallel& is_parallel_;
  std::map<int, state> windows_;
};

}  // namespace detail

/// Whether a log of messages keeps the rules of the protocol: every window is announced first, gets at most one bid of
/// each job, in time, and ends granted or withdrawn, never both; what is granted was offered, with the epoch it had, lies
/// in its window, and is declined at once or reports once; a job declines once; no two pieces overlap on a slice, and none
/// of one job overlap unless `is_parallel(job)`. Returns the first rule that is broken in words, or nothing. `ended`: the
/// run is over, so that nothing may be open.
template <class IsParallel>
std::string broken_rule(std::span<const message> log, const IsParallel& is_parallel, bool ended = true) {
  const auto says = [](int window, int job, const char* what) {
    return text_of({"window ", window, ", job ", job, ": ", what});
  };
  detail::protocol_check<IsParallel> check(is_parallel);
  for (std::size_t i = 0; i < log.size(); ++i)
    if (const char* wrong = check.next(log[i], i + 1 < log.size() ? &log[i + 1] : nullptr))
      return says(log[i].window(), log[i].job(), wrong);
  int window = -1;
  if (const char* wrong = ended ? check.open(window) : nullptr) return says(window, -1, wrong);
  return {};
}
/// The same where no job is parallel.
inline std::string broken_rule(std::span<const message> log, bool ended = true) {
  return broken_rule(log, [](int) { return false; }, ended);
}

}  // namespace heddle::inline v0::plan::sja
