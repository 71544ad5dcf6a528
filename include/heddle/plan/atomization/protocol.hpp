// heddle/plan/atomization/protocol.hpp: the messages between a broker and its jobs, and a check that they keep the rules.
#pragma once

#include <heddle/plan/atomization/profile.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::plan::sja {

/// From the broker: announce, grant, withdraw. From a job: reply, decline, report.
enum class message_kind : std::uint8_t { announce, reply, grant, decline, withdraw, report };
/// A message of the protocol. A grant carries the piece. Units: seconds.
struct message {
  message_kind kind{};
  int window = -1;
  int job = -1;  ///< -1: all
  double at = 0;
  double start = 0, end = 0;  ///< of a granted piece
  bool interested = false;    ///< of a reply
};

/// How many messages of a window there are.
struct message_counts {
  int announcements = 0, replies = 0, grants = 0, declines = 0, withdrawals = 0, reports = 0;
};
/// The messages of one window.
inline message_counts count_messages(std::span<const message> log, int window) {
  message_counts n;
  for (const message& m : log) {
    if (m.window != window) continue;
    n.announcements += m.kind == message_kind::announce;
    n.replies += m.kind == message_kind::reply;
    n.grants += m.kind == message_kind::grant;
    n.declines += m.kind == message_kind::decline;
    n.withdrawals += m.kind == message_kind::withdraw;
    n.reports += m.kind == message_kind::report;
  }
  return n;
}

/// Whether a log of messages keeps the rules of the protocol: every window is announced first, gets at most one reply of
/// each job, and ends granted or withdrawn, never both; a piece goes to a job that was interested, lies in its window and
/// reports once; no two pieces overlap on a slice, and none of one job overlap unless it is parallel.
/// `window_of(int) -> const window&`, `is_parallel(int job) -> bool`. Returns the first rule that is broken in words, or
/// nothing. `ended`: the run is over, so that nothing may be open.
template <class WindowOf, class IsParallel>
std::string broken_rule(std::span<const message> log, WindowOf&& window_of, IsParallel&& is_parallel,
                        bool ended = true) {
  struct piece {
    int job = -1;
    double start = 0, end = 0;  // the end moves forward when it reports
    bool reported = false;
  };
  struct state {
    bool cleared = false, withdrawn = false;
    std::map<int, bool> replies;
    std::vector<int> declined;
    std::vector<piece> pieces;
  };
  std::map<int, state> windows;
  const auto says = [](const message& m, const char* what) {
    std::string text = "window ";
    text += std::to_string(m.window);
    text += ", job ";
    text += std::to_string(m.job);
    text += ": ";
    text += what;
    return text;
  };
  for (const message& m : log) {
    if (m.kind == message_kind::announce) {
      if (!windows.try_emplace(m.window).second) return says(m, "announced twice");
      continue;
    }
    const auto found = windows.find(m.window);
    if (found == windows.end()) return says(m, "a message before the announcement");
    state& w = found->second;
    if (m.kind == message_kind::reply) {
      if (w.cleared) return says(m, "a reply after the window was cleared");
      if (!w.replies.emplace(m.job, m.interested).second) return says(m, "a second reply");
    } else if (m.kind == message_kind::withdraw) {
      if (w.withdrawn) return says(m, "withdrawn twice");
      if (!w.pieces.empty()) return says(m, "withdrawn after a grant");
      w.cleared = w.withdrawn = true;
    } else if (m.kind == message_kind::report) {
      bool reported = false;
      for (piece& p : w.pieces)
        if (p.job == m.job && !p.reported && !reported) {
          p.reported = reported = true;
          p.end = (std::min)(p.end, m.at);
        }
      if (!reported) return says(m, "a report without a piece");
    } else {
      w.cleared = true;
      if (w.withdrawn) return says(m, "a grant after the withdrawal");
      const auto reply = w.replies.find(m.job);
      if (reply == w.replies.end() || !reply->second) return says(m, "a grant to a job that was not interested");
      if (std::find(w.declined.begin(), w.declined.end(), m.job) != w.declined.end())
        return says(m, "a grant to a job that has declined");
      if (m.kind == message_kind::decline) {
        w.declined.push_back(m.job);
        continue;
      }
      const window& here = window_of(m.window);
      if (m.start < here.start || m.end > here.end || m.start > m.end) return says(m, "a piece outside of the window");
      for (const auto& [number, other] : windows)
        for (const piece& p : other.pieces) {
          if (m.start >= p.end || p.start >= m.end) continue;
          if (p.job == m.job && !is_parallel(m.job)) return says(m, "two live pieces of one job");
          for (const int slice : window_of(number).slices)
            if (std::find(here.slices.begin(), here.slices.end(), slice) != here.slices.end())
              return says(m, "two pieces on one slice at the same time");
        }
      w.pieces.push_back({m.job, m.start, m.end, false});
    }
  }
  for (const auto& [number, w] : windows) {
    if (!ended) break;
    const message about{message_kind::announce, number, -1, 0, 0, 0, false};
    if (!w.cleared || (w.pieces.empty() && !w.withdrawn)) return says(about, "neither granted nor withdrawn");
    for (const piece& p : w.pieces)
      if (!p.reported) return says(about, "a piece that never reported");
  }
  return {};
}

}  // namespace heddle::inline v0::plan::sja
