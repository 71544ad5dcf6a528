// heddle/schedule/impl/text/derive.hpp: bodies of heddle/schedule/text/derive.hpp.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/schedule/lower/passes.hpp>
#include <heddle/schedule/lower/reorder.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/text/derive.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::schedule {
namespace detail {

// Reads a text from left to right.
class derivation_reader {
 public:
  explicit derivation_reader(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }
  void go_to(std::size_t at) { at_ = at; }
  bool ends() {
    skip();
    return at_ == text_.size();
  }
  bool next_is(char c) {
    skip();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  void need(char c, const std::string& what) {
    if (!take(c)) fail(what);
  }
  // Letters, digits, '-', '_' and ':', as many as there are.
  std::string_view word() {
    skip();
    const std::size_t begin = at_;
    const auto belongs = [](char c) { return letter(c) || digit(c) || c == '-' || c == '_' || c == ':'; };
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  std::string_view letters() {
    skip();
    const std::size_t begin = at_;
    while (at_ < text_.size() && letter(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  // -1 where there is no digit; a number of more than six digits is refused.
  std::int64_t number() {
    skip();
    const std::size_t begin = at_;
    std::int64_t n = 0;
    for (; at_ < text_.size() && digit(text_[at_]); ++at_) {
      n = 10 * n + (text_[at_] - '0');
      if (at_ - begin >= 6) fail_at(begin, "a number of at most six digits");
    }
    return at_ == begin ? -1 : n;
  }
  [[noreturn]] void fail(const std::string& expected) {
    skip();
    fail_at(at_, expected);
  }
  [[noreturn]] void fail_at(std::size_t at, const std::string& expected) const {
    std::size_t end = at;
    while (end < text_.size() && text_[end] != ' ' && text_[end] != '|') ++end;
    if (end == at && at < text_.size()) ++end;
    const std::string got = at >= text_.size() ? "the end" : "\"" + std::string(text_.substr(at, end - at)) + "\"";
    throw schedule_error(text_of(
        {"heddle: schedule::derive: expected ", expected, " at character ", at, " of \"", text_, "\", got ", got}));
  }

 private:
  static bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// An expression of a derivation, read anew for every rank.
class derived_amount {
 public:
  derived_amount(derivation_reader in, bool per_rank) : in_(in), per_rank_(per_rank) {}

  int operator()(int rank, const table_view& t) const {
    derivation_reader in = in_;
    return read(in, rank, t);
  }
  // Reads over the expression.
  int read(derivation_reader& in, int rank, const table_view& t) const {
    const std::int64_t n = sum(in, {t.ranks(), rank, t.microbatches(), t.stages() / t.ranks()}, 0);
    return static_cast<int>(n);
  }

 private:
  struct letters {
    std::int64_t p, r, m, v;
  };
  static constexpr std::int64_t largest = 1'000'000'000;
  static constexpr int deepest = 64;

  static std::int64_t bounded(std::int64_t n, const derivation_reader& in, std::size_t begin) {
    if (n > largest || n < -largest) in.fail_at(begin, "an amount of at most 10^9");
    return n;
  }
  std::int64_t sum(derivation_reader& in, const letters& of, int depth) const {
    in.ends();
    const std::size_t begin = in.at();
    std::int64_t n = product(in, of, depth);
    for (;;) {
      if (in.take('+'))
        n += product(in, of, depth);
      else if (in.take('-'))
        n -= product(in, of, depth);
      else
        return n;
      bounded(n, in, begin);
    }
  }
  std::int64_t product(derivation_reader& in, const letters& of, int depth) const {
    in.ends();
    const std::size_t begin = in.at();
    std::int64_t n = factor(in, of, depth);
    for (;;) {
      if (in.take('*')) {
        n *= factor(in, of, depth);
      } else if (in.take('/')) {
        in.ends();
        const std::size_t divisor = in.at();
        const std::int64_t by = factor(in, of, depth);
        if (by == 0) in.fail_at(divisor, "a divisor other than 0");
        n /= by;
      } else {
        return n;
      }
      bounded(n, in, begin);
    }
  }
  std::int64_t factor(derivation_reader& in, const letters& of, int depth) const {
    if (depth > deepest) in.fail("an expression of at most 64 levels");
    if (in.take('-')) return -factor(in, of, depth + 1);
    if (in.take('(')) {
      const std::int64_t n = sum(in, of, depth + 1);
      in.need(')', "\")\"");
      return n;
    }
    if (const std::int64_t n = in.number(); n >= 0) return n;
    in.ends();
    const std::size_t begin = in.at();
    const std::string_view word = in.letters();
    if (word == "min" || word == "max") {
      in.need('(', "\"(\"");
      const std::int64_t a = sum(in, of, depth + 1);
      in.need(',', "\",\"");
      const std::int64_t b = sum(in, of, depth + 1);
      in.need(')', "\")\"");
      return word == "min" ? (std::min)(a, b) : (std::max)(a, b);
    }
    if (word == "p") return of.p;
    if (word == "m") return of.m;
    if (word == "v") return of.v;
    if (word == "r" && per_rank_) return of.r;
    in.fail_at(begin, per_rank_ ? "a number, p, r, m, v, min(, max( or \"(\""
                                : "a number, p, m, v, min(, max( or \"(\", the same on all ranks");
  }

  derivation_reader in_;
  bool per_rank_;
};

// What stands behind a pass.
inline derived_amount read_amount(derivation_reader& in, const table_view& t, bool per_rank) {
  const derived_amount amount(in, per_rank);
  static_cast<void>(amount.read(in, 0, t));
  return amount;
}

// "loop", "v" or "wave", with a number behind a colon.
inline action_table read_map(derivation_reader& in, const table_view& t) {
  in.ends();
  const std::size_t begin = in.at();
  constexpr const char* maps = "a map: loop[:number], v or wave[:number]";
  const std::string_view shape = in.letters();
  const bool waves = shape == "v" || shape == "wave";
  if (!waves && shape != "loop") in.fail_at(begin, maps);
  std::int64_t parts = 1;
  if (shape != "v" && in.take(':') && (parts = in.number()) < 1) in.fail("a number of at least 1");
  const std::int64_t stages = (waves ? 2 : 1) * parts * t.ranks();
  if (stages != t.stages() || t.chains() != 1)
    in.fail_at(begin, text_of({"a map of the table's ", t.stages(), " stages in ", t.chains(), " chains on ", t.ranks(),
                               " ranks (this one has ", stages, " in 1)"}));
  return waves ? on_ranks(t, [](int s, int p) { return wave<>::rank_of(s, p); })
               : on_ranks(t, [](int s, int p) { return loop<>::rank_of(s, p); });
}

inline action_table read_pass(derivation_reader& in, const table_view& t) {
  in.ends();
  const std::size_t begin = in.at();
  const std::string_view pass = in.word();
  if (pass == "split_backward") return lower(t, passes::split_backward{});
  if (pass == "merge_backward") return lower(t, passes::merge_backward{.across_ranks = true});
  if (pass == "pair_neighbours") return lower(t, passes::pair_neighbours{});
  if (pass == "limit_live") return lower(t, passes::limit_live<derived_amount>{read_amount(in, t, true)});
  if (pass == "delay_weights") return lower(t, passes::delay_weights<derived_amount>{read_amount(in, t, true)});
  if (pass == "on_map") return read_map(in, t);
  if (pass != "in_rounds")
    in.fail_at(begin,
               "a pass (split_backward, limit_live, delay_weights, in_rounds, on_map, pair_neighbours or "
               "merge_backward)");
  if (in.ends() || in.next_is('|')) return lower(t, passes::in_rounds{});
  const std::size_t amount = in.at();
  const int size = read_amount(in, t, false)(0, t);
  if (size < 1) in.fail_at(amount, "rounds of at least one microbatch");
  return lower(t, passes::in_rounds{size});
}

}  // namespace detail

HEDDLE_INLINE action_table derive(std::string_view text, int ranks, int microbatches) {
  detail::derivation_reader in(text);
  const std::string_view name = in.word();
  if (name.empty()) in.fail("the name of a schedule");
  action_table table = make_table(named(name, microbatches), ranks);
  while (!in.ends()) {
    in.need('|', "\"|\" or the end");
    table = detail::read_pass(in, table);
  }
  return table;
}

}  // namespace heddle::inline v0::schedule
