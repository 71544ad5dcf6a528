// tests/schedule/emulator.hpp: runs tables on symbolic data, so that what they compute can be compared with serial runs.
#pragma once

#include <heddle/schedule/plan.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace emulator {

namespace sc = heddle::schedule;
using kind = sc::action_kind;
using value = std::uint64_t;  // stands for a tensor; 0 is garbage

/// A different number for each way to compute something.
inline value mix(value what, value a, value b, value c) {
  value h = what + 0x9e3779b97f4a7c15u;
  for (const value x : {a, b, c}) {
    h ^= x + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
  }
  return h | 1u;
}
inline value n(int i) {
  return static_cast<value>(i) + 1;
}

// The operations of a stage on symbols: any wrong operand gives another number.
inline value forward(int stage, int i, value in) {
  return in == 0 ? 0 : mix(1, n(stage), n(i), in);
}
inline value saved(int stage, int i, value in) {
  return in == 0 ? 0 : mix(2, n(stage), n(i), in);
}
inline value backward_input(int stage, value saved, value gradient) {
  return saved == 0 || gradient == 0 ? 0 : mix(3, n(stage), saved, gradient);
}
inline value with_gradient(value saved, value gradient) {
  return saved == 0 || gradient == 0 ? 0 : mix(4, saved, gradient, 1);
}
inline value backward_weight(int stage, value both) {
  return both == 0 ? 0 : mix(5, n(stage), both, 1);
}
inline value model_input(int i) {
  return mix(6, n(i), 1, 1);
}
inline value loss_gradient(value saved) {
  return saved == 0 ? 0 : mix(7, saved, 1, 1);
}

/// The weight gradient of each stage: one contribution per microbatch, in any order.
using gradients = std::vector<std::multiset<value>>;

/// What one rank computes that runs one microbatch after the other.
inline gradients serial(int stages, int microbatches) {
  gradients g(static_cast<std::size_t>(stages));
  for (int i = 0; i < microbatches; ++i) {
    std::vector<value> kept;
    value x = model_input(i);
    for (int s = 0; s < stages; ++s) {
      kept.push_back(saved(s, i, x));
      x = forward(s, i, x);
    }
    value dy = loss_gradient(kept.back());
    for (int s = stages - 1; s >= 0; --s) {
      const value k = kept[static_cast<std::size_t>(s)];
      g[static_cast<std::size_t>(s)].insert(backward_weight(s, with_gradient(k, dy)));
      dy = backward_input(s, k, dy);
    }
  }
  return g;
}

/// Runs a table with data kept per (stage, microbatch). Messages carry no tags: a receive takes the next message of its
/// rank pair, whatever it is. Nothing if the lists do not finish or a computation finds no operand; reductions must find
/// the complete gradient. Knows nothing of the validator.
inline std::optional<gradients> run(sc::table_view t, sc::transfers mode) {
  struct rank_state {
    int head = 0;
    std::map<std::pair<int, int>, value> input, gradient, kept, output, input_gradient, both;
  };
  std::vector<rank_state> ranks(static_cast<std::size_t>(t.ranks()));
  std::map<std::pair<int, int>, std::deque<value>> channels;
  gradients g(static_cast<std::size_t>(t.stages()));
  std::set<int> closed;
  const bool placed = t.has_transfers();
  const auto whole = serial(t.stages(), t.microbatches());
  for (int r = 0; r < t.ranks(); ++r) ranks[static_cast<std::size_t>(r)].head = t.offset(r);

  const auto find = [](const auto& map, std::pair<int, int> key) -> value {
    const auto at = map.find(key);
    return at == map.end() ? 0 : at->second;
  };
  bool broken = false;
  const auto deliver = [&](rank_state& to, const sc::action& a, value v) {
    (a.kind == kind::recv_forward ? to.input : to.gradient)[{a.stage, a.microbatch}] = v;
  };
  const auto outgoing = [&](rank_state& from, const sc::action& a) {
    return find(a.kind == kind::send_forward ? from.output : from.input_gradient, {a.stage, a.microbatch});
  };
  const auto step = [&](int r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    if (me.head == t.offset(r + 1)) return false;
    const sc::action& a = t[me.head];
    const std::pair<int, int> here{a.stage, a.microbatch};
    const auto stage = static_cast<std::size_t>(a.stage);
    if (sc::is_transfer(a.kind)) {
      if (a.peer < 0 || a.peer >= t.ranks()) return broken = true, false;
      if (mode == sc::transfers::rendezvous) {
        rank_state& peer = ranks[static_cast<std::size_t>(a.peer)];
        if (a.peer == r || peer.head == t.offset(a.peer + 1)) return false;
        const sc::action& b = t[peer.head];
        if (!sc::is_transfer(b.kind) || b.peer != r || sc::is_send(a.kind) == sc::is_send(b.kind)) return false;
        sc::is_send(a.kind) ? deliver(peer, b, outgoing(me, a)) : deliver(me, a, outgoing(peer, b));
        ++peer.head;
      } else if (sc::is_send(a.kind)) {
        channels[{r, a.peer}].push_back(outgoing(me, a));
      } else {
        auto& channel = channels[{a.peer, r}];
        if (channel.empty()) return false;
        deliver(me, a, channel.front());
        channel.pop_front();
      }
    } else if (a.kind == kind::forward) {
      value in = find(me.input, here);
      if (t.previous(a.stage, a.microbatch) < 0) in = model_input(a.microbatch);
      // Unplaced tables and stages of one rank pass data on directly.
      if (in == 0 && t.previous(a.stage, a.microbatch) >= 0 && (!placed || t.rank_of(t.previous(a.stage, a.microbatch)) == r)) {
        in = find(ranks[static_cast<std::size_t>(t.rank_of(t.previous(a.stage, a.microbatch)))].output, {a.stage - 1, a.microbatch});
        if (in == 0 && t.rank_of(t.previous(a.stage, a.microbatch)) != r) return false;
      }
      if (in == 0) broken = true;
      me.kept[here] = saved(a.stage, a.microbatch, in);
      me.output[here] = forward(a.stage, a.microbatch, in);
    } else if (a.kind == kind::backward || a.kind == kind::backward_input) {
      const value kept = find(me.kept, here);
      value dy = find(me.gradient, here);
      if (t.next(a.stage, a.microbatch) < 0) dy = loss_gradient(kept);
      if (dy == 0 && t.next(a.stage, a.microbatch) >= 0 && (!placed || t.rank_of(t.next(a.stage, a.microbatch)) == r)) {
        dy = find(ranks[static_cast<std::size_t>(t.rank_of(t.next(a.stage, a.microbatch)))].input_gradient,
                  {a.stage + 1, a.microbatch});
        if (dy == 0 && t.rank_of(t.next(a.stage, a.microbatch)) != r) return false;
      }
      if (kept == 0 || dy == 0) broken = true;
      me.input_gradient[here] = backward_input(a.stage, kept, dy);
      me.both[here] = with_gradient(kept, dy);
      if (a.kind == kind::backward) {
        g[stage].insert(backward_weight(a.stage, me.both[here]));
        me.kept.erase(here);
        if (closed.count(a.stage)) broken = true;
      }
    } else if (a.kind == kind::backward_weight) {
      if (find(me.both, here) == 0 || find(me.kept, here) == 0 || closed.count(a.stage)) broken = true;
      g[stage].insert(backward_weight(a.stage, find(me.both, here)));
      me.kept.erase(here);
    } else {
      if (a.kind == kind::reduce_gradient) closed.insert(a.stage);
      if (g[stage] != whole[stage]) broken = true;
    }
    ++me.head;
    return true;
  };
  for (bool progress = true; progress && !broken;) {
    progress = false;
    for (int r = 0; r < t.ranks() && !broken; ++r)
      while (!broken && step(r)) progress = true;
  }
  if (broken) return {};
  for (int r = 0; r < t.ranks(); ++r)
    if (ranks[static_cast<std::size_t>(r)].head != t.offset(r + 1)) return {};
  for (const auto& [ends, channel] : channels)
    if (!channel.empty()) return {};
  return g;
}

/// Runs a plan as its contract describes, with slots and buffers only, as badly as the contract allows: a send reads its
/// buffer as late as it may, a posted receive spoils its buffer at once and fills it when it is waited for, and a send
/// completes only after its receive was posted. Nothing if it does not finish. `freed` slots and buffers hold garbage.
inline std::optional<gradients> run(sc::plan_view p) {
  const sc::table_view& t = p.table;
  struct send {
    int rank, buffer;
    bool completed = false;
    value sent = 0;
  };
  struct rank_state {
    int head = 0;
    std::vector<value> buffers;
    std::map<int, std::pair<int, int>> posted;               // buffer -> (channel, message) it waits for
    std::vector<std::pair<std::pair<int, int>, int>> sends;  // channel, message
    std::size_t waited = 0;
  };
  struct slot {
    value kept = 0, both = 0;
  };
  std::vector<rank_state> ranks(static_cast<std::size_t>(t.ranks()));
  std::vector<std::vector<slot>> slots;
  std::map<std::pair<int, int>, std::vector<send>> sent;
  std::map<std::pair<int, int>, int> received;  // receives posted per channel
  gradients g(static_cast<std::size_t>(t.stages()));
  for (int r = 0; r < t.ranks(); ++r) {
    ranks[static_cast<std::size_t>(r)].head = t.offset(r);
    ranks[static_cast<std::size_t>(r)].buffers.resize(static_cast<std::size_t>(p.storage.buffers(r)));
  }
  for (int s = 0; s < t.stages(); ++s) slots.emplace_back(static_cast<std::size_t>(p.storage.slots(s)));

  const auto complete = [&](send& s) {
    if (s.completed) return;
    s.completed = true;
    s.sent = ranks[static_cast<std::size_t>(s.rank)].buffers[static_cast<std::size_t>(s.buffer)];
  };
  // Waits for the send `k` of a rank; false if its receive has not been posted.
  const auto wait_send = [&](rank_state& me, std::size_t k) {
    const auto& [channel, message] = me.sends[k];
    if (received[channel] <= message) return false;
    complete(sent[channel][static_cast<std::size_t>(message)]);
    return true;
  };
  // Takes the message that was posted to a buffer; false if it has not been sent.
  const auto arrived = [&](rank_state& me, int r, int buffer) {
    const auto posted = me.posted.find(buffer);
    if (posted == me.posted.end()) return true;  // left there by a stage of this rank
    auto& messages = sent[{posted->second.first, r}];
    if (static_cast<int>(messages.size()) <= posted->second.second) return false;
    complete(messages[static_cast<std::size_t>(posted->second.second)]);
    me.buffers.at(static_cast<std::size_t>(buffer)) = messages[static_cast<std::size_t>(posted->second.second)].sent;
    me.posted.erase(posted);
    return true;
  };
  const auto compute = [&](rank_state& me, int k) {
    const sc::action& a = t[k];
    const sc::action_storage& at = p.storage[k];
    const auto buffer = [&](int b) -> value& { return me.buffers.at(static_cast<std::size_t>(b)); };
    const auto stage = static_cast<std::size_t>(a.stage);
    slot& place = slots[stage].at(static_cast<std::size_t>(at.saved));
    const value in = at.input >= 0 ? buffer(at.input) : 0;
    if (at.input >= 0 && a.kind != kind::backward_weight) buffer(at.input) = 0;  // read and freed
    if (a.kind == kind::forward) {
      const value x = t.previous(a.stage, a.microbatch) < 0 ? model_input(a.microbatch) : in;
      place = {saved(a.stage, a.microbatch, x), 0};
      if (at.output >= 0) buffer(at.output) = forward(a.stage, a.microbatch, x);
    } else {
      if (a.kind != kind::backward_weight) {
        const value dy = t.next(a.stage, a.microbatch) < 0 ? loss_gradient(place.kept) : in;
        place.both = with_gradient(place.kept, dy);
        if (at.output >= 0) buffer(at.output) = backward_input(a.stage, place.kept, dy);
      }
      if (a.kind != kind::backward_input) {
        g[stage].insert(backward_weight(a.stage, place.both));
        place = {};
      }
    }
  };
  const auto step = [&](int r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    if (me.head == t.offset(r + 1)) return false;
    const sc::action& a = t[me.head];
    const sc::action_storage& at = p.storage[me.head];
    const auto buffer = [&](int b) -> value& { return me.buffers.at(static_cast<std::size_t>(b)); };
    if (sc::is_recv(a.kind)) {
      buffer(at.input) = 0;
      me.posted[at.input] = {a.peer, received[{a.peer, r}]++};
    } else if (sc::is_send(a.kind)) {
      const std::pair<int, int> channel{r, a.peer};
      const auto in_flight = static_cast<std::size_t>(p.storage.sends_in_flight());
      // Starting is not repeated when the wait makes no progress: `waited` counts sends that have been started.
      if (me.waited == me.sends.size()) {
        me.sends.push_back({channel, static_cast<int>(sent[channel].size())});
        sent[channel].push_back({r, at.output});
      }
      if (me.sends.size() > in_flight && !wait_send(me, me.sends.size() - 1 - in_flight)) return false;
      me.waited = me.sends.size();
    } else if (sc::is_compute(a.kind)) {
      // A pair begins when both parts have their inputs; it ends as one.
      const int parts = a.overlaps_next ? 2 : 1;
      for (int k = me.head; k < me.head + parts; ++k)
        if (!arrived(me, r, p.storage[k].input)) return false;
      // While both run, anything either writes may be garbage to the other, and either may be done first.
      for (int k = me.head; k < me.head + parts && parts == 2; ++k) {
        if (p.storage[k].output >= 0) buffer(p.storage[k].output) = 0;
        if (t[k].kind == kind::forward)
          slots[static_cast<std::size_t>(t[k].stage)].at(static_cast<std::size_t>(p.storage[k].saved)) = {};
      }
      std::vector<int> order;
      for (int k = 0; k < parts; ++k) order.push_back(me.head + k);
      if ((me.head + r) % 2 == 1) std::reverse(order.begin(), order.end());
      for (const int k : order) compute(me, k);
      me.head += parts - 1;
    }
    ++me.head;
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int r = 0; r < t.ranks(); ++r)
      while (step(r)) progress = true;
  }
  for (int r = 0; r < t.ranks(); ++r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    if (me.head != t.offset(r + 1)) return {};
    for (std::size_t k = 0; k < me.sends.size(); ++k)
      if (!wait_send(me, k)) return {};
  }
  return g;
}

}  // namespace emulator
