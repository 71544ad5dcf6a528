// heddle/infer/impl/byte_grammar.hpp: states of automata, UTF-8, subset construction.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/infer/byte_grammar.hpp>

#include <algorithm>
#include <map>
#include <string>

namespace heddle::inline v0::infer {

HEDDLE_INLINE std::vector<code_points> canonical(std::vector<code_points> set) {
  std::vector<code_points> out;
  std::sort(set.begin(), set.end(), [](const code_points& a, const code_points& b) { return a.low < b.low; });
  for (code_points r : set) {
    r.high = (std::min)(r.high, last_code_point);
    if (r.low > r.high) continue;
    if (!out.empty() && r.low <= out.back().high + 1)
      out.back().high = (std::max)(out.back().high, r.high);
    else
      out.push_back(r);
  }
  return out;
}

HEDDLE_INLINE std::vector<code_points> complement(const std::vector<code_points>& set) {
  std::vector<code_points> out;
  std::uint32_t next = 0;
  for (const code_points& r : set) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= last_code_point) out.push_back({next, last_code_point});
  return out;
}

HEDDLE_INLINE void byte_grammar::count(std::int64_t operations) {
  if ((work_ += operations) > limits_.work)
    throw grammar_error("heddle: a grammar is too large: it takes more than " + std::to_string(limits_.work) +
                        " operations to build");
}

HEDDLE_INLINE std::int32_t byte_grammar::add() {
  count();
  if (std::ssize(states_) >= limits_.states)
    throw grammar_error("heddle: a grammar is too large: it has more than " + std::to_string(limits_.states) +
                        " states; repeat less");
  states_.emplace_back();
  return static_cast<std::int32_t>(states_.size() - 1);
}
HEDDLE_INLINE void byte_grammar::on(std::int32_t from, unsigned char low, unsigned char high, std::int32_t to) {
  count();
  at(from).edges.push_back({low, high, to});
}
HEDDLE_INLINE void byte_grammar::jump(std::int32_t from, std::int32_t to) {
  count();
  at(from).jumps.push_back(to);
}

HEDDLE_INLINE std::int32_t byte_grammar::literal(std::int32_t from, std::string_view bytes) {
  for (const char c : bytes) {
    const std::int32_t to = add();
    on(from, static_cast<unsigned char>(c), static_cast<unsigned char>(c), to);
    from = to;
  }
  return from;
}

// Splits a range until the bytes of its code points are the product of ranges of bytes.
HEDDLE_INLINE void byte_grammar::utf8(std::int32_t from, std::uint32_t low, std::uint32_t high, std::int32_t to) {
  if (low > high) return;
  constexpr std::uint32_t last_of_length[] = {0x7F, 0x7FF, 0xFFFF, last_code_point};
  for (const std::uint32_t last : last_of_length)
    if (low <= last && high > last) {
      utf8(from, low, last, to);
      return utf8(from, last + 1, high, to);
    }
  if (low <= 0xDFFF && high >= 0xD800) {  // surrogates
    if (low < 0xD800) utf8(from, low, 0xD7FF, to);
    if (high > 0xDFFF) utf8(from, 0xE000, high, to);
    return;
  }
  if (high <= 0x7F) return on(from, static_cast<unsigned char>(low), static_cast<unsigned char>(high), to);
  const int length = high <= 0x7FF ? 2 : high <= 0xFFFF ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    const std::uint32_t rest = (std::uint32_t{1} << (6 * i)) - 1;
    if ((low & ~rest) == (high & ~rest)) continue;
    if ((low & rest) != 0) {
      utf8(from, low, low | rest, to);
      return utf8(from, (low | rest) + 1, high, to);
    }
    if ((high & rest) != rest) {
      utf8(from, low, (high & ~rest) - 1, to);
      return utf8(from, high & ~rest, high, to);
    }
  }
  constexpr std::uint32_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = length - 1; i >= 0; --i) {
    const auto byte = [&](std::uint32_t c) {
      return static_cast<unsigned char>(i == length - 1 ? lead[length] | (c >> (6 * i)) : 0x80 | (c >> (6 * i) & 0x3F));
    };
    const std::int32_t next = i == 0 ? to : add();
    on(from, byte(low), byte(high), next);
    from = next;
  }
}

HEDDLE_INLINE std::int32_t byte_grammar::one_of(std::int32_t from, const std::vector<code_points>& set) {
  const std::int32_t to = add();
  for (const code_points& r : set) utf8(from, r.low, r.high, to);
  return to;
}

HEDDLE_INLINE std::int32_t byte_grammar::one_of_in_json(std::int32_t from, const std::vector<code_points>& set) {
  const std::int32_t to = add();
  // All escapes begin with one backslash, and those in digits with one \u00, so that what counts characters repeats few states.
  std::int32_t backslash = -1, zeros = -1, digit[2] = {-1, -1};
  const auto escape = [&](std::uint32_t c) {
    constexpr std::string_view shorts = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt", digits = "0123456789abcdef";
    const auto last = [&](std::int32_t before, char byte) {
      on(before, static_cast<unsigned char>(byte), static_cast<unsigned char>(byte), to);
    };
    if (backslash < 0) backslash = literal(from, "\\");
    const std::size_t known = shorts.find(static_cast<char>(c));
    if (known != std::string_view::npos) return last(backslash, letters[known]);
    if (zeros < 0) zeros = literal(backslash, "u00");
    std::int32_t& high = digit[c >> 4];  // of control characters, which are below 0x20
    if (high < 0) high = literal(zeros, digits.substr(c >> 4, 1));
    last(high, digits[c & 15]);
  };
  for (const code_points& r : set) {
    std::uint32_t low = r.low;
    for (std::uint32_t c = r.low; c <= (std::min)(r.high, std::uint32_t{'\\'}); ++c)
      if (c < 0x20 || c == '"' || c == '\\') {
        if (c > low) utf8(from, low, c - 1, to);
        escape(c);
        low = c + 1;
      }
    utf8(from, low, r.high, to);
  }
  return to;
}

// States from which the accepting one can be reached.
HEDDLE_INLINE std::vector<bool> byte_grammar::alive(std::int32_t accepting, const std::bitset<256>& bytes) const {
  const std::size_t n = states_.size();
  std::vector<std::vector<std::int32_t>> back(n);
  for (std::size_t s = 0; s < n; ++s) {
    for (const std::int32_t to : states_[s].jumps)
      back[static_cast<std::size_t>(to)].push_back(static_cast<std::int32_t>(s));
    for (const edge& e : states_[s].edges)
      for (unsigned c = e.low; c <= e.high; ++c)
        if (bytes[c]) {
          back[static_cast<std::size_t>(e.to)].push_back(static_cast<std::int32_t>(s));
          break;
        }
  }
  std::vector<bool> found(n);
  std::vector<std::int32_t> open{accepting};
  found[static_cast<std::size_t>(accepting)] = true;
  while (!open.empty()) {
    const std::int32_t s = open.back();
    open.pop_back();
    for (const std::int32_t from : back[static_cast<std::size_t>(s)])
      if (!found[static_cast<std::size_t>(from)]) {
        found[static_cast<std::size_t>(from)] = true;
        open.push_back(from);
      }
  }
  return found;
}

HEDDLE_INLINE std::shared_ptr<const byte_dfa> byte_grammar::compile(std::int32_t accepting,
                                                                    const std::bitset<256>& bytes) const {
  const std::vector<bool> live = alive(accepting, bytes);
  if (!live[0])
    throw grammar_error("heddle: no text fits a grammar, or the tokens of the vocabulary spell none that does");

  // Bytes that no edge tells apart are one class; those that are not allowed are class 0.
  std::array<std::uint16_t, 256> classes{};
  std::array<bool, 257> begins{};
  for (const state& s : states_)
    for (const edge& e : s.edges) begins[e.low] = begins[std::size_t{e.high} + 1] = true;
  std::map<unsigned, std::uint16_t> numbers;  // of intervals between the beginnings
  std::vector<unsigned> first_byte{0};        // of each class
  for (unsigned c = 0, interval = 0; c < 256; ++c) {
    interval += begins[c] ? 1 : 0;
    if (!bytes[c]) continue;
    const auto [at, is_new] = numbers.try_emplace(interval, static_cast<std::uint16_t>(numbers.size() + 1));
    if (is_new) first_byte.push_back(c);
    classes[c] = at->second;
  }
  const std::size_t columns = first_byte.size();

  // A set of states, closed under jumps, as those of its members that have edges or accept.
  std::int64_t work = 0;
  const auto spend = [&](std::int64_t n) {
    if ((work += n) > limits_.work)
      throw grammar_error("heddle: a grammar is too large: making it deterministic takes more than " +
                          std::to_string(limits_.work) + " operations; repeat less");
  };
  std::vector<std::int32_t> seen(states_.size(), -1), open;
  std::int32_t visit = 0;
  const auto close = [&](const std::vector<std::int32_t>& from) {
    std::vector<std::int32_t> out;
    const auto reach = [&](std::int32_t s) {
      if (!live[static_cast<std::size_t>(s)] || seen[static_cast<std::size_t>(s)] == visit) return;
      seen[static_cast<std::size_t>(s)] = visit;
      open.push_back(s);
    };
    for (const std::int32_t s : from) reach(s);
    while (!open.empty()) {
      const std::int32_t s = open.back();
      open.pop_back();
      const state& of = states_[static_cast<std::size_t>(s)];
      if (!of.edges.empty() || s == accepting) out.push_back(s);
      for (const std::int32_t to : of.jumps) reach(to);
      spend(1 + std::ssize(of.jumps));
    }
    ++visit;
    std::sort(out.begin(), out.end());
    spend(4 * std::ssize(out));  // they are kept
    return out;
  };

  std::map<std::vector<std::int32_t>, std::int32_t> known;
  std::vector<const std::vector<std::int32_t>*> sets;
  std::vector<std::int32_t> next;
  std::vector<bool> accepts;
  const auto number_of = [&](std::vector<std::int32_t> set) {
    const auto [at, is_new] = known.try_emplace(std::move(set), static_cast<std::int32_t>(known.size()));
    if (is_new) {
      sets.push_back(&at->first);
      accepts.push_back(std::binary_search(at->first.begin(), at->first.end(), accepting));
      if (std::ssize(sets) * static_cast<std::int64_t>(columns) > limits_.table_entries)
        throw grammar_error("heddle: a grammar is too large: its table has more than " +
                            std::to_string(limits_.table_entries) + " entries; repeat less");
    }
    return at->second;
  };
  number_of(close({0}));
  std::vector<std::vector<std::int32_t>> targets(columns);
  for (std::size_t i = 0; i < sets.size(); ++i) {
    for (const std::int32_t s : *sets[i])
      for (const edge& e : states_[static_cast<std::size_t>(s)].edges) {
        if (!live[static_cast<std::size_t>(e.to)]) continue;
        for (std::size_t c = 1; c < columns; ++c)  // classes ascend with their bytes
          if (first_byte[c] >= e.low && first_byte[c] <= e.high) targets[c].push_back(e.to);
        spend(static_cast<std::int64_t>(columns));
      }
    next.resize((i + 1) * columns, -1);
    for (std::size_t c = 1; c < columns; ++c)
      if (!targets[c].empty()) {
        std::vector<std::int32_t> set = close(targets[c]);
        targets[c].clear();
        const std::int32_t to = number_of(std::move(set));
        next[i * columns + c] = to;
      }
  }
  return std::make_shared<const byte_dfa>(classes, std::move(next), std::move(accepts));
}

}  // namespace heddle::inline v0::infer
