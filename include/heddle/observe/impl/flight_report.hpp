// heddle/observe/impl/flight_report.hpp: bodies of heddle/observe/flight_report.hpp.
#pragma once

#include <heddle/observe/flight_report.hpp>

#include <heddle/core/error.hpp>
#include <heddle/core/flight_format.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <csignal>
#include <dirent.h>
#include <unistd.h>
#endif

namespace heddle::inline v0::observe {

namespace detail {

// A text of a file: up to its end or the first zero, what is no UTF-8 as '?'.
template <std::size_t N>
std::string flight_text(const char (&from)[N]) {
  const std::string_view all(from, N), raw = all.substr(0, all.find('\0'));
  std::string text;
  for (std::size_t i = 0; i < raw.size();) {
    const std::size_t n = heddle::v0::detail::utf8_length(raw.substr(i));
    const bool control = n == 1 && static_cast<unsigned char>(raw[i]) < 0x20 && raw[i] != '\n';
    text += n == 0 || control ? std::string_view("?") : raw.substr(i, n);
    i += n == 0 ? 1 : n;
  }
  return text;
}

// Names of comm's operations in their order: a file has their numbers, and comm does not stand below this room.
inline constexpr std::array<std::string_view, 19> flight_operations{
    "barrier",          "broadcast",  "all_reduce",   "reduce",     "reduce_scatter",
    "reduce_scatter_v", "all_gather", "all_gather_v", "all_to_all", "all_to_all_v",
    "gather",           "gather_v",   "scatter",      "scatter_v",  "scan",
    "exclusive_scan",   "split",      "send",         "recv"};
inline constexpr std::uint8_t flight_send = 17, flight_recv = 18;

HEDDLE_INLINE std::string time_text(std::int64_t ns) {
  const auto seconds = static_cast<std::time_t>(ns / 1'000'000'000);
  std::tm when{};
  char text[40] = "?";
#if defined(__linux__)
  if (::gmtime_r(&seconds, &when) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &when);
#else
  static_cast<void>(seconds), static_cast<void>(when);
#endif
  return text;
}

// Whether a process that a file names is gone; where it ran on another host, or before this one was started, that is not known.
HEDDLE_INLINE bool process_is_gone([[maybe_unused]] const heddle::v0::detail::flight_header& h) {
#if defined(__linux__)
  char host[64] = {}, boot[40] = {};
  if (::gethostname(host, sizeof host - 1) != 0 || flight_text(h.host) != host) return false;
  if (std::FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "r"); file != nullptr) {
    const std::size_t got = std::fread(boot, 1, sizeof boot - 1, file);
    std::fclose(file);
    char mine[sizeof h.boot];
    heddle::v0::detail::put_text(mine, sizeof mine, std::string_view(boot, got));
    if (std::memcmp(mine, h.boot, sizeof mine) != 0) return true;  // the host was started since
  }
  return h.pid > 0 && ::kill(static_cast<::pid_t>(h.pid), 0) != 0 && errno == ESRCH;
#else
  return false;
#endif
}

HEDDLE_INLINE std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace detail

HEDDLE_INLINE rank_flight read_flight(std::span<const std::byte> file, std::string_view name) {
  using heddle::v0::detail::flight_call, heddle::v0::detail::flight_group, heddle::v0::detail::flight_header;
  const auto refuse = [&](const std::string& why) -> void {
    throw io_error("heddle: " + std::string(name) + " is no flight file that can be read: " + why);
  };
  flight_header h{};
  if (file.size() < sizeof h)
    refuse("it has " + std::to_string(file.size()) + " bytes, its header " + std::to_string(sizeof h));
  std::memcpy(&h, file.data(), sizeof h);
  if (h.magic != flight_header::right_magic) refuse("it does not begin as one");
  if (h.version != flight_header::right_version)
    refuse("it is of version " + std::to_string(h.version) + ", this reads version " +
           std::to_string(flight_header::right_version));
  const std::uint64_t want = sizeof h + std::uint64_t{h.groups} * sizeof(flight_group) +
                             std::uint64_t{h.members} * sizeof(std::int32_t) +
                             std::uint64_t{h.calls} * sizeof(flight_call);
  if (file.size() < want)
    refuse("it should have " + std::to_string(want) + " bytes, it has " + std::to_string(file.size()));
  if (h.ranks < 1 || h.rank < 0 || h.rank >= h.ranks || h.calls < 1)
    refuse("it is of rank " + std::to_string(h.rank) + " of " + std::to_string(h.ranks));
  if (h.groups_used > h.groups || h.members_used > h.members) refuse("it says it has more groups than it has room for");

  rank_flight all;
  all.rank = h.rank;
  all.ranks = h.ranks;
  all.run_ns = h.run_ns;
  all.calls_made = h.calls_made;
  all.host = detail::flight_text(h.host);
  all.problem = detail::flight_text(h.problem);
  all.ended = h.state == flight_header::returned ? rank_flight::end::returned
              : h.state == flight_header::failed ? rank_flight::end::failed
              : detail::process_is_gone(h)       ? rank_flight::end::lost
                                                 : rank_flight::end::running;
  const std::byte* at = file.data() + sizeof h;
  const std::byte* const members = at + std::size_t{h.groups} * sizeof(flight_group);
  for (std::uint32_t g = 0; g < h.groups_used; ++g, at += sizeof(flight_group)) {
    flight_group one{};
    std::memcpy(&one, at, sizeof one);
    if (std::uint64_t{one.first_member} + one.members > h.members_used) refuse("a group's ranks lie beyond its end");
    flight_group_record& to = all.groups.emplace_back(flight_group_record{detail::flight_text(one.name), {}});
    to.members.resize(one.members);
    if (one.members > 0)
      std::memcpy(to.members.data(), members + std::size_t{one.first_member} * sizeof(std::int32_t),
                  std::size_t{one.members} * sizeof(std::int32_t));
    for (const int m : to.members)
      if (m < 0 || m >= h.ranks) refuse("a group has rank " + std::to_string(m) + " of " + std::to_string(h.ranks));
  }
  at = members + std::size_t{h.members} * sizeof(std::int32_t);
  std::vector<flight_call> calls;
  for (std::uint32_t i = 0; i < h.calls; ++i, at += sizeof(flight_call)) {
    flight_call c{};
    std::memcpy(&c, at, sizeof c);
    // One that is being written, or was written when the copy was made, is passed over.
    if (c.number == 0 || c.number > h.calls_made || (c.number - 1) % h.calls != i) continue;
    if (c.operation >= detail::flight_operations.size() || c.group >= all.groups.size()) continue;
    calls.push_back(c);
  }
  std::sort(calls.begin(), calls.end(), [](const flight_call& a, const flight_call& b) { return a.number < b.number; });
  for (const flight_call& c : calls) {
    const flight_group_record& group = all.groups[c.group];
    const bool message = c.operation == detail::flight_send || c.operation == detail::flight_recv;
    const auto member = static_cast<std::size_t>(c.root);
    if (message && (c.root < 0 || member >= group.members.size())) continue;
    flight_record& r = all.calls.emplace_back();
    r.number = c.number;
    r.call = c.call;
    r.mark = c.mark;
    r.group = c.group;
    r.inside = c.left_ns == 0 && c.number == h.calls_made && all.ended != rank_flight::end::returned;
    r.receives = c.operation == detail::flight_recv;
    r.tag = c.tag;
    if (message) r.peer = group.members[member];
    const std::string element = detail::flight_text(c.element), combine = detail::flight_text(c.combine);
    r.name = detail::flight_operations[c.operation];
    r.element = element;
    r.count = c.count;
    r.operation = (c.started != 0 ? "start_" : "") + r.name;
    if (!element.empty()) r.operation += " of " + (c.count < 0 ? "" : std::to_string(c.count) + " ") + element;
    if (!combine.empty()) r.operation += " with " + combine;
    if (message)
      r.operation +=
          (r.receives ? " from rank " : " to rank ") + std::to_string(r.peer) + " (tag " + std::to_string(c.tag) + ")";
    else if (c.root >= 0)
      r.operation += " with root " + std::to_string(c.root);
    // Numbers that must be equal, mixed; the mark is compared by itself.
    std::uint64_t what = 0xcbf29ce484222325u;
    const auto mix = [&](std::uint64_t n) {
      what = (what ^ n) * 0x9e3779b97f4a7c15u;
      what ^= what >> 29;
    };
    mix(c.operation), mix(c.started), mix(static_cast<std::uint64_t>(c.count)), mix(c.element_size);
    mix(static_cast<std::uint64_t>(c.root)), mix(c.counts_hash);
    for (const std::string& text : {element, combine})
      for (const char letter : text + '|') mix(static_cast<unsigned char>(letter));
    r.what = what;
    if (c.mark >= 0) r.operation += " in step " + std::to_string(c.mark);
    const std::int64_t last = c.left_ns != 0 ? c.left_ns : c.entered_ns;
    // As unsigned numbers: times of a damaged file may be anything.
    const std::uint64_t there = static_cast<std::uint64_t>(last) + static_cast<std::uint64_t>(h.clock_ahead_ns);
    all.last_ns = (std::max)(all.last_ns, static_cast<std::int64_t>(there));
  }
  return all;
}

HEDDLE_INLINE flights read_flights(const std::string& folder) {
  flights all;
#if defined(__linux__)
  std::vector<std::string> names;
  const std::unique_ptr<::DIR, int (*)(::DIR*)> open(::opendir(folder.c_str()), &::closedir);
  if (open == nullptr)
    throw io_error("heddle: the folder " + folder + " cannot be read: " + std::generic_category().message(errno));
  while (const ::dirent* const entry = ::readdir(open.get()))
    if (const std::string_view name = entry->d_name; name.ends_with(".flight")) names.emplace_back(name);
  if (names.empty()) throw io_error("heddle: the folder " + folder + " has no flight files (rank-0.flight, ...)");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string path = folder + "/" + name;
    try {
      const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
      if (file == nullptr)
        throw io_error("heddle: " + path + " cannot be read: " + std::generic_category().message(errno));
      std::vector<std::byte> bytes;
      std::array<std::byte, 65536> some;
      while (const std::size_t got = std::fread(some.data(), 1, some.size(), file.get()))
        bytes.insert(bytes.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(got));
      all.ranks.push_back(read_flight(bytes, path));
    } catch (const io_error& e) {
      all.unread.push_back({path, e.what()});
    }
  }
#else
  throw io_error("heddle: flight files of the folder " + folder + " are read on Linux");
#endif
  std::sort(all.ranks.begin(), all.ranks.end(),
            [](const rank_flight& a, const rank_flight& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < all.ranks.size(); ++i) {
    const rank_flight &a = all.ranks[0], &b = all.ranks[i];
    if (a.run_ns != b.run_ns || a.ranks != b.ranks)
      throw config_error("heddle: the flight files of " + folder + " are of two runs: rank " + std::to_string(a.rank) +
                         " of " + std::to_string(a.ranks) + " began " + detail::time_text(a.run_ns) + ", rank " +
                         std::to_string(b.rank) + " of " + std::to_string(b.ranks) + " began " +
                         detail::time_text(b.run_ns) + "; give each run a folder of its own");
    if (all.ranks[i - 1].rank == b.rank)
      throw config_error("heddle: the folder " + folder + " has two flight files of rank " + std::to_string(b.rank));
  }
  return all;
}

HEDDLE_INLINE std::string_view to_string(flight_report::kind what) {
  constexpr std::array<std::string_view, 8> names{"agreed", "missing", "disagreed", "skipped",
                                                  "circle", "silent",  "lost",      "undecided"};
  return names[static_cast<std::size_t>(what)];
}

namespace detail {

// The files of a launch, as the verdict looks at them.
class flight_judge {
 public:
  explicit flight_judge(const flights& all) : all_(all) {
    for (const rank_flight& f : all.ranks) {
      of_[f.rank] = &f;
      for (const flight_record& c : f.calls)
        if (c.inside) inside_[f.rank] = &c;
    }
  }

  flight_report verdict() {
    if (find_disagreement()) return report_;
    find_waits();
    if (waits_.empty()) return find_agreement().what == flight_report::kind::agreed ? find_swap() : report_;
    // Who ends a chain of waits is in no call, or waits for somebody who has no file. One who is gone or has ended says more than one
    // who is silent.
    std::map<rank_flight::end, std::vector<int>> ends;
    std::vector<int> unknown, unsure;
    for (const int r : awaited_) {
      if (waits_.contains(r)) continue;
      if (const auto f = of_.find(r); f == of_.end())
        unknown.push_back(r);
      else if (unsure_.contains(r) && f->second->ended == rank_flight::end::running)
        unsure.push_back(r);
      else
        ends[f->second->ended].push_back(r);
    }
    if (const auto failed = ends.find(rank_flight::end::failed); failed != ends.end()) {
      drop_followers(failed->second, ends.contains(rank_flight::end::returned));
      if (failed->second.empty()) ends.erase(failed);
    }
    for (const auto& [end, kind] : {std::pair(rank_flight::end::lost, flight_report::kind::lost),
                                    std::pair(rank_flight::end::failed, flight_report::kind::missing),
                                    std::pair(rank_flight::end::returned, flight_report::kind::missing)})
      if (const auto found = ends.find(end); found != ends.end()) return blame(kind, found->second);
    // A rank that is in no call though it has failed elsewhere: nobody waits for it, yet its end ended the others.
    for (const auto& [r, f] : of_)
      if (f->ended == rank_flight::end::lost && !waits_.contains(r)) return blame(flight_report::kind::lost, {r});
    if (!unknown.empty()) return blame(flight_report::kind::undecided, unknown);
    if (const auto found = ends.find(rank_flight::end::running); found != ends.end())
      return blame(flight_report::kind::silent, found->second);
    if (!unsure.empty()) return blame(flight_report::kind::undecided, unsure);
    return blame(flight_report::kind::circle, ranks_of_circle());
  }

 private:
  using place = std::pair<const flight_group_record*, std::int64_t>;

  // Calls of the same place that differ. The first such place in time is where it began: the lowest number of its group.
  bool find_disagreement() {
    std::map<std::pair<std::string, std::vector<int>>, std::map<std::int64_t, std::map<int, const flight_record*>>>
        calls;
    for (const auto& [r, f] : of_)
      for (const flight_record& c : f->calls)
        if (c.call > 0) {
          const flight_group_record& g = f->groups[c.group];
          if (std::find(g.members.begin(), g.members.end(), r) != g.members.end())
            calls[{g.name, g.members}][c.call].try_emplace(r, &c);
        }
    std::int64_t earliest = 0;
    bool found = false;
    for (const auto& [group, by_number] : calls)
      for (const auto& [number, by_rank] : by_number) {
        if (same(by_rank)) continue;
        // Of several groups the one whose first call of that place came first.
        std::uint64_t first = ~std::uint64_t{0};
        for (const auto& [r, c] : by_rank) first = (std::min)(first, c->number);
        if (!found || static_cast<std::int64_t>(first) < earliest) {
          earliest = static_cast<std::int64_t>(first);
          found = true;
          describe(group.first, number, by_rank, by_number);
        }
        break;
      }
    return found;
  }
  static bool same(const std::map<int, const flight_record*>& by_rank) {
    return std::all_of(by_rank.begin(), by_rank.end(), [&](const auto& c) {
      return c.second->what == by_rank.begin()->second->what && c.second->mark == by_rank.begin()->second->mark;
    });
  }
  void describe(const std::string& group, std::int64_t number, const std::map<int, const flight_record*>& by_rank,
                const std::map<std::int64_t, std::map<int, const flight_record*>>& by_number) {
    std::map<std::pair<std::uint64_t, std::int64_t>, std::vector<int>> alike;
    for (const auto& [r, c] : by_rank) alike[{c->what, c->mark}].push_back(r);
    const auto most = std::max_element(alike.begin(), alike.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.size(), -a.second.front()) < std::pair(b.second.size(), -b.second.front());
    });
    report_ = {};
    report_.group = group;
    report_.number = number;
    const flight_record& right = *by_rank.at(most->second.front());
    bool equal_but_marks = true;
    std::string others;
    for (const auto& [what, ranks] : alike) {
      if (what == most->first) continue;
      equal_but_marks = equal_but_marks && what.first == most->first.first;
      report_.culprits.insert(report_.culprits.end(), ranks.begin(), ranks.end());
      others += (others.empty() ? "" : "; ") + ranks_text(ranks) + " entered " + by_rank.at(ranks.front())->operation;
    }
    std::sort(report_.culprits.begin(), report_.culprits.end());
    report_.victims = most->second;
    report_.what = equal_but_marks ? flight_report::kind::skipped : flight_report::kind::disagreed;
    report_.text = std::string(to_string(report_.what)) + ": call " + std::to_string(number) + " on communicator (" +
                   group + "): " + others + "; " + ranks_text(most->second) + " entered " + right.operation + ".";
    if (!equal_but_marks) return;
    // The step in which the numbers of calls differ: the last whose calls all ranks have made.
    std::map<int, std::map<std::int64_t, int>> made;
    for (const auto& [n, calls] : by_number)
      for (const auto& [r, c] : calls) ++made[r][c->mark];
    const std::int64_t step = (std::min)(right.mark, by_rank.at(report_.culprits.front())->mark);
    const int usual = made[most->second.front()][step];
    for (const int r : report_.culprits) {
      const int own = made[r][step];
      report_.text += " Rank " + std::to_string(r) + " made " + std::to_string(own) + " calls in step " +
                      std::to_string(step) + ", the others " +
                      (own < usual ? std::to_string(usual) : std::to_string(usual) + " or more") + ".";
    }
    report_.text += " A call was left out or made twice.";
  }

  // For whom each rank inside of a call waits, or waited when it was ended: who ends a job ends those that wait, too.
  void find_waits() {
    for (const auto& [r, c] : inside_) {
      if (c->peer >= 0) {
        if (!meets(r, *c)) add_wait(r, c->peer);
        continue;
      }
      const flight_group_record& g = of_.at(r)->groups[c->group];
      for (const int m : g.members)
        if (m != r && !has_entered(m, g, c->call)) {
          add_wait(r, m);
          if (is_cut(m, g)) unsure_.insert(m);
        }
    }
  }
  void add_wait(int who, int whom) {
    waits_[who].push_back(whom);
    awaited_.insert(whom);
  }
  // Whether the calls of a group that a rank has made may all be older than those that are kept.
  bool is_cut(int r, const flight_group_record& g) const {
    const auto f = of_.find(r);
    if (f == of_.end() || f->second->calls.empty() || f->second->calls.front().number <= 1) return false;
    return std::none_of(f->second->calls.begin(), f->second->calls.end(),
                        [&](const flight_record& c) { return c.call > 0 && f->second->groups[c.group] == g; });
  }
  bool has_entered(int r, const flight_group_record& g, std::int64_t call) const {
    const auto f = of_.find(r);
    if (f == of_.end()) return false;
    std::int64_t last = 0;
    for (const flight_record& c : f->second->calls)
      if (c.call > last && f->second->groups[c.group] == g) last = c.call;
    return last >= call;
  }
  // Whether the other side is in the same message.
  bool meets(int r, const flight_record& mine) const {
    const auto other = inside_.find(mine.peer);
    return other != inside_.end() && other->second->peer == r && other->second->tag == mine.tag &&
           other->second->receives != mine.receives;
  }

  flight_report find_agreement() {
    std::vector<int> gone, problems;
    for (const auto& [r, f] : of_) {
      if (f->ended == rank_flight::end::lost) gone.push_back(r);
      if (f->ended == rank_flight::end::failed) problems.push_back(r);
    }
    if (!gone.empty()) return blame(flight_report::kind::lost, gone);
    drop_followers(problems, false);
    if (!problems.empty()) return blame(flight_report::kind::missing, problems);
    report_.what = all_.unread.empty() ? flight_report::kind::agreed : flight_report::kind::undecided;
    report_.text = "agreed: no rank of " + std::to_string(of_.size()) + " waits for another.";
    if (!all_.unread.empty())
      report_.text =
          "undecided: " + std::to_string(all_.unread.size()) + " files could not be read; no other rank waits.";
    return report_;
  }

  // Ranks that made the calls of one step in the same order, and those of the next in several: calls of two groups that are swapped, where
  // no circle of waits follows. What most of them did is right; of as many, what the step after shows.
  flight_report find_swap() {
    for (const auto& [r, f] : of_)
      for (const flight_record& c : f->calls)
        // The first step that is kept may be cut.
        if (c.call > 0 && c.mark > f->calls.front().mark) steps_[c.mark][r].push_back(&c);
    for (auto step = steps_.begin(); step != steps_.end(); ++step) {
      const auto next = std::next(step);
      if (next == steps_.end()) break;
      // Nothing is before the first step: that after it is what it is compared with.
      if (step == steps_.begin() && turned(next, step, next)) break;
      if (turned(step, next, std::next(next))) break;
    }
    return report_;
  }
  // Calls by the names of their groups: ranks of different groups of one name do the same work.
  using order = std::vector<std::pair<std::string, std::uint64_t>>;
  using steps_of_ranks = std::map<std::int64_t, std::map<int, std::vector<const flight_record*>>>;
  order order_of(int r, const steps_of_ranks::const_iterator& step) const {
    order all;
    if (step == steps_.end() || !step->second.contains(r)) return all;
    for (const flight_record* c : step->second.at(r)) all.emplace_back(of_.at(r)->groups[c->group].name, c->what);
    return all;
  }
  // Whether ranks with one order in step `usual` have several in step `now`, of the same calls.
  bool turned(steps_of_ranks::const_iterator usual, steps_of_ranks::const_iterator now,
              steps_of_ranks::const_iterator after) {
    std::map<order, std::map<order, std::vector<int>>> alike;
    for (const auto& [r, calls] : now->second) {
      auto before = order_of(r, usual), here = order_of(r, now);
      if (std::is_permutation(before.begin(), before.end(), here.begin(), here.end()))
        alike[std::move(before)][std::move(here)].push_back(r);
    }
    for (const auto& [before, orders] : alike) {
      if (orders.size() < 2) continue;
      const auto fewer = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
      auto like = std::max_element(orders.begin(), orders.end(), fewer);
      const auto as_many = [&](const auto& one) { return one.second.size() == like->second.size(); };
      bool decided = std::count_if(orders.begin(), orders.end(), as_many) == 1;
      std::set<order> later;
      for (const auto& [how, ranks] : orders)
        for (const int r : ranks) later.insert(order_of(r, after));
      if (const auto found = orders.find(*later.begin()); !decided && later.size() == 1 && found != orders.end())
        like = found, decided = true;
      std::vector<int> others;
      std::string how;
      for (const auto& side : orders) {
        if (&side == &*like) continue;
        others.insert(others.end(), side.second.begin(), side.second.end());
        const auto first = std::mismatch(side.first.begin(), side.first.end(), like->first.begin()).first;
        const auto entered = [&](int r) {
          const flight_record& c = *now->second.at(r)[static_cast<std::size_t>(first - side.first.begin())];
          return "ank " + std::to_string(r) + " entered " + c.operation + " on communicator (" +
                 of_.at(r)->groups[c.group].name + ")";
        };
        how += " R" + entered(side.second.front()) + " where r" + entered(like->second.front()) + ".";
      }
      std::sort(others.begin(), others.end());
      report_.what = decided ? flight_report::kind::disagreed : flight_report::kind::undecided;
      if (decided) report_.culprits = others;
      report_.text = std::string(to_string(report_.what)) + ": " + ranks_text(others) + " made the calls of step " +
                     std::to_string(now->first) + " in another order than " + ranks_text(like->second) +
                     ", and nobody waits. In step " + std::to_string(usual->first) + " these had one order." + how;
      if (!decided) report_.text += " As many did one as the other, and no later step says which is right.";
      return true;
    }
    return false;
  }

  // The first to fail ended the others: those say so themselves. `others`: somebody else is to blame as well.
  void drop_followers(std::vector<int>& failed, bool others) const {
    const auto followed = [&](int r) { return of_.at(r)->problem.find(" failed while rank ") != std::string::npos; };
    if (others || !std::all_of(failed.begin(), failed.end(), followed)) std::erase_if(failed, followed);
  }

  // Ranks that reach themselves by waits.
  std::vector<int> ranks_of_circle() const {
    std::vector<int> circle;
    for (const auto& [start, first] : waits_) {
      std::set<int> seen;
      std::vector<int> next(first);
      while (!next.empty()) {
        const int r = next.back();
        next.pop_back();
        if (!seen.insert(r).second) continue;
        if (const auto more = waits_.find(r); more != waits_.end())
          next.insert(next.end(), more->second.begin(), more->second.end());
      }
      if (seen.contains(start)) circle.push_back(start);
    }
    return circle;
  }

  flight_report blame(flight_report::kind what, std::vector<int> culprits) {
    report_.what = what;
    report_.culprits = std::move(culprits);
    for (const auto& [r, f] : of_)
      if (f->ended == rank_flight::end::failed && !waits_.contains(r) && what != flight_report::kind::disagreed &&
          std::find(report_.culprits.begin(), report_.culprits.end(), r) == report_.culprits.end())
        report_.victims.push_back(r);
    for (const auto& [r, whom] : waits_)
      if (what != flight_report::kind::circle ||
          std::find(report_.culprits.begin(), report_.culprits.end(), r) == report_.culprits.end())
        report_.victims.push_back(r);
    std::string text = std::string(to_string(what)) + ":";
    for (const int r : report_.culprits) text += " " + sentence(r);
    std::map<std::string, std::vector<int>> alike;
    for (const auto& [r, whom] : waits_) {
      if (std::find(report_.culprits.begin(), report_.culprits.end(), r) != report_.culprits.end()) continue;
      const flight_record& c = *inside_.at(r);
      if (report_.group.empty() && c.call > 0) {
        report_.group = of_.at(r)->groups[c.group].name;
        report_.number = c.call;
      }
      alike[place_of(r, c) + " for " + ranks_text(whom)].push_back(r);
    }
    for (const auto& [place, ranks] : alike) {
      std::string who = ranks_text(ranks);
      who[0] = 'R';
      text += " " + who + (ranks.size() == 1 ? " waits in " : " wait in ") + place + ".";
    }
    std::sort(report_.victims.begin(), report_.victims.end());
    report_.text = text;
    return report_;
  }
  std::string place_of(int r, const flight_record& c) const {
    return c.operation + (c.call > 0 ? ", call " + std::to_string(c.call) : std::string()) + " on communicator (" +
           of_.at(r)->groups[c.group].name + ")";
  }
  std::string sentence(int r) const {
    const auto f = of_.find(r);
    const std::string rank = "Rank " + std::to_string(r);
    if (f == of_.end()) return rank + " has no flight file here.";
    if (const auto wait = waits_.find(r); wait != waits_.end())
      return rank + " waits in " + place_of(r, *inside_.at(r)) + " for " + ranks_text(wait->second) + ".";
    if (report_.what == flight_report::kind::undecided)
      return rank + ": too few of its calls are kept to say whether it has entered.";
    const auto& calls = f->second->calls;
    const std::string last = calls.empty() ? "it has made no call" : "its last call was " + calls.back().operation;
    switch (f->second->ended) {
      case rank_flight::end::lost:
        return rank + "'s process is gone; " + last + ".";
      case rank_flight::end::returned:
        return rank + "'s body has returned; " + last + ".";
      case rank_flight::end::failed:
        return rank + " has failed: " + f->second->problem + "; " + last + ".";
      default:
        return rank + " is in no call while others wait for it; " + last + ".";
    }
  }

  const flights& all_;
  flight_report report_;
  std::map<int, const rank_flight*> of_;
  std::map<int, const flight_record*> inside_;
  std::map<int, std::vector<int>> waits_;
  std::set<int> awaited_, unsure_;
  steps_of_ranks steps_;  // collectives
};

}  // namespace detail

HEDDLE_INLINE flight_report report_of(const flights& all) {
  return detail::flight_judge(all).verdict();
}

HEDDLE_INLINE std::string hang_svg(const flights& all, const flight_report& report,
                                   std::span<const std::string> labels) {
  svg_drawing picture;
  picture.words(16, 28, "ranks: " + std::string(to_string(report.what)), 15, "#1b1f24", "start", true);
  const auto in = [](const std::vector<int>& list, int r) {
    return std::find(list.begin(), list.end(), r) != list.end();
  };
  constexpr int columns = 8;
  constexpr double width = 128, height = 44, left = 16, top = 44;
  const int ranks = all.ranks.empty() ? 0 : all.ranks.front().ranks;
  for (int r = 0; r < ranks; ++r) {
    const auto f =
        std::find_if(all.ranks.begin(), all.ranks.end(), [&](const rank_flight& one) { return one.rank == r; });
    const double x = left + width * (r % columns), y = top + height * (r / columns);
    const bool culprit = in(report.culprits, r), waits = in(report.victims, r);
    const std::string_view state = f == all.ranks.end()                                    ? "no file"
                                   : f->ended == rank_flight::end::lost                    ? "lost"
                                   : f->ended == rank_flight::end::failed                  ? "failed"
                                   : f->ended == rank_flight::end::returned                ? "returned"
                                   : waits                                                 ? "waiting"
                                   : culprit && report.what == flight_report::kind::silent ? "silent"
                                                                                           : "running";
    picture.rect(x, y, width - 6, height - 6, culprit ? "#d55e00" : waits ? "#f0e442" : "#c4e3d6", 4);
    picture.words(x + 8, y + 16, "rank " + std::to_string(r) + ": " + std::string(state), 12,
                  culprit ? "#ffffff" : "#1b1f24");
    if (static_cast<std::size_t>(r) < labels.size())
      picture.words(x + 8, y + 31, svg_fitted(labels[static_cast<std::size_t>(r)], 10, width - 20), 10,
                    culprit ? "#ffffff" : "#57606a");
  }
  picture.words(left, top + height * ((ranks + columns - 1) / columns) + 16,
                svg_fitted(report.text, 12, width * columns - 16), 12, "#1b1f24");
  return picture.text("", 16, "#ffffff");
}

}  // namespace heddle::inline v0::observe
