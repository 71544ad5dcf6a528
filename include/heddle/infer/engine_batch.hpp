// heddle/infer/engine_batch.hpp: the state of an engine, and how it forms the batch of a step.
#pragma once

#include <heddle/infer/cache.hpp>
#include <heddle/infer/decoding.hpp>
#include <heddle/infer/drawing_runner.hpp>
#include <heddle/infer/engine_counts.hpp>
#include <heddle/infer/engine_policies.hpp>
#include <heddle/infer/engine_sequence.hpp>
#include <heddle/infer/event.hpp>
#include <heddle/infer/request.hpp>
#include <heddle/infer/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer::detail {

// `Policies`: batching, cache and decoding. What a request waits for, what a sequence holds, and the rows of the next step.
template <class Runner, class Policies>
class engine_batch {
 protected:
  using batching = typename Policies::batching;
  using cache = typename Policies::cache;
  using decoding = typename Policies::decoding;
  using scalar = typename Runner::scalar;
  using sequence = engine_sequence;
  using scheduled = scheduled_rows;
  static constexpr bool trees = detail::proposes_trees<decoding>;
  static constexpr bool all_streams = detail::reads_all_streams<decoding>;
  static constexpr bool fuses = detail::needs_slots<batching>;
  static constexpr bool windows = detail::decodes_windows<decoding>;
  static constexpr bool restores = Policies::restores && decoding::most_proposed > 0;
  static constexpr bool snapshots = Policies::restores && cache::capabilities::template has<share_blocks>;

  engine_batch(Runner& runner, engine_options&& options, decoding&& decode)
      : runner_(&runner),
        limits_(runner.limits()),
        options_(std::move(options)),
        decoding_(std::move(decode)),
        blocks_(limits_) {
    for (std::int64_t i = limits_.states; i-- > 0;) free_states_.push_back(static_cast<std::int32_t>(i));
  }

  // Most tokens of a prompt and its answer together: of the runner, or what its cache has room for.
  std::int64_t context() const { return (std::min)(limits_.context, blocks_.tokens_per_sequence()); }
  // Rows of a step whose logits are wanted.
  std::int64_t most_wanted() const noexcept {
    return all_streams || windows
               ? rows_per_step_
               : (std::min)(rows_per_step_, most_running_ * (1 + std::int64_t{decoding::most_proposed}));
  }

  // Tokens that an answer may still get.
  std::int64_t most_tokens(const sequence& q) const {
    return (std::min)(q.asked.max_tokens - q.answered(), context() - q.length());
  }

  void form() {
    step_.tokens.clear();
    step_.sequences.clear();
    step_.blocks.clear();
    step_.wanted.clear();
    step_.parents.clear();
    step_.state_copies.clear();
    step_.moves = moves_;
    step_.streams = detail::reads_streams<decoding>;
    scheduled_.clear();
    proposals_.clear();
    parents_.clear();
    std::int64_t left = rows_per_step_;
    if constexpr (fuses) {
      if (running_.empty()) {  // nobody is left for whom a failed step would have moved anything
        slot_copies_.clear();
        blocks_.closed();
      }
      if (!batching::closes_holes) left -= std::ssize(blocks_.holes());
    }
    if constexpr (windows) {
      step_.everywhere = decoding::everywhere;
    } else {
      for (std::size_t i = 0; i < running_.size(); ++i)  // the youngest may leave meanwhile
        if (restores && running_[i]->replays) {
          make_room(*running_[i], running_[i]->length());
        } else if (running_[i]->pending() == 1 && make_room(*running_[i], running_[i]->computed + 1)) {
          scheduled_.push_back({.of = running_[i].get(), .rows = 1});
          --left;
        }
    }
    if constexpr (decoding::most_proposed > 0) left -= propose(left);
    bool first = true;
    for (const sequence_pointer& s : running_)
      if (windows || s->pending() > 1) left -= schedule_prompt(*s, left, first);
    admit(left, first);
    step_.copies.clear();
    step_results_.clear();
    if constexpr (fuses) {
      write_window();
    } else {
      for (const scheduled& s : scheduled_) write(s);
    }
  }

  // Rows in the order of slots; a hole that is kept has a row at its beginning, whose logits nobody wants.
  void write_window() {
    if (batching::closes_holes && slot_copies_.empty()) counts_.slot_moves += blocks_.close(running_, slot_copies_);
    step_.copies = slot_copies_;
    const auto slot = [&](const scheduled& s) { return blocks_.slot_of(s.of->blocks); };
    std::sort(scheduled_.begin(), scheduled_.end(), [&](const auto& a, const auto& b) { return slot(a) < slot(b); });
    std::span<const std::int64_t> holes;
    if (!batching::closes_holes && !scheduled_.empty()) holes = blocks_.holes();
    auto hole = holes.begin();
    for (const scheduled& s : scheduled_) {
      for (; hole != holes.end() && *hole < slot(s); ++hole) {
        step_.sequences.push_back(
            {.first_row = step_.rows(), .rows = 1, .first_block = std::ssize(step_.blocks), .blocks = 1});
        step_.blocks.push_back(blocks_.first_block(*hole));
        step_.tokens.push_back(0);
        if constexpr (trees) step_.parents.push_back(-1);
      }
      write(s);
    }
  }

  // Blocks for so many tokens, the youngest sequences giving theirs back. False if `s` itself had to.
  bool make_room(sequence& s, std::int64_t tokens) {
    while (!blocks_.grow(s.blocks, tokens))
      if (send_back_youngest() == &s) return false;
    return true;
  }
  // A sequence gives back its blocks, and its state, which the next one begins from zeros.
  void release(sequence& s) {
    blocks_.release(s.blocks);
    for (std::int64_t* state : {&s.state, &s.saved})
      if (*state >= 0) free_states_.push_back(static_cast<std::int32_t>(std::exchange(*state, -1)));
    s.old_state = s.replays = false;
  }
  // A state that nobody has, or that of the snapshot which was used least lately; -1: there is none.
  std::int64_t take_state() {
    if constexpr (snapshots)
      if (blocks_.take_dropped(free_states_); free_states_.empty()) return blocks_.drop_state();
    if (free_states_.empty()) return -1;
    const std::int64_t state = free_states_.back();
    free_states_.pop_back();
    return state;
  }
  // What a sequence needs of them. False, and nothing has changed, if there are too few.
  bool take_states(sequence& s) {
    if (limits_.states == 0) return true;
    s.state = take_state();
    if (restores && s.state >= 0) s.saved = take_state();
    if (s.state >= 0 && (!restores || s.saved >= 0)) return true;
    if (s.state >= 0) free_states_.push_back(static_cast<std::int32_t>(std::exchange(s.state, -1)));
    return false;
  }
  // States go to others before a step: a snapshot to a sequence that begins with it, one to a snapshot, and those around proposals.
  void write_states(sequence& q, bool proposes) {
    const auto copy = [&](std::int64_t from, std::int64_t to) {
      step_.state_copies.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
    };
    if constexpr (snapshots) {
      if (q.blocks.state >= 0) copy(q.blocks.state, q.state);
      if (blocks_.keeps_state_behind(q.blocks, q.computed))
        if (const std::int64_t to = take_state(); to >= 0) {
          copy(q.state, to);
          blocks_.keep_state(q.blocks, q.computed, to);
        }
    }
    if constexpr (restores) {
      if (q.old_state) copy(q.saved, q.state);
      if (proposes) copy(q.state, q.saved);
    }
  }
  // The one that began last waits again, before all others.
  const sequence* send_back_youngest() {
    sequence& youngest = *running_.back();
    release(youngest);
    youngest.computed = 0;
    if constexpr (windows) decoding_.lost(youngest.id);
    ++counts_.preemptions;
    waiting_.push_front(std::move(running_.back()));
    running_.pop_back();
    return &youngest;
  }

  // Proposals for sequences that decode; a row is left for each prompt. Returns the number of rows.
  std::int64_t propose(std::int64_t left) {
    left -= std::ssize(running_) - std::ssize(scheduled_) + (waiting_.empty() ? 0 : 1);
    std::size_t n = 0;
    for (scheduled& s : scheduled_) {
      const std::int64_t longest = most_tokens(*s.of) - 1;
      const std::int64_t room = trees && longest > 0 ? context() - s.of->length() : longest;
      const std::int64_t most = (std::min)({std::int64_t{decoding::most_proposed}, left, room});
      if (most <= 0) continue;
      left -= most;
      if (n == asked_.size()) asked_.emplace_back();
      proposal& p = asked_[n++];
      p.id = s.of->id;
      p.asked = &s.of->asked;
      p.seed = s.of->seed;
      p.text = s.of->tokens;
      p.most = most;
      p.tokens.clear();
      p.parents.clear();
    }
    decoding_.propose(std::span<proposal>(asked_).first(n));
    auto s = scheduled_.begin();
    for (const proposal& p : std::span<const proposal>(asked_).first(n)) {
      while (s->of->id != p.id) ++s;
      const auto is_token = [&](std::int32_t t) { return t >= 0 && t < limits_.vocabulary; };
      const auto end = std::find_if_not(p.tokens.begin(), p.tokens.end(), is_token);
      std::int64_t count = (std::min)(p.most, std::int64_t{end - p.tokens.begin()});
      if (trees && !p.parents.empty()) count = (std::min)(count, std::ssize(p.parents));
      if (count == 0 || !blocks_.grow(s->of->blocks, s->of->length() + count)) continue;
      s->first_proposed = proposals_.size();
      s->proposed = count;
      s->rows += count;
      proposals_.insert(proposals_.end(), p.tokens.begin(), p.tokens.begin() + count);
      if constexpr (trees || detail::accepts_by_threshold<decoding>)
        for (std::int64_t i = 0; i < count; ++i)
          parents_.push_back(!trees || p.parents.empty() ? i - 1 : p.parents[static_cast<std::size_t>(i)]);
      counts_.proposed_tokens += count;
    }
    return std::ssize(proposals_);
  }

  // Rows of a prompt, or those of a sequence that is decoded in windows, if they fit.
  std::int64_t schedule_prompt(sequence& s, std::int64_t left, bool& first) {
    std::int64_t rows = 0;
    if constexpr (windows) {
      if (decoding_.next(s.id, left))
        for (const auto& w : decoding_.windows_of(s.id)) rows += w.rows;
    } else {
      rows = left > 0 ? batching::prompt_rows(s.pending(), left, first) : 0;
      if constexpr (snapshots)
        for (const std::int64_t cut : s.blocks.cuts)
          if (cut > s.computed) {
            rows = (std::min)(rows, cut - s.computed);
            break;
          }
    }
    if (rows > 0) {
      scheduled_.push_back({.of = &s, .rows = rows});
      first = false;
    }
    return rows;
  }

  void admit(std::int64_t left, bool first) {
    std::int64_t begun = 0;
    while (!waiting_.empty() && std::ssize(running_) < most_running_ &&
           batching::admits(std::ssize(running_), begun, left)) {
      sequence& s = *waiting_.front();
      if (!snapshots && limits_.states > 0 && free_states_.empty()) return;
      if (!blocks_.start(s.blocks, text_of(s), std::ssize(running_))) return;
      if (!take_states(s)) return release(s);
      try {
        s.computed = s.blocks.cached;
        left -= schedule_prompt(s, left, first);
        running_.push_back(nullptr);  // all that may throw comes before it runs
      } catch (...) {                 // it waits on, and holds nothing
        release(s);
        s.computed = 0;
        throw;
      }
      ++begun;
      if (!std::exchange(s.began, true)) {
        s.cached_prompt_tokens = s.blocks.cached;
        counts_.prompt_tokens += std::ssize(s.asked.prompt);
      }
      running_.back() = std::move(waiting_.front());
      waiting_.pop_front();
    }
  }

  // With masks, where it is decoded in windows.
  std::span<const std::int32_t> text_of(const sequence& s) const {
    if constexpr (windows)
      return decoding_.tokens(s.id);
    else
      return s.tokens;
  }

  // The windows of a sequence, which may be several.
  void write_windows(const sequence& q) {
    const std::span<const std::int32_t> tokens = text_of(q);
    const auto first_block = std::ssize(step_.blocks), blocks = std::ssize(q.blocks.blocks);
    step_.blocks.insert(step_.blocks.end(), q.blocks.blocks.begin(), q.blocks.blocks.end());
    const auto wanted = decoding_.wanted(q.id);
    std::size_t next = 0;
    for (const auto& w : decoding_.windows_of(q.id)) {
      const std::int64_t row = step_.rows();
      step_.sequences.push_back({.first_row = row,
                                 .rows = w.rows,
                                 .position = w.first,
                                 .first_block = first_block,
                                 .blocks = blocks,
                                 .keys = decoding::everywhere ? w.keys : 0});
      const auto begin = tokens.begin() + w.first;
      step_.tokens.insert(step_.tokens.end(), begin, begin + w.rows);
      for (; next < wanted.size() && wanted[next] < w.first + w.rows; ++next)
        step_.wanted.push_back(row + wanted[next] - w.first);
    }
  }

  void write(const scheduled& s) {
    if constexpr (windows) return write_windows(*s.of);
    sequence& q = *s.of;
    if constexpr (restores || snapshots)
      if (q.state >= 0) write_states(q, s.proposed > 0);
    const std::int64_t first = step_.rows();
    const std::int64_t own = s.rows - s.proposed;
    const auto begin = q.tokens.begin() + q.computed;
    step_.tokens.insert(step_.tokens.end(), begin, begin + own);
    const auto proposed = proposals_.begin() + static_cast<std::ptrdiff_t>(s.first_proposed);
    step_.tokens.insert(step_.tokens.end(), proposed, proposed + s.proposed);
    if constexpr (trees) {
      for (std::int64_t i = 0; i < own; ++i) step_.parents.push_back(i - 1);
      for (std::int64_t i = 0; i < s.proposed; ++i)
        step_.parents.push_back(own + parents_[s.first_proposed + static_cast<std::size_t>(i)]);
    }
    const std::int64_t blocks = detail::blocks_of_tokens(q.computed + s.rows, limits_.block_rows);
    step_.sequences.push_back({.first_row = first,
                               .rows = s.rows,
                               .position = q.computed,
                               .first_block = std::ssize(step_.blocks),
                               .blocks = blocks,
                               .state = q.state});
    step_.blocks.insert(step_.blocks.end(), q.blocks.blocks.begin(), q.blocks.blocks.begin() + blocks);
    if (q.blocks.copy.from >= 0) step_.copies.push_back(q.blocks.copy);
    const bool draws = own == q.pending();
    if constexpr (!trees && !all_streams &&
                  !detail::accepts_by_threshold<decoding>)  // in a tree the text before a row depends on what is drawn
      if (draws) step_results_.ask(*runner_, step_.wanted.size(), q.asked, q.seed, q.length(), s.proposed + 1);
    for (std::int64_t i = all_streams ? 0 : draws ? own - 1 : s.rows; i < s.rows; ++i)
      step_.wanted.push_back(first + i);
  }

  Runner* runner_;
  step_limits limits_;
  engine_options options_;
  decoding decoding_;
  typename cache::blocks blocks_;
  std::int64_t rows_per_step_ = 0;
  std::int64_t most_running_ = 0;
  std::vector<sequence_pointer> running_{};  // by id: the youngest last
  std::deque<sequence_pointer> waiting_{};   // by id, all behind those that run
  infer::step step_{};
  std::vector<scheduled> scheduled_{};
  std::vector<std::int32_t> proposals_{};  // of all sequences of the step
  std::vector<std::int64_t> parents_{};    // of these, in a tree, within their sequence
  std::vector<row_move> moves_{};          // that the next step makes first
  std::vector<block_copy> slot_copies_{};  // of sequences to other slots, until a step has made them
  std::vector<proposal> asked_{};          // of those that decode
  std::vector<std::int32_t> free_states_{};
  step_results<scalar> step_results_{};
  engine_counts counts_{};
};

}  // namespace heddle::inline v0::infer::detail
