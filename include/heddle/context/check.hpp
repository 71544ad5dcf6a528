// heddle/context/check.hpp: checks that a context table computes attention.
#pragma once

#include <heddle/context/carriers.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/table.hpp>
#include <heddle/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {

/// What can be wrong with a context table.
enum class context_problem : std::uint8_t {
  none,
  malformed,  ///< blocks, parts or ranks of the rounds are not those of the pieces
  bad_rank,   ///< a message from or to a rank that does not exist, or from a rank to itself; a task of such a rank
  bad_item,   ///< a message without items, or with one that does not exist; a task with a piece or part that does not
              ///< exist
  unsorted,   ///< a message or a task of a round that is over, or of a negative one
  repeated,   ///< a message carries an item twice
  mixed,      ///< a message carries operands and partial results, or several kinds
  wrong_arrival,    ///< an operand that is folded, or a partial result that is stored
  not_held,         ///< a rank sends an operand it does not have
  nothing_to_give,  ///< a rank gives back a partial result it does not have: it made none, or gave it away
  operand_missing,  ///< a rank attends with queries or keys it does not have
  pair_missing,     ///< nobody attends a pair of pieces that see each other
  pair_twice,       ///< a pair is attended twice
  pair_unseen,      ///< a pair is attended that does not see each other
  lost,             ///< a partial result ends on a rank that is not its home
  wrong_pass,       ///< a forward table that carries gradients of keys
};

/// The first fault of a context table; `ok()` if there is none. -1 where a number does not apply.
struct context_fault {
  context_problem what = context_problem::none;
  context_pass pass = context_pass::forward;
  int round = -1;
  int from = -1;  ///< the sender of the message
  int to = -1;    ///< its receiver
  int rank = -1;  ///< who attends, or where a partial result ends
  context_kind kind = context_kind::keys;
  int piece = -1;  ///< the piece of the item; of a pair that of the queries
  int keys = -1;   ///< of a pair the piece of the keys
  int part = -1;
  context_piece at{};       ///< the piece itself
  context_piece at_keys{};  ///< of a pair that of the keys

  constexpr bool ok() const noexcept { return what == context_problem::none; }
};

/// One sentence that names the round, the ranks and the piece, and what is wrong.
HEDDLE_INLINE std::string to_string(const context_fault& f);

namespace detail {

class context_checker {
 public:
  constexpr explicit context_checker(const context_table& t) : t_(t), rounds_(t.rounds.view()) {}

  constexpr context_fault run() {
    if (const context_fault f = header(); !f.ok()) return f;
    begin();
    const std::span<const round_transfer> messages = rounds_.transfers();
    std::size_t m = 0, k = 0;
    for (int round = 0; m < messages.size() || k < t_.tasks.size(); ++round) {
      if (m < messages.size() && messages[m].round < round) return fault(context_problem::unsorted, messages[m]);
      if (k < t_.tasks.size() && t_.tasks[k].round < round) return fault(context_problem::unsorted, t_.tasks[k]);
      const std::size_t m_begin = m, k_begin = k;
      while (m < messages.size() && messages[m].round == round) ++m;
      while (k < t_.tasks.size() && t_.tasks[k].round == round) ++k;
      // All leave before anything happens, all arrive when everything has.
      for (std::size_t i = m_begin; i < m; ++i)
        if (const context_fault f = leave(messages[i], static_cast<int>(i)); !f.ok()) return f;
      for (std::size_t i = k_begin; i < k; ++i)
        if (const context_fault f = attend(t_.tasks[i]); !f.ok()) return f;
      for (std::size_t i = m_begin; i < m; ++i)
        for (const int item : rounds_.items_of(messages[i])) held(messages[i].to, item) = 1;
    }
    return results();
  }

 private:
  constexpr context_fault fault(context_problem what) const {
    context_fault f;
    f.what = what;
    f.pass = t_.pass;
    return f;
  }
  constexpr void name(context_fault& f, int item) const {
    f.kind = t_.kind_of(item);
    f.piece = t_.piece_of(item);
    f.part = t_.part_of(item);
    f.at = t_.cut[f.piece];
  }
  constexpr context_fault fault(context_problem what, const round_transfer& m, int item = -1) const {
    context_fault f = fault(what);
    f.round = m.round;
    f.from = m.from;
    f.to = m.to;
    if (item >= 0 && item < rounds_.items()) name(f, item);
    return f;
  }
  constexpr context_fault fault(context_problem what, const context_task& k,
                                context_kind kind = context_kind::queries) const {
    context_fault f = fault(what);
    f.round = k.round;
    f.rank = k.rank;
    f.kind = kind;
    f.piece = k.queries;
    f.keys = k.keys;
    f.part = k.part;
    if (f.piece >= 0 && f.piece < t_.pieces()) f.at = t_.cut[f.piece];
    if (f.keys >= 0 && f.keys < t_.pieces()) f.at_keys = t_.cut[f.keys];
    return f;
  }

  constexpr context_fault header() const {
    const bool fits = rounds_.ranks() == t_.cut.ranks && rounds_.parts() >= 1 &&
                      rounds_.blocks() == 4 * (t_.pieces() > 1 ? t_.pieces() : 1) &&
                      t_.cut.first_piece.size() == t_.cut.documents.size() + 1 &&
                      t_.cut.first_piece.back() == t_.pieces();
    return fits ? context_fault{} : fault(context_problem::malformed);
  }

  constexpr void begin() {
    items_ = static_cast<std::size_t>(rounds_.items());
    held_.assign(static_cast<std::size_t>(t_.ranks()) * items_, 0);
    last_message_.assign(items_, -1);
    for (int x = 0; x < t_.pieces(); ++x)
      for (int i = 0; i < t_.parts(); ++i)
        for (const context_kind kind : {context_kind::keys, context_kind::queries})
          held(t_.cut[x].home, t_.item_of(kind, x, i)) = 1;
    // Pairs of one document, document after document.
    pair_begin_.assign(1, 0);
    for (std::size_t d = 0; d < t_.cut.documents.size(); ++d) {
      const auto n = static_cast<std::size_t>(t_.cut.first_piece[d + 1] - t_.cut.first_piece[d]);
      pair_begin_.push_back(pair_begin_.back() + n * n * static_cast<std::size_t>(t_.parts()));
    }
    attended_.assign(pair_begin_.back(), 0);
  }

  constexpr bool has_rank(int r) const { return r >= 0 && r < t_.ranks(); }

  constexpr context_fault leave(const round_transfer& m, int number) {
    if (m.round < 0) return fault(context_problem::unsorted, m);
    if (!has_rank(m.from) || !has_rank(m.to) || m.from == m.to) return fault(context_problem::bad_rank, m);
    if (m.items < 1 || m.first < 0 || m.first > static_cast<int>(rounds_.item_list().size()) - m.items)
      return fault(context_problem::bad_item, m);
    const std::span<const int> items = rounds_.items_of(m);
    for (const int item : items) {
      if (item < 0 || item >= rounds_.items() || t_.pieces() == 0) return fault(context_problem::bad_item, m, item);
      int& last = last_message_[static_cast<std::size_t>(item)];
      if (last == number) return fault(context_problem::repeated, m, item);
      last = number;
      const context_kind kind = t_.kind_of(item);
      if (kind != t_.kind_of(items[0])) return fault(context_problem::mixed, m, item);
      if ((m.how == arrival::store) == is_partial_result(kind)) return fault(context_problem::wrong_arrival, m, item);
      if (kind == context_kind::of_keys && t_.pass == context_pass::forward)
        return fault(context_problem::wrong_pass, m, item);
      char& here = held(m.from, item);
      if (here == 0)
        return fault(is_partial_result(kind) ? context_problem::nothing_to_give : context_problem::not_held, m, item);
      if (is_partial_result(kind)) here = 0;
    }
    return {};
  }

  constexpr context_fault attend(const context_task& k) {
    if (k.round < 0) return fault(context_problem::unsorted, k);
    if (!has_rank(k.rank)) return fault(context_problem::bad_rank, k);
    const int n = t_.pieces();
    if (k.queries < 0 || k.queries >= n || k.keys < 0 || k.keys >= n || k.part < 0 || k.part >= t_.parts() ||
        t_.cut[k.queries].document != t_.cut[k.keys].document)
      return fault(context_problem::bad_item, k);
    if (held(k.rank, t_.item_of(context_kind::queries, k.queries, k.part)) == 0)
      return fault(context_problem::operand_missing, k, context_kind::queries);
    if (held(k.rank, t_.item_of(context_kind::keys, k.keys, k.part)) == 0)
      return fault(context_problem::operand_missing, k, context_kind::keys);
    if (!seen(k.queries, k.keys)) return fault(context_problem::pair_unseen, k);
    char& done = attended_[pair(k.queries, k.keys, k.part)];
    if (done != 0) return fault(context_problem::pair_twice, k);
    done = 1;
    held(k.rank, t_.item_of(context_kind::of_queries, k.queries, k.part)) = 1;
    if (t_.pass == context_pass::backward) held(k.rank, t_.item_of(context_kind::of_keys, k.keys, k.part)) = 1;
    return {};
  }

  // Every pair is attended once, and a partial result is on one rank at a time: if all of them are at home, each got
  // there once.
  constexpr context_fault results() const {
    for (std::size_t d = 0; d < t_.cut.documents.size(); ++d)
      for (int q = t_.cut.first_piece[d]; q < t_.cut.first_piece[d + 1]; ++q)
        for (int k = t_.cut.first_piece[d]; k < t_.cut.first_piece[d + 1]; ++k)
          for (int i = 0; i < t_.parts(); ++i)
            if (attended_[pair(q, k, i)] == 0 && seen(q, k)) {
              context_task missing{-1, -1, q, k, i};
              return fault(context_problem::pair_missing, missing);
            }
    for (int r = 0; r < t_.ranks(); ++r)
      for (int x = 0; x < t_.pieces(); ++x)
        for (int i = 0; i < t_.parts() && t_.cut[x].home != r; ++i)
          for (const context_kind kind : {context_kind::of_queries, context_kind::of_keys})
            if (const int item = t_.item_of(kind, x, i); held(r, item) != 0) {
              context_fault f = fault(context_problem::lost);
              name(f, item);
              f.rank = r;
              return f;
            }
    return {};
  }

  constexpr bool seen(int q, int k) const {
    return sees(t_.cut.documents[static_cast<std::size_t>(t_.cut[q].document)].mask, t_.cut[q], t_.cut[k]);
  }
  constexpr std::size_t pair(int q, int k, int part) const {
    const auto d = static_cast<std::size_t>(t_.cut[q].document);
    const int first = t_.cut.first_piece[d], n = t_.cut.first_piece[d + 1] - first;
    return pair_begin_[d] + static_cast<std::size_t>(((q - first) * n + k - first) * t_.parts() + part);
  }
  constexpr char& held(int rank, int item) {
    return held_[static_cast<std::size_t>(rank) * items_ + static_cast<std::size_t>(item)];
  }
  constexpr char held(int rank, int item) const {
    return held_[static_cast<std::size_t>(rank) * items_ + static_cast<std::size_t>(item)];
  }

  const context_table& t_;
  round_view rounds_;
  std::size_t items_ = 0;
  std::vector<char> held_{};  // by ranks and items
  std::vector<int> last_message_{};
  std::vector<std::size_t> pair_begin_{};
  std::vector<char> attended_{};
};

}  // namespace detail

/// Carries a context table out on symbols and finds the first fault. Without one every pair of positions that see each
/// other is attended once, from operands that are there, and every partial result is folded at home once; no rank waits
/// for a message that is not sent. The memory it takes grows with ranks times pieces.
constexpr context_fault check_context(const context_table& table) {
  return detail::context_checker(table).run();
}

/// Throws unless the table is right. Errors: `config_error` with the sentence that names the fault.
inline void require_context(const context_table& table) {
  if (const context_fault fault = check_context(table); !fault.ok())
    throw config_error("heddle: a context table is wrong: " + to_string(fault));
}

/// Checks both passes of a carrier, for one document of `length` tokens on `ranks` ranks; 0: eight tokens a rank
/// and three more. At compile time for a few ranks: `static_assert(hd::check_context<mine, hd::split::zigzag>(4,
/// hd::masks::causal{}).ok())`.
template <context_carrier_policy C, split_policy Order, document_mask Mask>
constexpr context_fault check_context(int ranks, const Mask& mask, std::int64_t length = 0) {
  if (length == 0) length = 8 * ranks + 3;
  context_document document{length, {}, mask.slices(length)};
  for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
  const context_cut cut = cut_documents<Order>({document}, ranks);
  const context_fault f = check_context(make_context_table<C>(cut, context_pass::forward));
  return f.ok() ? check_context(make_context_table<C>(cut, context_pass::backward)) : f;
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/context/impl/check.hpp>
#endif
