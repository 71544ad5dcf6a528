// heddle/context/impl/program.hpp: bodies of heddle/context/program.hpp.
#pragma once

#include <heddle/context/program.hpp>
#include <heddle/context/slices_between.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace heddle::inline v0 {
namespace detail {

class context_lowering {
 public:
  context_lowering(const context_table& t, int rank)
      : t_(t), rounds_(t.rounds.view()), at_(static_cast<std::size_t>(rounds_.items()), context_range{-1, 0, 0}) {
    p_.rank = rank;
    p_.pass = t.pass;
    p_.parts = t.parts();
    p_.rows = t.cut.rows[static_cast<std::size_t>(rank)];
    p_.rounds.resize(static_cast<std::size_t>(t.round_count()));
    for (int kind = 0; kind < 4; ++kind)
      for (int i = 0; i < p_.parts; ++i) p_.buffers.push_back({static_cast<context_kind>(kind), i, p_.rows, -1, 0, 0});
    for (int x = 0; x < t.pieces(); ++x)
      for (int i = 0; i < p_.parts && t.cut[x].home == rank; ++i)
        for (int kind = 0; kind < 4; ++kind)
          at(t.item_of(static_cast<context_kind>(kind), x, i)) = {kind * p_.parts + i, t.cut[x].row, t.cut[x].count};
    own_ = static_cast<int>(p_.buffers.size());
    // Who reads an operand when, to attend it or to send it on.
    readers_.resize(static_cast<std::size_t>(2 * t.pieces() * p_.parts));
    for (const context_task& k : t.tasks) {
      readers(t.item_of(context_kind::queries, k.queries, k.part)).push_back({k.rank, k.round});
      readers(t.item_of(context_kind::keys, k.keys, k.part)).push_back({k.rank, k.round});
    }
    for (const round_transfer& m : rounds_.transfers())
      for (const int item : rounds_.items_of(m))
        if (!is_partial_result(t.kind_of(item))) readers(item).push_back({m.from, m.round});
  }

  context_program run() {
    const std::span<const round_transfer> messages = rounds_.transfers();
    std::size_t m = 0, k = 0;
    for (round_ = 0; round_ < static_cast<int>(p_.rounds.size()); ++round_) {
      std::vector<const round_transfer*> sends, operands, partials;
      for (; m < messages.size() && messages[m].round == round_; ++m) {
        if (messages[m].from == p_.rank) sends.push_back(&messages[m]);
        if (messages[m].to == p_.rank)
          (messages[m].how == arrival::store ? operands : partials).push_back(&messages[m]);
      }
      const std::size_t first = k;
      while (k < t_.tasks.size() && t_.tasks[k].round == round_) ++k;
      for (const round_transfer* s : sends) send(*s);
      attend(std::span(t_.tasks).subspan(first, k - first));
      receive_operands(operands);
      for (const round_transfer* s : partials) receive_partials(*s);
    }
    share_memory();
    return static_cast<context_program&&>(p_);
  }

 private:
  struct reader {
    int rank, round;
  };
  std::vector<reader>& readers(int item) { return readers_[static_cast<std::size_t>(item)]; }
  // The round before which an operand that is sent now has to have arrived.
  int needed_by(int rank, int item) {
    int first = static_cast<int>(p_.rounds.size());
    for (const reader& r : readers(item))
      if (r.rank == rank && r.round > round_) first = (std::min)(first, r.round);
    return first;
  }
  bool is_overtaken(const round_transfer& m) {
    bool later = true;
    for (const int item : rounds_.items_of(m))
      later = later && !is_partial_result(t_.kind_of(item)) && needed_by(m.to, item) > round_ + 1;
    return later;
  }
  context_range& at(int item) { return at_[static_cast<std::size_t>(item)]; }
  context_round& here() { return p_.rounds[static_cast<std::size_t>(round_)]; }
  context_buffer& buffer(int b) { return p_.buffers[static_cast<std::size_t>(b)]; }
  int new_buffer(context_kind what, int part, std::int64_t rows) {
    p_.buffers.push_back({what, part, rows, -1, round_, round_});
    mirrors_.resize(p_.buffers.size(), -1);
    first_read_.resize(p_.buffers.size(), -1);
    return static_cast<int>(p_.buffers.size()) - 1;
  }
  void read(int b) {
    if (b < own_) return;
    buffer(b).last_round = round_;
    int& first = first_read_[static_cast<std::size_t>(b)];
    if (first < 0) first = round_;
  }
  // Adds a range, to the one before where it continues that.
  static void append(std::vector<context_transfer>& list, const context_range& from, int to, std::int64_t to_row) {
    if (!list.empty()) {
      context_transfer& last = list.back();
      if (last.from.buffer == from.buffer && last.to == to && last.from.row + last.from.rows == from.row &&
          last.to_row + last.from.rows == to_row) {
        last.from.rows += from.rows;
        return;
      }
    }
    list.push_back({from, to, to_row});
  }
  std::int64_t rows_of(const round_transfer& m) const {
    std::int64_t rows = 0;
    for (const int item : rounds_.items_of(m)) rows += t_.cut[t_.piece_of(item)].count;
    return rows;
  }

  void send(const round_transfer& m) {
    const std::span<const int> items = rounds_.items_of(m);
    const context_kind kind = t_.kind_of(items[0]);
    std::vector<context_transfer> parts;  // as if they were packed
    std::int64_t row = 0;
    int needed_in = static_cast<int>(p_.rounds.size());
    const bool overtaken = is_overtaken(m);
    for (const int item : items) {
      const context_range from = at(item);
      read(from.buffer);
      needed_in = (std::min)(needed_in, is_partial_result(kind) ? round_ : needed_by(m.to, item));
      append(parts, from, -1, row);
      row += from.rows;
      if (is_partial_result(kind)) {
        at(item) = {-1, 0, 0};
        for (int& mirror : mirrors_)  // what is made from now on lies elsewhere
          if (mirror == from.buffer) mirror = -1;
      }
    }
    context_range rows = parts[0].from;
    if (parts.size() > 1 || rows.buffer < own_) {
      rows = {new_buffer(kind, t_.part_of(items[0]), row), 0, row};
      for (context_transfer& c : parts) {
        c.to = rows.buffer;
        here().packs.push_back(c);
      }
    }
    // It may be on its way until the receiver needs it, and its rows stay as they are so long.
    context_buffer& sent = buffer(rows.buffer);
    sent.last_round = (std::max)(sent.last_round, needed_in - 1);
    here().sends.push_back({m.to, rows, (std::max)(round_, needed_in == round_ + 1 ? round_ : needed_in), overtaken});
  }

  // All that comes of one kind and part of the heads, and is first read in the same round, lies in one buffer.
  void receive_operands(const std::vector<const round_transfer*>& messages) {
    std::vector<char> done(messages.size(), 0);
    std::vector<context_range> where(messages.size());
    std::vector<int> read_in;
    for (const round_transfer* m : messages) {
      int first = static_cast<int>(p_.rounds.size());
      for (const int item : rounds_.items_of(*m)) first = (std::min)(first, needed_by(p_.rank, item));
      read_in.push_back(first);
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (done[i] != 0) continue;
      const int item = rounds_.items_of(*messages[i])[0];
      std::int64_t rows = 0;
      const int b = new_buffer(t_.kind_of(item), t_.part_of(item), 0);
      for (std::size_t j = i; j < messages.size(); ++j) {
        const int other = rounds_.items_of(*messages[j])[0];
        if (t_.kind_of(other) != t_.kind_of(item) || t_.part_of(other) != t_.part_of(item) || read_in[i] != read_in[j])
          continue;
        done[j] = 1;
        where[j] = {b, rows, rows_of(*messages[j])};
        rows += where[j].rows;
      }
      buffer(b).rows = rows;
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      here().receives.push_back({messages[i]->from, where[i], round_, is_overtaken(*messages[i])});
      std::int64_t row = where[i].row;
      for (const int item : rounds_.items_of(*messages[i])) {
        const std::int64_t count = t_.cut[t_.piece_of(item)].count;
        at(item) = {where[i].buffer, row, count};
        row += count;
      }
    }
  }

  void receive_partials(const round_transfer& m) {
    const std::span<const int> items = rounds_.items_of(m);
    const std::int64_t rows = rows_of(m);
    const int b = new_buffer(t_.kind_of(items[0]), t_.part_of(items[0]), rows);
    here().receives.push_back({m.from, {b, 0, rows}, round_});
    if (add_late(items, b)) return;
    // Beside what this rank has made of operands that lie together there is room for what it has not made.
    bool nowhere = false;
    for (const int item : items) {
      context_range& own = at(item);
      if (own.buffer >= 0) continue;
      const context_kind operand =
          t_.kind_of(item) == context_kind::of_keys ? context_kind::keys : context_kind::queries;
      const context_range with = at(t_.item_of(operand, t_.piece_of(item), t_.part_of(item)));
      const int mirror = with.buffer < 0 ? -1 : mirrors_[static_cast<std::size_t>(with.buffer)];
      if (mirror >= 0)
        own = {mirror, with.row, with.rows};
      else
        nowhere = true;
    }
    // Where there is none the message is the partial result, and what was made here is folded into it, so that all of
    // it is sent on in one piece.
    std::int64_t row = 0;
    for (const int item : items) {
      const std::int64_t count = t_.cut[t_.piece_of(item)].count;
      context_range& own = at(item);
      const bool keep = nowhere && (own.buffer < 0 || own.buffer >= own_);
      if (own.buffer >= 0) {
        read(own.buffer);
        read(b);
        if (keep)
          append(here().folds, own, b, row);
        else
          append(here().folds, {b, row, count}, own.buffer, own.row);
      }
      if (keep) own = {b, row, count};
      row += count;
    }
  }

  // If the last call alone has made partial results of these items, and of no others, in this round, they are added to what comes.
  bool add_late(std::span<const int> items, int b) {
    if (p_.pass != context_pass::backward || here().calls.empty()) return false;
    int mirror = -1;
    for (const int item : items)
      if (at(item).buffer >= 0) mirror = mirror < 0 || mirror == at(item).buffer ? at(item).buffer : own_ - 1;
    if (mirror < own_ || buffer(mirror).first_round != round_) return false;
    for (const context_transfer& f : here().folds)
      if (f.to == mirror || f.from.buffer == mirror) return false;
    const bool keys = t_.kind_of(items[0]) == context_kind::of_keys;
    const auto made = [&](context_call& c) -> std::vector<context_transfer>& { return keys ? c.of_keys : c.of_queries; };
    std::vector<context_transfer>& results = made(here().calls.back());
    std::int64_t left = 0;
    for (std::size_t i = 0; i < here().calls.size(); ++i)
      for (const context_transfer& f : made(here().calls[i])) {
        if (f.to != mirror) continue;
        if (i + 1 < here().calls.size()) return false;
        left += f.from.rows;
      }
    std::vector<context_transfer> late;
    std::int64_t row = 0;
    for (const int item : items) {
      const context_range& own = at(item);
      for (const context_transfer& f : results) {
        if (own.buffer != mirror || f.to != mirror) continue;
        const std::int64_t begin = (std::max)(own.row, f.to_row), end = (std::min)(own.row + own.rows, f.to_row + f.from.rows);
        if (begin >= end) continue;
        append(late, {0, f.from.row + begin - f.to_row, end - begin}, b, row + begin - own.row);
        left -= end - begin;
      }
      row += t_.cut[t_.piece_of(item)].count;
    }
    if (left != 0) return false;
    std::erase_if(results, [&](const context_transfer& f) { return f.to == mirror; });
    std::erase(here().fills, mirror);
    for (int& m : mirrors_)
      if (m == mirror) m = -1;
    buffer(mirror).rows = 0;
    std::vector<context_transfer>& all = keys ? here().late_of_keys : here().late_of_queries;
    all.insert(all.end(), late.begin(), late.end());
    read(b);
    row = 0;
    for (const int item : items) {
      const std::int64_t count = t_.cut[t_.piece_of(item)].count;
      at(item) = {b, row, count};
      row += count;
    }
    return true;
  }

  void attend(std::span<const context_task> tasks) {
    struct pair {
      int queries, keys;
    };
    std::vector<pair> pairs;
    std::vector<std::vector<const context_task*>> of_pair;
    for (const context_task& k : tasks) {
      if (k.rank != p_.rank) continue;
      const int q = at(t_.item_of(context_kind::queries, k.queries, k.part)).buffer;
      const int y = at(t_.item_of(context_kind::keys, k.keys, k.part)).buffer;
      std::size_t i = 0;
      while (i < pairs.size() && (pairs[i].queries != q || pairs[i].keys != y)) ++i;
      if (i == pairs.size()) {
        pairs.push_back({q, y});
        of_pair.emplace_back();
      }
      of_pair[i].push_back(&k);
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) call(pairs[i].queries, pairs[i].keys, of_pair[i]);
  }

  void call(int queries, int keys, const std::vector<const context_task*>& tasks) {
    read(queries);
    read(keys);
    context_call c;
    std::vector<int> q_items, k_items;
    for (const context_task* k : tasks) {
      const int q = t_.item_of(context_kind::queries, k->queries, k->part);
      const int y = t_.item_of(context_kind::keys, k->keys, k->part);
      slices_between(t_.cut.documents[static_cast<std::size_t>(t_.cut[k->queries].document)].mask, t_.cut[k->queries],
                     t_.cut[k->keys], at(q).row, at(y).row, c.slices);
      q_items.push_back(t_.item_of(context_kind::of_queries, k->queries, k->part));
      k_items.push_back(t_.item_of(context_kind::of_keys, k->keys, k->part));
    }
    std::int64_t q0 = c.slices[0].q_begin, q1 = c.slices[0].q_end, k0 = c.slices[0].k_begin, k1 = c.slices[0].k_end;
    for (const compute::attention_slice& s : c.slices) {
      q0 = (std::min)(q0, s.q_begin);
      q1 = (std::max)(q1, s.q_end);
      k0 = (std::min)(k0, s.k_begin);
      k1 = (std::max)(k1, s.k_end);
    }
    for (compute::attention_slice& s : c.slices) {
      s.q_begin -= q0;
      s.q_end -= q0;
      s.k_begin -= k0;
      s.k_end -= k0;
    }
    c.queries = {queries, q0, q1 - q0};
    c.keys = {keys, k0, k1 - k0};
    results(context_kind::of_queries, context_kind::queries, q_items, c.queries, c.of_queries);
    if (p_.pass == context_pass::backward)
      results(context_kind::of_keys, context_kind::keys, k_items, c.keys, c.of_keys);
    here().calls.push_back(static_cast<context_call&&>(c));
  }

  // Where the results of a call are folded: partial results of rows that came lie as those do.
  void results(context_kind what, context_kind operand, std::vector<int>& items, const context_range& rows,
               std::vector<context_transfer>& out) {
    std::sort(items.begin(), items.end(), [&](int a, int b) {
      const auto row = [&](int item) { return at(t_.item_of(operand, t_.piece_of(item), t_.part_of(item))).row; };
      return row(a) < row(b);
    });
    items.erase(std::unique(items.begin(), items.end()), items.end());
    for (const int item : items) {
      const context_range from = at(t_.item_of(operand, t_.piece_of(item), t_.part_of(item)));
      if (at(item).buffer < 0) {
        int mirror = mirrors_[static_cast<std::size_t>(rows.buffer)];
        if (mirror < 0) {
          mirror = new_buffer(what, t_.part_of(item), buffer(rows.buffer).rows);
          mirrors_[static_cast<std::size_t>(rows.buffer)] = mirror;
          here().fills.push_back(mirror);
        }
        at(item) = {mirror, from.row, from.rows};
      }
      const context_range to = at(item);
      read(to.buffer);
      const std::int64_t begin = (std::max)(from.row, rows.row),
                         end = (std::min)(from.row + from.rows, rows.row + rows.rows);
      if (begin < end) append(out, {0, begin - rows.row, end - begin}, to.buffer, to.row + begin - from.row);
    }
  }

  // Buffers that do not live in the same round share memory.
  void share_memory() {
    for (context_round& r : p_.rounds)
      for (context_message& m : r.receives)
        m.needed_in = (std::max)(m.needed_in, first_read_[static_cast<std::size_t>(m.rows.buffer)]);
    std::vector<int> busy_until;
    for (int b = own_; b < static_cast<int>(p_.buffers.size()); ++b) {  // in the order of their first rounds
      context_buffer& own = buffer(b);
      if (own.rows == 0) {  // nothing is there
        own.slot = 0;
        continue;
      }
      int found = -1;
      for (int s = 0; s < static_cast<int>(p_.slots.size()); ++s) {
        const context_slot& slot = p_.slots[static_cast<std::size_t>(s)];
        if (slot.what != own.what || busy_until[static_cast<std::size_t>(s)] >= own.first_round) continue;
        if (found < 0 || slot.rows > p_.slots[static_cast<std::size_t>(found)].rows) found = s;
      }
      if (found < 0) {
        found = static_cast<int>(p_.slots.size());
        p_.slots.push_back({own.what, 0});
        busy_until.push_back(-1);
      }
      own.slot = found;
      context_slot& slot = p_.slots[static_cast<std::size_t>(found)];
      slot.rows = (std::max)(slot.rows, own.rows);
      busy_until[static_cast<std::size_t>(found)] = own.last_round;
    }
  }

  const context_table& t_;
  round_view rounds_;
  std::vector<std::vector<reader>> readers_{};  // of each operand
  std::vector<context_range> at_;               // of each item that is here
  context_program p_{};
  int own_ = 0;
  int round_ = 0;
  std::vector<int> mirrors_ = std::vector<int>(static_cast<std::size_t>(4 * t_.parts()), -1);
  std::vector<int> first_read_ = std::vector<int>(static_cast<std::size_t>(4 * t_.parts()), -1);
};

}  // namespace detail

HEDDLE_INLINE context_program lower_context(const context_table& table, int rank) {
  return detail::context_lowering(table, rank).run();
}

}  // namespace heddle::inline v0
