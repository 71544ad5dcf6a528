// heddle/infer/byte_dfa.hpp: a deterministic automaton over bytes, its errors and limits.
#pragma once

#include <heddle/core/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A regular expression or JSON schema that cannot constrain answers: it is malformed, not supported, too large, or nothing fits it. `what()` says where and why.
struct grammar_error : error {
  using error::error;
};

/// Constrained answers take as much memory as they may, or as many expressions and schemas compile as may at once; a later try may succeed.
struct grammar_busy_error : error {
  using error::error;
};

/// What a grammar may grow to. Units: states, entries of the transition table (4 bytes each), elementary operations of its construction.
struct grammar_limits {
  std::int64_t states = 50'000;  ///< of the nondeterministic automaton
  std::int64_t table_entries = 2'000'000;
  std::int64_t work = 20'000'000;
};

/// A finite automaton over bytes from each of whose states an accepting one can be reached, so that no text that it takes is a dead end. Immutable; made by `byte_grammar`.
class byte_dfa {
 public:
  /// `classes`: the class of each byte, from 0 on. `next`: [states, classes], -1 where no text goes on. State 0 is the beginning. Errors: `grammar_error` for sizes that do not fit.
  byte_dfa(std::array<std::uint16_t, 256> classes, std::vector<std::int32_t> next, std::vector<bool> accepting)
      : classes_(classes), next_(std::move(next)), accepting_(std::move(accepting)) {
    next_.shrink_to_fit();  // it grew row by row
    if (accepting_.empty() || next_.size() % accepting_.size() != 0)
      throw grammar_error("heddle: byte_dfa: a table of " + std::to_string(next_.size()) + " entries does not have " +
                          std::to_string(accepting_.size()) + " rows");
    columns_ = next_.size() / accepting_.size();
    for (const std::uint16_t c : classes_)
      if (c >= columns_)
        throw grammar_error("heddle: byte_dfa: class " + std::to_string(c) + " is not one of " +
                            std::to_string(columns_));
  }
  std::int64_t states() const noexcept { return std::ssize(accepting_); }
  /// The state after a byte; -1: no text goes on so.
  std::int32_t next(std::int32_t state, unsigned char c) const noexcept {
    return next_[static_cast<std::size_t>(state) * columns_ + classes_[c]];
  }
  bool accepting(std::int32_t state) const noexcept { return accepting_[static_cast<std::size_t>(state)]; }
  /// Memory that it takes.
  std::size_t bytes() const noexcept {
    return sizeof *this + next_.capacity() * sizeof(std::int32_t) + accepting_.capacity() / 8;
  }

 private:
  std::array<std::uint16_t, 256> classes_;
  std::vector<std::int32_t> next_;
  std::vector<bool> accepting_;
  std::size_t columns_ = 1;
};

/// A state of a `byte_dfa`, as a `byte_automaton`. The automaton must outlive it.
class dfa_position {
 public:
  explicit dfa_position(const byte_dfa& of, std::int32_t state = 0) noexcept : of_(&of), state_(state) {}
  bool take(unsigned char c) noexcept {
    state_ = of_->next(state_, c);
    return state_ >= 0;
  }
  bool complete() const noexcept { return of_->accepting(state_); }
  std::int32_t state() const noexcept { return state_; }
  friend bool operator==(const dfa_position&, const dfa_position&) noexcept = default;

 private:
  const byte_dfa* of_;
  std::int32_t state_;
};

}  // namespace heddle::inline v0::infer
