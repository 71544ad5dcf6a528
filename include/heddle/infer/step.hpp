// heddle/infer/step.hpp: the ragged rows of a step of inference, and the runner concept.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/infer/logit.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::infer {

/// Consecutive tokens of one sequence in a step: a chunk of its prompt, or the token that was decoded last.
/// Units: `first_row` and `rows` count rows of the step, `position` counts tokens of the sequence before them, whose keys and values are in the
/// cache already; `first_block` and `blocks` count entries of `step::blocks`. `keys`: tokens that rows see in a step `everywhere`, also those behind
/// them, whose keys and values are in the cache; 0: position + rows. `state`: of the states that layers keep, the sequence's; -1: none.
struct sequence_rows {
  std::int64_t first_row = 0, rows = 0;
  std::int64_t position = 0;
  std::int64_t first_block = 0, blocks = 0;
  std::int64_t keys = 0;
  std::int64_t state = -1;

  /// Tokens of the sequence that have rows in the cache when the step's are written.
  std::int64_t reach() const noexcept { return keys > position + rows ? keys : position + rows; }
  friend bool operator==(const sequence_rows&, const sequence_rows&) = default;
};

/// A block of the cache that is copied to another before the step runs: copy on write.
struct block_copy {
  std::int32_t from = 0;
  std::int32_t to = 0;
  friend bool operator==(const block_copy&, const block_copy&) = default;
};

/// A row of the cache that is moved to another before the step runs: how an accepted path of a tree becomes the end of its sequence.
struct row_move {
  std::int32_t from = 0;
  std::int32_t to = 0;
  friend bool operator==(const row_move&, const row_move&) = default;
};

/// What a model computes at once: rows of several sequences, one behind the other. Key and value of token t of a sequence are row
/// t % block_rows of its block number t / block_rows, whatever made the cache contiguous, paged or shared.
///
/// With `parents`, rows of a sequence form a tree: row i (counted from its first row) follows row parents[i] < i of the same sequence, or, at -1, the tokens
/// in the cache. It sees those and its ancestors, and its position is by its depth; key and value of the sequence's row i are stored as those of token position + i.
///
/// With `everywhere`, each row sees all `keys` tokens of its sequence. A sequence may have several entries in one step: rows are stored before any is seen, so that
/// entries of a block each, without `keys`, see the tokens up to the end of their block.
struct step {
  std::vector<std::int32_t> tokens{};      ///< of each row
  std::vector<sequence_rows> sequences{};  ///< in the order of their rows, without gaps
  std::vector<std::int32_t>
      blocks{};  ///< ids of cache blocks, for each sequence as many as position + rows tokens need
  std::vector<std::int64_t> wanted{};  ///< rows whose logits are wanted, ascending
  std::vector<block_copy> copies{};    ///< before anything is written
  std::vector<block_copy>
      state_copies{};                   ///< of the states that layers keep, in this order, before anything is written
  std::vector<std::int64_t> parents{};  ///< of each row, or empty: each row follows the one before
  std::vector<row_move> moves{};        ///< in this order, before the copies
  bool streams = false;                 ///< whether the runner keeps the residual streams of the wanted rows
  bool everywhere = false;              ///< whether rows see all keys of their sequence

  std::int64_t rows() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  friend bool operator==(const step&, const step&) = default;
};

/// What a step must not exceed. `context`: tokens of a sequence, prompt and answer together. `block_rows`: tokens of a block of the
/// cache. `blocks`: of the cache. `max_rows`: rows of a step. `vocabulary`: logits of a row. `states`: of the states that layers keep, one for a sequence; 0: they keep
/// none. `window`: tokens that a row sees, itself among them, where all layers see so few; 0: all. `trees`: whether rows of a step may form a tree.
struct step_limits {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t block_rows = 0;
  std::int64_t blocks = 0;
  std::int64_t max_rows = 0;
  std::int64_t states = 0;
  std::int64_t window = 0;
  bool trees = true;
  friend bool operator==(const step_limits&, const step_limits&) = default;
};

/// A runner that keeps the residual streams of the wanted rows of a step with `step::streams`: `streams()` is [wanted rows, width], row-major.
template <class R>
concept stream_runner = requires(R& runner) {
  { runner.streams() } -> std::same_as<std::span<const typename R::scalar>>;
};

/// A model that computes steps. `run(step, logits)` appends the keys and values of the step's rows to the cache and fills `logits`, of the type `scalar`.
/// Shapes: logits [wanted rows, vocabulary], row-major.
/// Errors: `config_error` for a step that breaks the limits (`require_step`). A step that threw can be run again; one with moves cannot, unless the
/// cache is as it was: a `run` that throws for it and left the cache otherwise must throw for every later step, or its caller takes none, as the engine.
template <class R>
concept step_runner = requires(R& runner, const R& that, const step& s, std::span<typename R::scalar> logits) {
  requires logit<typename R::scalar>;
  { that.limits() } -> std::same_as<step_limits>;
  runner.run(s, logits);
};

namespace detail {
[[noreturn]] inline void step_error(const std::string& what) {
  throw config_error("heddle: a step of inference: " + what);
}

inline void require_rows_of_sequence(const step& s, const step_limits& l, std::size_t i, std::int64_t row) {
  const sequence_rows& q = s.sequences[i];
  const std::string name = "sequence " + std::to_string(i);
  if (q.first_row != row || q.rows <= 0)
    step_error(name + " should have rows from row " + std::to_string(row) + " on, got " + std::to_string(q.rows) +
               " rows from row " + std::to_string(q.first_row) + " on");
  if (q.position < 0 || q.position > l.context || q.rows > l.context - q.position)
    step_error(name + " has " + std::to_string(q.rows) + " rows at position " + std::to_string(q.position) +
               ", the context has " + std::to_string(l.context) + " tokens");
  if (q.keys != 0 &&
      (q.keys < q.position + q.rows || q.keys > l.context || (!s.everywhere && q.keys != q.position + q.rows)))
    step_error(name + " should have 0 keys, or in a step everywhere " + std::to_string(q.position + q.rows) + " to " +
               std::to_string(l.context) + ", got " + std::to_string(q.keys));
  if (q.state < -1 || q.state >= l.states || (l.states > 0 && q.state < 0))
    step_error(name + " should have one of the " + std::to_string(l.states) + " states" +
               (l.states > 0 ? "" : ", which is none, -1") + ", got " + std::to_string(q.state));
  const std::int64_t needed = (q.reach() + l.block_rows - 1) / l.block_rows;
  const auto listed = static_cast<std::int64_t>(s.blocks.size());
  if (q.blocks < needed || q.first_block < 0 || q.first_block > listed || q.blocks > listed - q.first_block)
    step_error(name + " needs " + std::to_string(needed) + " blocks of the cache, got " + std::to_string(q.blocks) +
               " from entry " + std::to_string(q.first_block) + " of " + std::to_string(listed) + " on");
}

// Entries of a step run at the same time, so that two would write one state.
inline void require_own_states(const step& s) {
  std::vector<std::int64_t> states;
  for (const sequence_rows& q : s.sequences) states.push_back(q.state);
  std::sort(states.begin(), states.end());
  if (const auto twice = std::adjacent_find(states.begin(), states.end()); twice != states.end())
    step_error("each of its sequences should have a state of its own, got state " + std::to_string(*twice) + " twice");
}

inline void require_parents(const step& s, const step_limits& l) {
  if (!l.trees) step_error("rows of this model do not form trees, so it should have no parents");
  if (s.everywhere) step_error("rows of a tree see their ancestors, so it should not be everywhere");
  if (std::ssize(s.parents) != s.rows())
    step_error("it should have no parents or one for each of its " + std::to_string(s.rows()) + " rows, got " +
               std::to_string(s.parents.size()));
  for (const sequence_rows& q : s.sequences)
    for (std::int64_t i = 0; i < q.rows; ++i)
      if (const std::int64_t p = s.parents[static_cast<std::size_t>(q.first_row + i)]; p < -1 || p >= i)
        step_error("row " + std::to_string(i) +
                   " of a sequence should follow one of the rows before it or, at -1, the cache, got " +
                   std::to_string(p));
}
}  // namespace detail

/// Checks that a step keeps within the limits and names no row, token or block that is not there.
/// Errors: `config_error` that says what was expected and got.
inline void require_step(const step& s, const step_limits& l) {
  if (s.rows() > l.max_rows)
    detail::step_error("it has " + std::to_string(s.rows()) + " rows, at most " + std::to_string(l.max_rows) +
                       " are possible");
  std::int64_t row = 0;
  for (std::size_t i = 0; i < s.sequences.size(); ++i) {
    detail::require_rows_of_sequence(s, l, i, row);
    row += s.sequences[i].rows;
  }
  if (row != s.rows())
    detail::step_error("its sequences have " + std::to_string(row) + " rows, it has " + std::to_string(s.rows()) +
                       " tokens");
  if (l.states > 0) detail::require_own_states(s);
  for (const std::int32_t t : s.tokens)
    if (t < 0 || t >= l.vocabulary)
      detail::step_error("token " + std::to_string(t) + " is not in the vocabulary of " + std::to_string(l.vocabulary));
  const auto is_block = [&](std::int32_t b) { return b >= 0 && b < l.blocks; };
  for (const std::int32_t b : s.blocks)
    if (!is_block(b))
      detail::step_error("block " + std::to_string(b) + " is not one of the cache's " + std::to_string(l.blocks));
  for (const block_copy& c : s.copies)
    if (!is_block(c.from) || !is_block(c.to))
      detail::step_error("block " + std::to_string(c.from) + " cannot be copied to block " + std::to_string(c.to) +
                         ": the cache has " + std::to_string(l.blocks));
  for (const block_copy& c : s.state_copies)
    if (c.from < 0 || c.to < 0 || c.from >= l.states || c.to >= l.states)
      detail::step_error("state " + std::to_string(c.from) + " cannot be copied to state " + std::to_string(c.to) +
                         ": there are " + std::to_string(l.states));
  if (!s.parents.empty()) detail::require_parents(s, l);
  const std::int64_t cache_rows = l.blocks * l.block_rows;
  for (const row_move& m : s.moves)
    if (m.from < 0 || m.to < 0 || m.from >= cache_rows || m.to >= cache_rows)
      detail::step_error("row " + std::to_string(m.from) + " cannot be moved to row " + std::to_string(m.to) +
                         ": the cache has " + std::to_string(cache_rows));
  std::int64_t last = -1;
  for (const std::int64_t w : s.wanted) {
    if (w <= last || w >= s.rows())
      detail::step_error("rows whose logits are wanted should ascend below " + std::to_string(s.rows()) + ", got " +
                         std::to_string(w) + " after " + std::to_string(last));
    last = w;
  }
}

}  // namespace heddle::inline v0::infer
