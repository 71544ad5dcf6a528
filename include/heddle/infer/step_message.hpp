// heddle/infer/step_message.hpp: a step as numbers that travel to the other ranks of a model.
#pragma once

#include <heddle/infer/step.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace heddle::inline v0::infer {

/// Why `follow` of a runner returned: the leader's last word, or `interrupt`, after which it is called again.
enum class followed { finished, interrupted };

/// A step as a row of numbers behind a head of fixed length. A head that says `finish` or `interrupt` has no step behind it.
class step_message {
 public:
  using head_type = std::array<std::int64_t, 10>;

  /// The message of a step.
  void write(const step& s) {
    head_ = {1,
             count(s.tokens),
             count(s.sequences),
             count(s.blocks),
             count(s.wanted),
             count(s.copies),
             count(s.parents),
             count(s.moves),
             (s.streams ? 1 : 0) + (s.everywhere ? 2 : 0),
             count(s.state_copies)};
    body_.clear();
    for (const std::int32_t t : s.tokens) body_.push_back(t);
    for (const sequence_rows& q : s.sequences)
      body_.insert(body_.end(), {q.first_row, q.rows, q.position, q.first_block, q.blocks, q.keys, q.state});
    for (const std::int32_t b : s.blocks) body_.push_back(b);
    for (const std::int64_t w : s.wanted) body_.push_back(w);
    for (const block_copy& c : s.copies) body_.insert(body_.end(), {c.from, c.to});
    for (const std::int64_t p : s.parents) body_.push_back(p);
    for (const row_move& m : s.moves) body_.insert(body_.end(), {m.from, m.to});
    for (const block_copy& c : s.state_copies) body_.insert(body_.end(), {c.from, c.to});
  }
  /// The message that no step follows.
  void write_finish() { write_word(0); }
  /// The message that no step follows until `follow` is called again.
  void write_interrupt() { write_word(2); }

  std::span<std::int64_t> head() noexcept { return head_; }
  std::span<std::int64_t> body() noexcept { return body_; }
  bool has_step() const noexcept { return head_[0] == 1; }
  /// What a message without a step says.
  followed word() const noexcept { return head_[0] == 0 ? followed::finished : followed::interrupted; }
  /// Makes room for what the head has announced.
  void make_room() {
    body_.resize(static_cast<std::size_t>(head_[1] + 7 * head_[2] + head_[3] + head_[4] + 2 * head_[5] + head_[6] +
                                          2 * head_[7] + 2 * head_[9]));
  }
  /// The step that head and body hold.
  void read(step& s) const {
    const std::int64_t* at = body_.data();
    const auto next = [&] { return *at++; };
    const auto narrow = [&] { return static_cast<std::int32_t>(*at++); };
    s.tokens.resize(size(1));
    for (std::int32_t& t : s.tokens) t = narrow();
    s.sequences.resize(size(2));
    for (sequence_rows& q : s.sequences)
      for (std::int64_t* field : {&q.first_row, &q.rows, &q.position, &q.first_block, &q.blocks, &q.keys, &q.state})
        *field = next();
    s.blocks.resize(size(3));
    for (std::int32_t& b : s.blocks) b = narrow();
    s.wanted.resize(size(4));
    for (std::int64_t& w : s.wanted) w = next();
    s.copies.resize(size(5));
    for (block_copy& c : s.copies)
      for (std::int32_t* field : {&c.from, &c.to}) *field = narrow();
    s.parents.resize(size(6));
    for (std::int64_t& p : s.parents) p = next();
    s.moves.resize(size(7));
    for (row_move& m : s.moves)
      for (std::int32_t* field : {&m.from, &m.to}) *field = narrow();
    s.state_copies.resize(size(9));
    for (block_copy& c : s.state_copies)
      for (std::int32_t* field : {&c.from, &c.to}) *field = narrow();
    s.streams = (head_[8] & 1) != 0;
    s.everywhere = (head_[8] & 2) != 0;
  }

 private:
  void write_word(std::int64_t word) {
    head_ = {word};
    body_.clear();
  }
  template <class List>
  static std::int64_t count(const List& list) noexcept {
    return static_cast<std::int64_t>(list.size());
  }
  std::size_t size(std::size_t field) const noexcept { return static_cast<std::size_t>(head_[field]); }

  head_type head_{};
  std::vector<std::int64_t> body_{};
};

}  // namespace heddle::inline v0::infer
