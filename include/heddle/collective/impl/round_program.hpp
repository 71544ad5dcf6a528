// heddle/collective/impl/round_program.hpp: bodies of heddle/collective/round_program.hpp.
#pragma once

#include <heddle/collective/round_program.hpp>
#include <heddle/collective/rounds.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE round_program::round_program(round_view view, int rank, bool in_place)
    : what_(view.what()),
      ranks_(view.ranks()),
      root_(view.root()),
      blocks_(view.blocks()),
      parts_(view.parts()),
      rank_(rank),
      in_place_(in_place) {
  compile(view);
}

HEDDLE_INLINE int round_program::new_region(state& s, int first, int count) {
  // The free slot that fits best; else the largest.
  int best = -1;
  for (int i = 0; i < static_cast<int>(s.free_slots.size()); ++i) {
    const int size = s.slot_items[index(s.free_slots[index(i)])];
    if (best < 0) {
      best = i;
      continue;
    }
    const int other = s.slot_items[index(s.free_slots[index(best)])];
    if (size >= count ? (other < count || size < other) : (other < count && size > other)) best = i;
  }
  int slot = static_cast<int>(s.slot_items.size());
  if (best >= 0) {
    slot = s.free_slots[index(best)];
    s.free_slots.erase(s.free_slots.begin() + best);
    s.slot_items[index(slot)] = (std::max)(s.slot_items[index(slot)], count);
  } else {
    s.slot_items.push_back(count);
  }
  regions_.push_back({first, count, slot, 0, false});
  s.live.push_back(static_cast<int>(regions_.size()) - 1);
  return s.live.back();
}

HEDDLE_INLINE void round_program::move_to(state& s, int item, place to) {
  place& now = s.at[index(item)];
  if (now.buffer >= place::first_region) --regions_[index(now.buffer - place::first_region)].values;
  now = to;
  if (now.buffer >= place::first_region) ++regions_[index(now.buffer - place::first_region)].values;
}

HEDDLE_INLINE void round_program::free_dead(state& s) {
  std::size_t kept = 0;
  for (const int r : s.live) {
    if (regions_[index(r)].values > 0 || regions_[index(r)].held)
      s.live[kept++] = r;
    else
      s.free_slots.push_back(regions_[index(r)].slot);
  }
  s.live.resize(kept);
}

HEDDLE_INLINE void round_program::compile(round_view view) {
  state s;
  const int items = view.items();
  s.at.resize(index(items));
  s.sent.assign(index(items), 0);
  s.received.assign(index(items), 0);
  s.arrivals_in.assign(index(items), 0);
  if (pairwise())
    for (const round_transfer& t : view.transfers())
      for (const int i : view.items_of(t))
        relays_ = relays_ || t.from != block_of(i) / ranks_ || t.to != block_of(i) % ranks_;
  const int begin = in_place_ || what_ == comm_operation::broadcast ? place::out : place::in;
  for (int i = 0; i < items; ++i) {
    if (!has(i)) continue;
    s.at[index(i)] = {begin, i};
    if (!only_moves() || !gets(i)) continue;
    copy(i, {place::in, i}, {place::out, i});
    s.at[index(i)] = {place::out, i};
  }
  if (what_ == comm_operation::scatter)  // the root sends from its input, where items lie together
    for (int i = 0; i < items; ++i)
      if (has(i)) s.at[index(i)] = {place::in, i};

  const std::span<const round_transfer> all = view.transfers();
  s.last.assign(index(items), -1);
  for (const round_transfer& t : all) {
    if (t.from == rank_) s.messages.push_back({&t, -1});
    if (t.from == rank_ || t.to == rank_)
      for (const int i : view.items_of(t)) s.last[index(i)] = t.round;
  }
  for (std::size_t t = 0; t < all.size();) {
    const int k = all[t].round;
    s.in.clear();
    s.out.clear();
    for (; t < all.size() && all[t].round == k; ++t) {
      if (all[t].from == rank_) s.out.push_back(&all[t]);
      if (all[t].to == rank_) s.in.push_back(&all[t]);
    }
    if (!s.in.empty() || !s.out.empty()) compile_round(view, s, k);
  }

  if (what_ == comm_operation::exclusive_scan && rank_ == 0) {
    for (int i = 0; i < items; ++i) steps_.push_back({.what = round_action::fill, .to = {place::out, i}, .item = i});
  } else {
    for (int i = 0; i < items; ++i)
      if (const place now = s.at[index(i)];
          gets(i) && now.buffer != place::none && !(now == place{place::out, i}) && !(only_moves() && has(i)))
        copy(i, now, {place::out, i});
  }
  slots_ = static_cast<int>(s.slot_items.size());
}

HEDDLE_INLINE void round_program::compile_round(round_view view, state& s, int k) {
  for (const round_transfer* t : s.out)
    for (const int i : view.items_of(*t)) s.sent[index(i)] = k + 1;
  for (const round_transfer* t : s.in)
    for (const int i : view.items_of(*t)) {
      int& n = s.received[index(i)];
      n = s.arrivals_in[index(i)] == k + 1 ? n + 1 : 1;
      s.arrivals_in[index(i)] = k + 1;
    }
  // Where the value that is sent lies in the output, nothing may be written there before it has gone.
  const auto leaving = [&](int i) { return s.sent[index(i)] == k + 1 && s.at[index(i)] == place{place::out, i}; };

  // Where each message goes, and whether what comes of it overwrites something that is being sent.
  struct arriving {
    place at;
    bool direct = false;
  };
  std::vector<arriving> targets;
  bool sends_first = false, works = false;
  const std::size_t leaving_now = s.gone;
  s.gone += s.out.size();  // what arrives now can leave in a later round only
  for (const round_transfer* t : s.in) {
    const std::span<const int> list = view.items_of(*t);
    bool direct = t->how == arrival::store;
    for (std::size_t j = 0; direct && j < list.size(); ++j)
      direct = gets(list[j]) && !leaving(list[j]) && s.received[index(list[j])] == 1 &&
               (j == 0 || follows({place::out, list[j - 1]}, {place::out, list[j]}));
    for (const int i : list)
      if (!direct && gets(i)) {
        works = true;
        sends_first = sends_first || leaving(i);
      }
    works = works || t->how != arrival::store;
    const int first = pooled(list), count = t->items;
    place to{place::out, list[0]};
    if (!direct) {
      const bool passes =
          t->how == arrival::store && std::none_of(list.begin(), list.end(), [&](int i) { return gets(i); });
      to = passes ? on_the_way(view, s, list) : place{};
      if (to.buffer == place::none) to = {place::first_region + new_region(s, first, count), 0};
    }
    targets.push_back({to, direct});
    steps_.push_back({.what = round_action::receive, .peer = t->from, .to = to, .first = first, .count = count});
  }
  for (std::size_t m = 0; m < s.out.size(); ++m) {
    const round_transfer* t = s.out[m];
    const std::span<const int> list = view.items_of(*t);
    const int first = pooled(list), count = t->items;
    for (const int i : list)
      if (s.at[index(i)].buffer == place::none) {
        throw comm_error(text_of(
            {"heddle: the round table sends item ", i, " from rank ", rank_, ", which does not hold it in round ", k}));
      }
    place from = s.at[index(list[0])];
    bool together = true;
    for (std::size_t j = 1; j < list.size(); ++j)
      together = together && follows(s.at[index(list[j - 1])], s.at[index(list[j])]);
    int gathered = s.messages[leaving_now + m].region;
    if (gathered >= 0) regions_[index(gathered)].held = false;
    if (!together) {
      if (gathered < 0) gathered = new_region(s, first, count);
      from = {place::first_region + gathered, 0};
      for (int j = 0; j < count; ++j)
        if (const place now = s.at[index(list[index(j)])], there{from.buffer, j}; !(now == there))
          copy(list[index(j)], now, there);
    }
    steps_.push_back({.what = round_action::send, .peer = t->to, .a = from, .first = first, .count = count});
  }
  // The last send need not be started and waited for where nothing could be done meanwhile; nor a lone receive.
  if (!s.out.empty() && (sends_first || !works)) steps_.back().what = round_action::send_now;
  const bool lone = s.out.empty() && s.in.size() == 1;
  if (lone) steps_.back().what = round_action::receive_now;
  const int started = static_cast<int>(s.out.size()) - (!s.out.empty() && (sends_first || !works) ? 1 : 0);
  sends_ = (std::max)(sends_, started);
  receives_ = (std::max)(receives_, lone ? 0 : static_cast<int>(s.in.size()));
  if (sends_first && started > 0) steps_.push_back({.what = round_action::wait_sends});

  for (std::size_t m = 0; m < s.in.size(); ++m) {
    const round_transfer& t = *s.in[m];
    if (!lone) steps_.push_back({.what = round_action::wait_receive, .peer = static_cast<int>(m)});
    const std::span<const int> list = view.items_of(t);
    for (int j = 0; j < t.items; ++j) {
      const int i = list[index(j)];
      const place home{place::out, i}, own = s.at[index(i)];
      const place came = targets[m].direct ? home : place{targets[m].at.buffer, targets[m].at.at + j};
      place now = came;
      if (t.how != arrival::store && own.buffer != place::none) {
        now = gets(i) ? home : came;
        const bool before = t.how == arrival::fold_before;
        steps_.push_back(
            {.what = round_action::fold, .to = now, .a = before ? came : own, .b = before ? own : came, .item = i});
      } else if (!targets[m].direct && gets(i)) {
        copy(i, came, home);
        now = home;
      }
      move_to(s, i, now);
    }
  }
  if (!sends_first && started > 0) steps_.push_back({.what = round_action::wait_sends});
  const auto forget = [&](const std::vector<const round_transfer*>& messages) {  // what nobody will ask for again
    for (const round_transfer* t : messages)
      for (const int i : view.items_of(*t))
        if (s.last[index(i)] == k && !gets(i)) move_to(s, i, {});
  };
  forget(s.out);
  forget(s.in);
  free_dead(s);
}

HEDDLE_INLINE void round_program::bind(const block_sizes& sizes, bound_rounds& bound) const {
  bound.steps.clear();
  bound.receives = receives_;
  bound.sends = sends_;
  const bool cut = what_ != comm_operation::reduce_scatter && what_ != comm_operation::all_gather &&
                   what_ != comm_operation::gather && what_ != comm_operation::scatter && !pairwise();
  // Piece i of `extent` elements in `pieces`: the first ones are one element longer.
  const auto piece_at = [](std::int64_t extent, int pieces, int i) {
    return extent / pieces * i + (std::min)(extent % pieces, std::int64_t{i});
  };
  const auto before = [](std::span<const std::int64_t> counts, int n) {
    std::int64_t sum = 0;
    for (int i = 0; i < n; ++i) sum += counts[index(i)];
    return sum;
  };
  const auto block_size = [&](int b) -> std::int64_t {
    if (cut) return piece_at(sizes.elements, blocks_, b + 1) - piece_at(sizes.elements, blocks_, b);
    if (sizes.elements >= 0) return sizes.elements;
    if (!pairwise()) return sizes.counts[index(b)];
    if (b / ranks_ == rank_) return sizes.counts[index(b % ranks_)];
    if (b % ranks_ == rank_) return sizes.received[index(b / ranks_)];
    return sizes.all.empty() ? 0 : sizes.all[index(b)];
  };
  // Where a block begins in a buffer of the caller. One side of some collectives holds a single block.
  const auto block_at = [&](int b, bool in) -> std::int64_t {
    if (cut) return piece_at(sizes.elements, blocks_, b);
    const bool scatters = what_ == comm_operation::reduce_scatter || what_ == comm_operation::scatter;
    if (pairwise()) {
      const int n = in ? b % ranks_ : b / ranks_;
      return sizes.elements >= 0 ? n * sizes.elements : before(in ? sizes.counts : sizes.received, n);
    }
    const bool whole = scatters ? in || (in_place_ && what_ == comm_operation::reduce_scatter) : !in;
    if (!whole) return 0;
    return sizes.elements >= 0 ? b * sizes.elements : before(sizes.counts, b);
  };
  const auto item_size = [&](int i) {
    const std::int64_t n = block_size(i / parts_);
    return parts_ == 1 ? n : piece_at(n, parts_, i % parts_ + 1) - piece_at(n, parts_, i % parts_);
  };

  // Scratch memory: each slot as large as the largest of its regions.
  std::vector<std::int64_t> slot(index(slots_) + 1, 0), within(pool_.size());
  for (const region& r : regions_) {
    std::int64_t sum = 0;
    for (int j = 0; j < r.count; ++j) {
      within[index(r.first + j)] = sum;
      sum += item_size(pool_[index(r.first + j)]);
    }
    slot[index(r.slot) + 1] = (std::max)(slot[index(r.slot) + 1], sum);
  }
  for (std::size_t i = 1; i < slot.size(); ++i) slot[i] += slot[i - 1];
  bound.scratch = slot.back();

  const auto address = [&](const place& p, round_buffer& buffer) -> std::int64_t {
    if (p.buffer == place::none) return 0;
    if (p.buffer >= place::first_region) {
      const region& r = regions_[index(p.buffer - place::first_region)];
      buffer = round_buffer::scratch;
      return slot[index(r.slot)] + within[index(r.first + p.at)];
    }
    buffer = p.buffer == place::in ? round_buffer::in : round_buffer::out;
    const std::int64_t at = block_at(block_of(p.at), p.buffer == place::in);
    return parts_ == 1 ? at : at + piece_at(block_size(block_of(p.at)), parts_, p.at % parts_);
  };
  for (const step& from : steps_) {
    round_step s;
    s.what = from.what;
    s.peer = from.peer;
    s.to = address(from.to, s.to_in);
    s.a = address(from.a, s.a_in);
    s.b = address(from.b, s.b_in);
    for (int j = 0; j < from.count; ++j) s.count += item_size(pool_[index(from.first + j)]);
    const bool local = s.what == round_action::fold || s.what == round_action::copy || s.what == round_action::fill;
    if (local) {
      s.count = item_size(from.item);
      if (s.count == 0) continue;
      if (!bound.steps.empty()) {  // pieces that lie together become one
        round_step& last = bound.steps.back();
        if (last.what == s.what && last.to_in == s.to_in && last.a_in == s.a_in && last.b_in == s.b_in &&
            last.to + last.count == s.to && (s.what == round_action::fill || last.a + last.count == s.a) &&
            (s.what != round_action::fold || last.b + last.count == s.b)) {
          last.count += s.count;
          continue;
        }
      }
    }
    bound.steps.push_back(s);
  }
}

}  // namespace heddle::inline v0
