// tests/schedule/emulator.hpp: runs tables on symbolic data, to compare what they compute with serial runs.
#pragma once

#include <heddle/schedule/lower/plan.hpp>

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

/// The weight gradient of each stage: one contribution per microbatch, in any order. Of a forward-only table: what the
/// last stages of its microbatches put out.
using gradients = std::vector<std::multiset<value>>;

/// What one rank computes that runs one microbatch after the other.
inline gradients serial(sc::table_view t) {
  gradients g(static_cast<std::size_t>(t.stages()));
  for (int i = 0; i < t.microbatches(); ++i) {
    std::vector<std::pair<int, value>> kept;
    value x = model_input(i);
    int s = 0;
    while (!t.handles(s, i) || t.previous(s, i) >= 0) ++s;
    for (; s >= 0; s = t.next(s, i)) {
      kept.emplace_back(s, saved(s, i, x));
      x = forward(s, i, x);
    }
    if (t.forward_only()) {
      g[static_cast<std::size_t>(kept.back().first)].insert(x);
      continue;
    }
    value dy = loss_gradient(kept.back().second);
    for (auto at = kept.rbegin(); at != kept.rend(); ++at) {
      g[static_cast<std::size_t>(at->first)].insert(backward_weight(at->first, with_gradient(at->second, dy)));
      dy = backward_input(at->first, at->second, dy);
    }
  }
  return g;
}
/// The same for one chain of stages.
inline gradients serial(int stages, int microbatches) {
  const std::vector<int> ranks(static_cast<std::size_t>(stages), 0), offsets{0, 0};
  return serial(sc::table_view({}, offsets, ranks, microbatches));
}

/// Runs a table with data kept per (stage, microbatch). Messages carry no tags: a receive takes the next message of its
/// rank pair, whatever it is. Nothing if the lists do not finish, a computation finds no operand, weights or all of its
/// activations, or both parts of a pair need or write one thing; reductions and steps must find the complete gradient.
/// Knows nothing of the validator.
inline std::optional<gradients> run(sc::table_view t, sc::transfers mode) {
  using cell = std::pair<int, int>;
  using channel = std::pair<int, int>;
  struct activation {
    value kept = 0;
    bool whole = true;  // false: to be recomputed
  };
  struct rank_state {
    int head = 0;
    std::map<cell, value> input, gradient, output, input_gradient, both;
    std::map<cell, activation> kept, stored;
    std::map<std::pair<cell, bool>, std::pair<channel, int>> posted;  // receives under way: of which message
    std::vector<std::pair<channel, int>> group;                       // transfers that have been started together
    int group_end = -1;
  };
  std::vector<rank_state> ranks(static_cast<std::size_t>(t.ranks()));
  std::map<channel, std::vector<value>> sent;
  std::map<channel, int> received;
  gradients g(static_cast<std::size_t>(t.stages()));
  std::set<int> closed, stepped, sharded, gathered;
  std::set<cell> recomputed;
  const bool placed = t.has_transfers();
  const auto whole = serial(t);
  for (int r = 0; r < t.ranks(); ++r) ranks[static_cast<std::size_t>(r)].head = t.offset(r);
  for (const sc::action& a : t.actions()) {
    if (a.kind == kind::unshard || a.kind == kind::reshard) sharded.insert(a.stage);
    if (a.kind == kind::recompute) recomputed.insert({a.stage, a.microbatch});
  }

  const auto find = [](const auto& map, cell key) -> value {
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
  // The operand of F, B or I, and whether to wait for it; 0 if it will never be there.
  struct operand {
    value what = 0;
    bool wait = false;
  };
  const auto fetch = [&](int r, const sc::action& a) -> operand {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    const cell here{a.stage, a.microbatch};
    const bool up = a.kind == kind::forward;
    const int from = up ? t.previous(a.stage, a.microbatch) : t.next(a.stage, a.microbatch);
    if (from < 0) {
      if (up) return {model_input(a.microbatch)};
      const auto kept = me.kept.find(here);
      return {kept == me.kept.end() ? 0 : loss_gradient(kept->second.kept)};
    }
    const auto posted = me.posted.find({here, up});
    if (posted != me.posted.end()) {
      const auto& [from_channel, message] = posted->second;
      if (static_cast<int>(sent[from_channel].size()) <= message) return {0, true};
      return {sent[from_channel][static_cast<std::size_t>(message)]};
    }
    const value delivered = find(up ? me.input : me.gradient, here);
    if (delivered != 0) return {delivered};
    // Stages of one rank, and all stages while nothing is placed, pass data on directly.
    const int producer = t.rank_of(from);
    if (placed && producer != r) return {0};
    const rank_state& other = ranks[static_cast<std::size_t>(producer)];
    const value made = find(up ? other.output : other.input_gradient, {from, a.microbatch});
    return {made, made == 0 && producer != r};
  };
  const auto compute = [&](rank_state& me, const sc::action& a, value in) {
    const cell here{a.stage, a.microbatch};
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind != kind::backward_weight && (in == 0 || (sharded.count(a.stage) && !gathered.count(a.stage))))
      broken = true;
    if (a.kind == kind::forward) {
      me.kept[here] = {saved(a.stage, a.microbatch, in), !recomputed.count(here)};
      me.output[here] = forward(a.stage, a.microbatch, in);
      if (t.forward_only() && t.next(a.stage, a.microbatch) < 0) g[stage].insert(me.output[here]);
      return;
    }
    const activation kept = me.kept.count(here) ? me.kept[here] : activation{};
    if (kept.kept == 0 || !kept.whole) broken = true;
    if (a.kind != kind::backward_weight) {
      me.input_gradient[here] = backward_input(a.stage, kept.kept, in);
      me.both[here] = with_gradient(kept.kept, in);
    }
    if (a.kind == kind::backward_input) return;
    if (find(me.both, here) == 0 || closed.count(a.stage)) broken = true;
    g[stage].insert(backward_weight(a.stage, me.both[here]));
    me.kept.erase(here);
  };
  // Starts a transfer; the message of the channel it is.
  const auto start = [&](int r, const sc::action& a) -> std::pair<channel, int> {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    const channel c = sc::is_send(a.kind) ? channel{r, a.peer} : channel{a.peer, r};
    if (!sc::is_send(a.kind)) {
      me.posted[{{a.stage, a.microbatch}, a.kind == kind::recv_forward}] = {c, received[c]};
      return {c, received[c]++};
    }
    sent[c].push_back(outgoing(me, a));
    return {c, static_cast<int>(sent[c].size()) - 1};
  };
  const auto step = [&](int r) {
    rank_state& me = ranks[static_cast<std::size_t>(r)];
    if (me.head == t.offset(r + 1)) return false;
    const sc::action& a = t[me.head];
    const cell here{a.stage, a.microbatch};
    if (sc::is_transfer(a.kind)) {
      if (a.peer < 0 || a.peer >= t.ranks()) return broken = true, false;
      if (mode == sc::transfers::rendezvous) {
        rank_state& peer = ranks[static_cast<std::size_t>(a.peer)];
        if (a.peer == r || peer.head == t.offset(a.peer + 1)) return false;
        const sc::action& b = t[peer.head];
        if (!sc::is_transfer(b.kind) || b.peer != r || sc::is_send(a.kind) == sc::is_send(b.kind)) return false;
        sc::is_send(a.kind) ? deliver(peer, b, outgoing(me, a)) : deliver(me, a, outgoing(peer, b));
        ++peer.head;
      } else if (mode == sc::transfers::grouped) {
        const bool started = me.group_end > me.head;
        if (!started) {
          int k = me.head;
          for (me.group.clear(); k < t.offset(r + 1) && sc::is_transfer(t[k].kind); ++k) {
            if (t[k].peer < 0 || t[k].peer >= t.ranks()) return broken = true, false;
            me.group.push_back(start(r, t[k]));
          }
          me.group_end = k;
        }
        for (const auto& [c, message] : me.group)
          if (static_cast<int>(sent[c].size()) <= message || received[c] <= message) return !started;
        me.head = me.group_end;
        return true;
      } else if (mode == sc::transfers::buffered && sc::is_recv(a.kind)) {
        const channel c{a.peer, r};
        if (static_cast<int>(sent[c].size()) <= received[c]) return false;
        deliver(me, a, sent[c][static_cast<std::size_t>(received[c]++)]);
      } else {
        start(r, a);
      }
    } else if (sc::is_compute(a.kind)) {
      // A pair begins when both parts have their operands.
      const int parts = a.overlaps_next && me.head + 1 < t.offset(r + 1) ? 2 : 1;
      operand in[2];
      for (int k = 0; k < parts; ++k) {
        const sc::action& part = t[me.head + k];
        if (!sc::is_compute(part.kind) || (k == 1 && part.overlaps_next)) return broken = true, false;
        if (part.kind != kind::backward_weight) in[k] = fetch(r, part);
        if (in[k].wait) return false;
        if (k == 1 && cell{part.stage, part.microbatch} == here) broken = true;
        if (k == 1 && part.stage == a.stage && a.kind != kind::forward && a.kind != kind::backward_input &&
            part.kind != kind::forward && part.kind != kind::backward_input)
          broken = true;  // two sums into one place
      }
      if (a.overlaps_next && parts == 1) broken = true;
      for (int k = 0; k < parts; ++k) compute(me, t[me.head + k], in[k].what);
      me.head += parts - 1;
    } else if (a.kind == kind::recompute) {
      if (!me.kept.count(here) || (sharded.count(a.stage) && !gathered.count(a.stage))) broken = true;
      me.kept[here].whole = true;
    } else if (a.kind == kind::offload) {
      if (!me.kept.count(here)) broken = true;
      me.stored[here] = me.kept[here];
      me.kept.erase(here);
    } else if (a.kind == kind::reload) {
      if (!me.stored.count(here)) broken = true;
      me.kept[here] = me.stored[here];
    } else if (a.kind == kind::unshard) {
      gathered.insert(a.stage);
      if (stepped.count(a.stage)) broken = true;
    } else if (a.kind == kind::reshard) {
      gathered.erase(a.stage);
    } else {
      if (a.kind == kind::reduce_gradient) closed.insert(a.stage);
      if (a.kind == kind::optimizer_step) stepped.insert(a.stage);
      if (t.rank_of(a.stage) != r) broken = true;
      if (g[static_cast<std::size_t>(a.stage)] != whole[static_cast<std::size_t>(a.stage)]) broken = true;
    }
    ++me.head;
    return true;
  };
  for (bool progress = true; progress && !broken;) {
    progress = false;
    for (int r = 0; r < t.ranks() && !broken; ++r)
      while (!broken && step(r)) progress = true;
  }
  if (broken || !gathered.empty()) return {};  // weights that stay would be old in the next step
  for (int r = 0; r < t.ranks(); ++r)
    if (ranks[static_cast<std::size_t>(r)].head != t.offset(r + 1)) return {};
  if (mode != sc::transfers::rendezvous)
    for (const auto& [c, messages] : sent)
      if (static_cast<int>(messages.size()) != received[c]) return {};
  return g;
}

/// Runs a plan as its contract describes, with slots and buffers only, as badly as the contract allows: a send reads
/// its buffer as late as it may, a posted receive spoils its buffer at once and fills it when it is waited for, and a send
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
    bool whole = true;
  };
  std::map<std::pair<int, int>, slot> stored;
  std::set<std::pair<int, int>> recomputed;
  for (const sc::action& a : t.actions())
    if (a.kind == kind::recompute) recomputed.insert({a.stage, a.microbatch});
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
      place = {saved(a.stage, a.microbatch, x), 0, !recomputed.count({a.stage, a.microbatch})};
      if (at.output >= 0) buffer(at.output) = forward(a.stage, a.microbatch, x);
      if (t.forward_only()) place = {};
      if (t.forward_only() && t.next(a.stage, a.microbatch) < 0) g[stage].insert(forward(a.stage, a.microbatch, x));
    } else {
      if (!place.whole) place = {};
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
    } else if (sc::is_of_saved(a.kind)) {
      slot& place = slots[static_cast<std::size_t>(a.stage)].at(static_cast<std::size_t>(at.saved));
      if (a.kind == kind::recompute) place.whole = true;
      if (a.kind == kind::offload) stored[{a.stage, a.microbatch}] = std::exchange(place, slot{});
      if (a.kind == kind::reload) place = stored[{a.stage, a.microbatch}];
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
