// heddle/infer/byte_grammar.hpp: builds automata over bytes, and makes them deterministic.
#pragma once

#include <heddle/infer/byte_dfa.hpp>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// A range of Unicode's code points, both ends included.
struct code_points {
  std::uint32_t low = 0, high = 0;
  friend bool operator==(const code_points&, const code_points&) = default;
};
inline constexpr std::uint32_t last_code_point = 0x10FFFF;  ///< the last of Unicode

/// Ranges in order, merged where they touch. Ranges beyond `last_code_point` are cut.
std::vector<code_points> canonical(std::vector<code_points> set);
/// All code points that are not in the canonical `set`.
std::vector<code_points> complement(const std::vector<code_points>& set);

/// A nondeterministic automaton over bytes that grows from state 0. What is appended begins at a state and ends in the one that is returned; nothing is appended that
/// leads back to where it begins, so parts can be put one after the other. Errors: `grammar_error` where it exceeds its limits.
class byte_grammar {
 public:
  explicit byte_grammar(grammar_limits limits = {}) : limits_(limits) { add(); }

  std::int32_t add();
  std::int64_t states() const noexcept { return static_cast<std::int64_t>(states_.size()); }
  void on(std::int32_t from, unsigned char low, unsigned char high, std::int32_t to);
  void jump(std::int32_t from, std::int32_t to);
  /// Counts an operation of the caller against `grammar_limits::work`.
  void count(std::int64_t operations = 1);

  /// Appends these bytes.
  std::int32_t literal(std::int32_t from, std::string_view bytes);
  /// Appends one code point of the set, in UTF-8. Surrogates are left out.
  std::int32_t one_of(std::int32_t from, const std::vector<code_points>& set);
  /// Appends one code point of the set as it stands between the quotes of a JSON string: quotation mark, backslash and control characters as escapes.
  std::int32_t one_of_in_json(std::int32_t from, const std::vector<code_points>& set);
  /// Appends between `least` and `most` (-1: any number) times what `part(from)` appends.
  template <class Part>
  std::int32_t repeat(std::int32_t from, std::int64_t least, std::int64_t most, Part&& part) {
    for (std::int64_t i = 0; i < least; ++i) {
      count();
      from = part(from);
    }
    if (most < 0) {
      const std::int32_t loop = add();
      jump(from, loop);
      jump(part(loop), loop);
      return loop;
    }
    const std::int32_t end = add();
    for (std::int64_t i = least; i < most; ++i) {
      count();
      jump(from, end);
      from = part(from);
    }
    jump(from, end);
    return end;
  }

  /// The deterministic automaton of the texts that lead from state 0 to `accepting` with these bytes alone, such as those that are tokens of a vocabulary.
  /// Errors: `grammar_error` if there is no such text.
  std::shared_ptr<const byte_dfa> compile(std::int32_t accepting, const std::bitset<256>& bytes) const;

 private:
  struct edge {
    unsigned char low, high;
    std::int32_t to;
  };
  struct state {
    std::vector<edge> edges{};
    std::vector<std::int32_t> jumps{};
  };

  state& at(std::int32_t s) { return states_[static_cast<std::size_t>(s)]; }
  void utf8(std::int32_t from, std::uint32_t low, std::uint32_t high, std::int32_t to);
  std::vector<bool> alive(std::int32_t accepting, const std::bitset<256>& bytes) const;

  grammar_limits limits_;
  std::int64_t work_ = 0;
  std::vector<state> states_{};
};

}  // namespace heddle::inline v0::infer

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/infer/impl/byte_grammar.hpp>
#endif
