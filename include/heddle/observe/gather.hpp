// heddle/observe/gather.hpp: gathers the events recorded in all processes into one recorder.
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/observe/recorder.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

namespace detail {

// An event without its name, which is text in this process: a number instead, in order of appearance.
struct travelling_event {
  std::int64_t bytes, begin_ns, end_ns;
  std::uint64_t flow;
  std::int32_t name, rank, step, stage, microbatch, peer, kind, unused;
};

// What goes ahead of the events: how many there are, the bytes of their names, and the events that were dropped.
struct travelling_header {
  std::int64_t events = 0, name_bytes = 0, dropped = 0;
};

inline std::pair<std::vector<travelling_event>, std::string> packed(const recorder& from) {
  std::pair<std::vector<travelling_event>, std::string> all;
  std::map<std::string_view, std::int32_t> numbers;
  for (int r = 0; r < from.ranks(); ++r)
    for (const event& e : from.events(r)) {
      const std::string_view name = e.name != nullptr ? e.name : "";
      const auto [place, is_new] = numbers.emplace(name, static_cast<std::int32_t>(numbers.size()));
      if (is_new) (all.second += name) += '\0';
      all.first.push_back({e.bytes, e.begin_ns, e.end_ns, e.flow, place->second, e.rank, e.step, e.stage, e.microbatch,
                           e.peer, static_cast<std::int32_t>(e.kind), 0});
    }
  return all;
}

inline void unpack(recorder& to, std::span<const travelling_event> events, std::string_view names,
                   std::int64_t clock_ahead_ns) {
  std::vector<const char*> known;
  for (std::size_t at = 0; at < names.size(); at = names.find('\0', at) + 1)
    known.push_back(to.keep_name(std::string(names.substr(at, names.find('\0', at) - at))));
  for (const travelling_event& e : events)
    to.record({static_cast<activity>(e.kind), known[static_cast<std::size_t>(e.name)], e.rank, e.step, e.stage,
               e.microbatch, e.peer, e.bytes, e.flow, e.begin_ns - clock_ahead_ns, e.end_ns - clock_ahead_ns});
}

// How far another clock is ahead of this one: it was read at `theirs`, after `before` and before `after` of this one.
class clock_difference {
 public:
  void asked(std::int64_t before, std::int64_t theirs, std::int64_t after) {
    least_ = (std::max)(least_, theirs - after);
    most_ = (std::min)(most_, theirs - before);
  }
  // 0 where both may be the same clock, as in processes of one host; otherwise right to half the fastest answer's time.
  std::int64_t ahead_ns() const { return least_ <= 0 && 0 <= most_ ? 0 : least_ + (most_ - least_) / 2; }

 private:
  std::int64_t least_ = (std::numeric_limits<std::int64_t>::min)();
  std::int64_t most_ = (std::numeric_limits<std::int64_t>::max)();
};

template <class Communicator, class Clock>
void gather(recorder& mine, Communicator& comm, int root, int tag, Clock clock) {
  constexpr int questions = 8;
  std::int64_t time = 0;
  travelling_header header;
  std::vector<travelling_event> events;
  std::string names;
  if (comm.rank() == root) {
    for (int r = 0; r < comm.size(); ++r) {
      if (r == root) continue;
      clock_difference difference;
      for (int i = 0; i < questions; ++i) {
        const std::int64_t before = clock();
        comm.send(std::span<const std::int64_t>(&before, 1), r, tag);
        comm.recv(std::span(&time, 1), r, tag);
        difference.asked(before, time, clock());
      }
      comm.recv(std::span(&header, 1), r, tag);
      events.resize(static_cast<std::size_t>(header.events));
      names.resize(static_cast<std::size_t>(header.name_bytes));
      comm.recv(std::span(events), r, tag);
      comm.recv(std::span(names), r, tag);
      unpack(mine, events, names, difference.ahead_ns());
      mine.count_dropped(header.dropped);
    }
  } else {
    for (int i = 0; i < questions; ++i) {
      comm.recv(std::span(&time, 1), root, tag);
      time = clock();
      comm.send(std::span<const std::int64_t>(&time, 1), root, tag);
    }
    std::tie(events, names) = packed(mine);
    header = {static_cast<std::int64_t>(events.size()), static_cast<std::int64_t>(names.size()), mine.dropped()};
    comm.send(std::span<const travelling_header>(&header, 1), root, tag);
    comm.send(std::span<const travelling_event>(events), root, tag);
    comm.send(std::span<const char>(names), root, tag);
  }
}

}  // namespace detail

/// Adds to the recorder of rank `root` what the others recorded: for ranks that are processes, or have a recorder each for
/// another reason. A collective over `comm`, after recording; the others keep what they have. The root's recorder has
/// as many ranks as the others', and room for their events: what does not fit counts as dropped there.
/// Clocks of other hosts are compared with the root's, and their events moved by the difference: times are right to
/// half of what the fastest of some questions and answers took. `comm` is any communicator; `tag` is that of all messages.
template <class Communicator>
void gather(recorder& mine, Communicator& comm, int root = 0, int tag = 0) {
  detail::gather(mine, comm, root, tag, [] { return now_ns(); });
}

}  // namespace heddle::inline v0::observe
