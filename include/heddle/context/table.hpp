// heddle/context/table.hpp: context tables: what travels when, and who attends what.
#pragma once

#include <heddle/collective/rounds.hpp>
#include <heddle/context/pieces.hpp>
#include <heddle/context/slices_between.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// What travels between the ranks of a context axis. Forward `of_queries` are outputs with their log-sum-exp, backward
/// gradients of queries; `of_keys` are gradients of keys and values; backward `queries` carry the gradient of the
/// output and what else a row needs.
enum class context_kind : std::uint8_t { keys, queries, of_queries, of_keys };

/// `"keys"` for `context_kind::keys`.
constexpr std::string_view to_string(context_kind k) noexcept {
  constexpr std::string_view names[] = {"keys", "queries", "of_queries", "of_keys"};
  return names[static_cast<std::size_t>(k)];
}
/// Whether it is a partial result, which is folded where it arrives, and not an operand, which is stored.
constexpr bool is_partial_result(context_kind k) noexcept {
  return k >= context_kind::of_queries;
}

/// Which of the two passes over attention a table is for.
enum class context_pass : std::uint8_t { forward, backward };

/// `"forward"` for `context_pass::forward`.
constexpr std::string_view to_string(context_pass p) noexcept {
  return p == context_pass::forward ? "forward" : "backward";
}

/// In this round a rank attends the queries of one piece to the keys of another, with one part of the heads.
struct context_task {
  int round = 0;
  int rank = 0;
  int queries = 0;  ///< the number of a piece
  int keys = 0;     ///< the number of a piece
  int part = 0;
  friend constexpr bool operator==(const context_task&, const context_task&) = default;
};

/// How attention is spread over the ranks of a context axis, for one batch of documents and one pass: what is checked,
/// executed, simulated, printed and drawn. Blocks of the rounds are kinds by pieces, their parts are parts of the
/// heads.
///
/// A rank begins a round when it is done with the one before. In a round it sends what it had when the round began, and
/// attends what it had then; partial results that arrive are folded in the order of the table. An operand that was sent
/// is still there; a partial result is not.
struct context_table {
  context_cut cut{};
  context_pass pass = context_pass::forward;
  round_table rounds{};
  std::vector<context_task> tasks{};  ///< by round, then by rank

  constexpr int ranks() const noexcept { return cut.ranks; }
  constexpr int parts() const noexcept { return rounds.parts; }
  constexpr int pieces() const noexcept { return static_cast<int>(cut.pieces.size()); }
  /// Rounds with messages or tasks.
  constexpr int round_count() const noexcept {
    const int messages = rounds.view().rounds();
    return tasks.empty() ? messages : (std::max)(messages, tasks.back().round + 1);
  }
  constexpr int item_of(context_kind what, int piece, int part) const noexcept {
    return (static_cast<int>(what) * pieces() + piece) * parts() + part;
  }
  constexpr context_kind kind_of(int item) const noexcept {
    return static_cast<context_kind>(item / parts() / (std::max)(1, pieces()));
  }
  constexpr int piece_of(int item) const noexcept { return item / parts() % (std::max)(1, pieces()); }
  constexpr int part_of(int item) const noexcept { return item % parts(); }
};

/// What a carrier writes a table with, document by document. Ranks are those of the context axis; the pieces that
/// travel are named by the rank that owns them.
///
///     b.move(k, from, to, context_kind::keys, owner);             // in round k an operand goes from one rank to
///     another b.attend(k, rank, queries_of, keys_of);                     // in round k a rank attends the queries of
///     one rank to the keys of another b.give_back(k, from, to, context_kind::of_queries, owner);  // in round k a
///     partial result leaves a rank and is folded at another
///
/// A carrier says what could happen; what nobody needs is dropped: operands that are not read later, pairs that do not
/// see each other, partial results that nobody made. A last argument names one part of the heads; without it all are
/// meant.
class context_builder {
 public:
  static constexpr int all_parts = -1;

  /// For documents that are cut already. Attention heads are cut into `parts`.
  constexpr context_builder(context_cut cut, context_pass pass, int parts = 1) {
    table_.cut = static_cast<context_cut&&>(cut);
    table_.pass = pass;
    table_.rounds = {comm_operation::send, table_.cut.ranks, 0, 4 * (std::max)(1, table_.pieces()), parts, {}, {}, {}};
  }

  constexpr const context_cut& cut() const noexcept { return table_.cut; }
  constexpr context_pass pass() const noexcept { return table_.pass; }
  constexpr int parts() const noexcept { return table_.parts(); }

  /// Errors: `config_error` for ranks that are not the document's, parts that do not exist, kinds that are no operand.
  constexpr context_builder& move(int round, int from, int to, context_kind what, int owner, int part = all_parts) {
    require(!is_partial_result(what), "moves a partial result, which is given back: kind", static_cast<int>(what));
    require_ranks({from, to, owner}, part);
    if (from == to || to == owner) return *this;  // it is there
    return add(operands_, round, from, to, what, owner, part);
  }
  /// Errors: as `move`, and for kinds that are no partial result.
  constexpr context_builder& give_back(int round, int from, int to, context_kind what, int owner,
                                       int part = all_parts) {
    require(is_partial_result(what), "gives back an operand, which is moved: kind", static_cast<int>(what));
    require_ranks({from, to, owner}, part);
    return from == to ? *this : add(partials_, round, from, to, what, owner, part);
  }
  /// Errors: as `move`.
  constexpr context_builder& attend(int round, int rank, int queries_of, int keys_of, int part = all_parts) {
    require_ranks({rank, queries_of, keys_of}, part);
    for (int q = begin_of(queries_of); q < end_of(queries_of); ++q)
      for (int k = begin_of(keys_of); k < end_of(keys_of); ++k)
        if (seen(q, k))
          for (int i = part < 0 ? 0 : part; i < (part < 0 ? parts() : part + 1); ++i)
            tasks_.push_back({round, rank, q, k, i});
    return *this;
  }

  /// Begins the document of that number; `end_document` drops what nobody needs of what the carrier has written for it.
  constexpr void begin_document(int number) {
    const auto d = static_cast<std::size_t>(number);
    const context_cut& cut = table_.cut;
    first_ = cut.first_piece[d];
    count_ = cut.first_piece[d + 1] - first_;
    const std::vector<int>& ranks = cut.documents[d].ranks;
    place_.assign(static_cast<std::size_t>(cut.ranks), -1);
    for (std::size_t i = 0; i < ranks.size(); ++i) place_[static_cast<std::size_t>(ranks[i])] = static_cast<int>(i);
    pieces_begin_.assign(ranks.size() + 1, first_ + count_);
    int next = first_;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      pieces_begin_[i] = next;
      while (next < first_ + count_ && cut[next].home == ranks[i]) ++next;
    }
    seen_.assign(static_cast<std::size_t>(count_) * static_cast<std::size_t>(count_), 0);
    for (int q = 0; q < count_; ++q)
      for (int k = 0; k < count_; ++k)
        seen_[static_cast<std::size_t>(q * count_ + k)] =
            sees(cut.documents[d].mask, cut[first_ + q], cut[first_ + k]) ? 1 : 0;
  }
  constexpr void end_document() {
    std::sort(tasks_.begin(), tasks_.end(), before);
    keep_what_is_read();
    keep_what_was_made();
    all_tasks_.insert(all_tasks_.end(), tasks_.begin(), tasks_.end());
    operands_.clear();
    partials_.clear();
    tasks_.clear();
  }

  /// The finished table: items of one round, sender, receiver, kind and part of the heads are one message. The builder
  /// is empty after it.
  constexpr context_table take() {
    std::sort(messages_.begin(), messages_.end(), [](const travel& a, const travel& b) {
      if (a.round != b.round) return a.round < b.round;
      if (a.from != b.from) return a.from < b.from;
      if (a.to != b.to) return a.to < b.to;
      if (a.what != b.what) return a.what < b.what;
      return a.part != b.part ? a.part < b.part : a.piece < b.piece;
    });
    std::sort(all_tasks_.begin(), all_tasks_.end(), before);
    std::vector<round_transfer>& transfers = table_.rounds.transfers;
    std::vector<int>& items = table_.rounds.items;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const travel& m = messages_[i];
      if (i == 0 || m.round != messages_[i - 1].round || m.from != messages_[i - 1].from ||
          m.to != messages_[i - 1].to || m.what != messages_[i - 1].what || m.part != messages_[i - 1].part) {
        transfers.push_back({m.round, m.from, m.to, is_partial_result(m.what) ? arrival::fold_after : arrival::store,
                             static_cast<int>(items.size()), 0});
      }
      items.push_back(table_.item_of(m.what, m.piece, m.part));
      ++transfers.back().items;
    }
    table_.tasks = static_cast<std::vector<context_task>&&>(all_tasks_);
    return static_cast<context_table&&>(table_);
  }

 private:
  struct travel {
    int round, from, to;
    context_kind what;
    int piece, part;
  };

  static constexpr void require(bool ok, const char* what, int number) {
    if (!ok) throw config_error(text_of({"heddle: a carrier ", what, " ", number}));
  }
  constexpr void require_ranks(std::array<int, 3> ranks, int part) const {
    for (const int r : ranks)
      require(r >= 0 && r < table_.ranks() && place_[static_cast<std::size_t>(r)] >= 0,
              "names a rank that is none of the document's:", r);
    require(part >= all_parts && part < parts(), "names a part of the heads that does not exist:", part);
  }
  static constexpr bool before(const context_task& a, const context_task& b) noexcept {
    if (a.round != b.round) return a.round < b.round;
    if (a.rank != b.rank) return a.rank < b.rank;
    if (a.part != b.part) return a.part < b.part;
    return a.queries != b.queries ? a.queries < b.queries : a.keys < b.keys;
  }
  constexpr int place_of(int rank) const noexcept { return place_[static_cast<std::size_t>(rank)]; }
  constexpr int begin_of(int owner) const noexcept { return pieces_begin_[static_cast<std::size_t>(place_of(owner))]; }
  constexpr int end_of(int owner) const noexcept {
    return pieces_begin_[static_cast<std::size_t>(place_of(owner)) + 1];
  }
  constexpr bool seen(int q, int k) const noexcept {
    return seen_[static_cast<std::size_t>((q - first_) * count_ + k - first_)] != 0;
  }
  constexpr context_builder& add(std::vector<travel>& list, int round, int from, int to, context_kind what, int owner,
                                 int part) {
    for (int x = begin_of(owner); x < end_of(owner); ++x)
      for (int i = part < 0 ? 0 : part; i < (part < 0 ? parts() : part + 1); ++i)
        list.push_back({round, from, to, what, x, i});
    return *this;
  }
  // Of an operand or a partial result on a rank of the document.
  constexpr std::size_t at(context_kind what, int rank, int piece, int part) const noexcept {
    const int ranks = static_cast<int>(pieces_begin_.size()) - 1;
    return static_cast<std::size_t>(
        (((static_cast<int>(what) % 2) * ranks + place_of(rank)) * count_ + piece - first_) * parts() + part);
  }
  constexpr std::size_t states() const noexcept {
    return 2 * (pieces_begin_.size() - 1) * static_cast<std::size_t>(count_) * static_cast<std::size_t>(parts());
  }
  static constexpr void sort_by_round(std::vector<travel>& list) {
    std::sort(list.begin(), list.end(), [](const travel& a, const travel& b) { return a.round < b.round; });
  }

  // Operands, the last ones first: is what arrives read later, or sent on to somebody who reads it?
  constexpr void keep_what_is_read() {
    std::vector<int> last(states(), -1);  // the last round in which it is read
    for (const context_task& t : tasks_) {
      int& q = last[at(context_kind::queries, t.rank, t.queries, t.part)];
      int& k = last[at(context_kind::keys, t.rank, t.keys, t.part)];
      q = (std::max)(q, t.round);
      k = (std::max)(k, t.round);
    }
    sort_by_round(operands_);
    for (std::size_t i = operands_.size(); i-- > 0;) {
      const travel& m = operands_[i];
      if (last[at(m.what, m.to, m.piece, m.part)] <= m.round) continue;
      int& sender = last[at(m.what, m.from, m.piece, m.part)];
      sender = (std::max)(sender, m.round);
      messages_.push_back(m);
    }
  }
  // Partial results, the first ones first: has the sender one?
  constexpr void keep_what_was_made() {
    std::vector<char> held(states(), 0);
    sort_by_round(partials_);
    std::size_t task = 0;
    for (std::size_t i = 0; i < partials_.size();) {
      const int round = partials_[i].round;
      for (; task < tasks_.size() && tasks_[task].round < round; ++task) {
        const context_task& t = tasks_[task];
        held[at(context_kind::of_queries, t.rank, t.queries, t.part)] = 1;
        if (pass() == context_pass::backward) held[at(context_kind::of_keys, t.rank, t.keys, t.part)] = 1;
      }
      const std::size_t kept = messages_.size();
      for (; i < partials_.size() && partials_[i].round == round; ++i) {
        char& has = held[at(partials_[i].what, partials_[i].from, partials_[i].piece, partials_[i].part)];
        if (has != 0) messages_.push_back(partials_[i]);
        has = 0;
      }
      for (std::size_t m = kept; m < messages_.size(); ++m)
        held[at(messages_[m].what, messages_[m].to, messages_[m].piece, messages_[m].part)] = 1;
    }
  }

  context_table table_{};
  // Of the document that is written.
  int first_ = 0, count_ = 0;
  std::vector<int> place_{};         // of each rank among the document's
  std::vector<int> pieces_begin_{};  // of each of these
  std::vector<char> seen_{};         // by pairs of its pieces
  std::vector<travel> operands_{}, partials_{};
  std::vector<context_task> tasks_{};
  // Of all documents.
  std::vector<travel> messages_{};
  std::vector<context_task> all_tasks_{};
};

}  // namespace heddle::inline v0
