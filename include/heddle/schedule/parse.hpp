// heddle/schedule/parse.hpp: action tables from text, at run time or as a type.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0::schedule {
namespace detail {

// What a text is not; `begin` and `size` are the piece of text that is wrong.
struct text_problem {
  const char* what = nullptr;
  std::size_t begin = 0;
  std::size_t size = 0;
};

class table_reader {
 public:
  constexpr table_reader(std::string_view text, action_table& out) : text_(text), out_(out) {}

  constexpr text_problem run() {
    out_.offsets.push_back(0);
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' || c == '|') {
        end_rank();
        ++at_;
      } else if (c == ' ' || c == ',' || c == '\t' || c == '\r') {
        ++at_;
      } else if (c == '-') {
        ++at_;
        if (static_cast<int>(out_.actions.size()) != out_.offsets.back() || !at_end())
          return {"\"-\" stands alone, for a rank that does nothing", at_ - 1, 1};
        out_.offsets.push_back(out_.offsets.back());
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '|') {
          if (!at_end()) return {"\"-\" stands alone, for a rank that does nothing", at_, 1};
          ++at_;
        }
      } else if (c == '(' ? !read_pair() : !read_action()) {
        return found_;
      }
    }
    end_rank();
    for (std::size_t s = 0; s < out_.rank_of_stage.size(); ++s)
      if (out_.rank_of_stage[s] < 0) return {"a stage with a smaller number than another has no action", 0, 0};
    if (out_.actions.empty()) return {"there is no action", 0, 0};
    if (out_.microbatches == 0) return {"there is no microbatch", 0, 0};
    if (out_.form.chains < 1 || out_.rank_of_stage.size() % static_cast<std::size_t>(out_.form.chains) != 0)
      return {"the number of stages is no multiple of the number of chains", 0, 0};
    const table_view view = out_.view();
    for (action& a : out_.actions) a.peer = peer_of(a, view);
    return {};
  }

 private:
  static constexpr int largest = 1000000;
  static constexpr std::string_view separators = " ,\t\r\n|";

  constexpr bool at_end() const {
    return at_ >= text_.size() || separators.find(text_[at_]) != std::string_view::npos;
  }

  constexpr void end_rank() {
    const int size = static_cast<int>(out_.actions.size());
    if (size == out_.offsets.back()) return;  // blank lines are no ranks
    out_.offsets.push_back(size);
  }
  // -1 where there is no digit.
  constexpr int read_number() {
    int n = -1;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      n = n >= largest ? largest : (n < 0 ? 0 : n) * 10 + (text_[at_] - '0');
    return n;
  }
  // Two computations that may run side by side.
  constexpr bool read_pair() {
    const std::size_t begin = at_++;
    if (!read_action(';')) return false;
    ++at_;
    if (!read_action(')')) return false;
    ++at_;
    action& first = out_.actions[out_.actions.size() - 2];
    const action& second = out_.actions.back();
    if (!is_compute(first.kind) || !is_compute(second.kind))
      return fail("only computations (F, B, I, W) can overlap", begin);
    first.overlaps_next = true;
    const std::string_view word("OVERLAP");
    const bool named = text_.substr(at_, word.size()) == word;
    if (named) at_ += word.size();
    for (const action_kind k : {first.kind, second.kind}) {
      if (!named || text_.substr(at_, 1) != "_" || text_.substr(at_ + 1, name(k).size()) != name(k))
        return fail("expected (ACTION;ACTION)OVERLAP_F_B with the kinds of the two actions", begin);
      at_ += 1 + name(k).size();
    }
    return at_end() || fail("expected a blank, a comma or the end of the rank's list", at_);
  }
  // `closing`: what stands behind an action of a pair.
  constexpr bool read_action(char closing = '\0') {
    const std::size_t begin = at_;
    const int rank = static_cast<int>(out_.offsets.size()) - 1;
    action a{};
    a.stage = read_number();
    const std::size_t name_begin = at_;
    while (at_ < text_.size() && ((text_[at_] >= 'A' && text_[at_] <= 'Z') || text_[at_] == '_')) ++at_;
    const std::string_view word = text_.substr(name_begin, at_ - name_begin);
    a.microbatch = read_number();
    int kind = 0;
    while (kind < action_kinds && name(static_cast<action_kind>(kind)) != word) ++kind;
    if (kind == action_kinds)
      return fail("unknown action; expected [stage]KIND[microbatch], as in 2F0 or 0SEND_F2", begin);
    a.kind = static_cast<action_kind>(kind);
    if (is_per_stage(a.kind) != (a.microbatch < 0))
      return fail(a.microbatch < 0 ? "the number of the microbatch is missing" : "this action has no microbatch",
                  begin);
    if (a.stage < 0) a.stage = rank;
    if (a.stage >= largest || a.microbatch >= largest) return fail("the number is too large", begin);
    const bool inside = closing != '\0';
    if (inside ? at_ >= text_.size() || text_[at_] != closing : !at_end())
      return inside ? fail("expected (ACTION;ACTION)OVERLAP_F_B, as in (2F5;5B1)OVERLAP_F_B", begin)
                    : fail("expected a blank, a comma or the end of the rank's list", at_);
    const auto stage = static_cast<std::size_t>(a.stage);
    while (out_.rank_of_stage.size() <= stage) out_.rank_of_stage.push_back(-1);
    if (out_.rank_of_stage[stage] < 0) out_.rank_of_stage[stage] = rank;
    if (a.microbatch >= out_.microbatches) out_.microbatches = a.microbatch + 1;
    out_.actions.push_back(a);
    return true;
  }
  constexpr bool fail(const char* what, std::size_t begin) {
    std::size_t end = begin;
    while (end < text_.size() && separators.find(text_[end]) == std::string_view::npos) ++end;
    found_ = {what, begin, end - begin};
    return false;
  }

  std::string_view text_;
  action_table& out_;
  std::size_t at_ = 0;
  text_problem found_{};
};

}  // namespace detail

/// A table from its text form: actions separated by blanks or commas, ranks by line ends or `|`, "-" for a rank that
/// does nothing. A stage lives on the rank that lists it first; an action without a stage number belongs to the stage
/// with the rank's number: "F0 B0". What the lists do not say, `form` does.
/// Reads what `to_text` writes; whether the table makes sense is for `validate` to say.
/// Errors: `schedule_error` with the piece of text that is not an action.
constexpr action_table parse(std::string_view text, table_form form = {}) {
  action_table table;
  table.form = form;
  const detail::text_problem found = detail::table_reader(text, table).run();
  if (found.what != nullptr) {
    std::string message = "heddle: the text of a schedule: ";
    message += found.what;
    if (found.size > 0) message += ": \"" + std::string(text.substr(found.begin, found.size)) + "\"";
    throw schedule_error(message);
  }
  return table;
}

/// A schedule written out as text: `written<"F0 F1 B0 B1 | F0 B0 F1 B1">`. With transfers in the text, they are run as
/// written; without, `lower` places them. It runs on exactly as many pipeline ranks as it has lists.
/// Errors: does not compile if the text is not a table.
template <fixed_string Text, table_form Form = table_form{}>
struct written {
  using kind = schedule_kind;
  static constexpr bool is_static = true;
  static constexpr bool readable = [] {
    action_table table;
    table.form = Form;
    return detail::table_reader(Text.view(), table).run().what == nullptr;
  }();

  static constexpr table_form form() noexcept { return Form; }

  static constexpr int microbatch_count() {
    return ask([](const action_table& t) { return t.microbatches; }, 1);
  }
  static constexpr int stages(int) {
    return ask([](const action_table& t) { return static_cast<int>(t.rank_of_stage.size()); }, 1);
  }
  static constexpr int rank_of(int stage, int) {
    return ask([stage](const action_table& t) { return t.rank_of_stage[static_cast<std::size_t>(stage)]; }, 0);
  }
  static constexpr bool fits(int ranks) {
    return ask([ranks](const action_table& t) { return static_cast<int>(t.offsets.size()) == ranks + 1; }, true);
  }
  template <class Sink>
  constexpr void generate(int rank, int, Sink& emit) const {
    ask(
        [rank, &emit](const action_table& t) {
          for (const action& a : t.view().list(rank)) emit(a.kind, a.stage, a.microbatch, a.overlaps_next);
          return true;
        },
        true);
  }

 private:
  template <class Question, class Answer>
  static constexpr Answer ask(Question question, Answer otherwise) {
    if constexpr (readable)
      return question(parse(Text.view(), Form));
    else
      return otherwise;
  }

  static_assert(readable,
                "heddle: written<\"...\">: the text is not a schedule; write [stage]KIND[microbatch] separated by "
                "blanks, ranks separated by |, as in \"F0 F1 B0 B1 | F0 B0 F1 B1\"");
};

}  // namespace heddle::inline v0::schedule
