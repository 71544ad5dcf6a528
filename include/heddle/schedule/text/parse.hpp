// heddle/schedule/text/parse.hpp: action tables from text, at run time or as a type.
#pragma once

#include <heddle/core/fixed_string.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::schedule {
namespace detail {

// What a text is not; `begin` and `size` are the piece of text that is wrong, `rank` and `position` where it stands in
// the lists, or `stage` what it is about.
struct text_problem {
  const char* what = nullptr;
  std::size_t begin = 0;
  std::size_t size = 0;
  int rank = -1;
  int position = -1;
  int stage = -1;
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
      } else if (c == '-' ? !read_idle() : c == '(' ? !read_pair() : !read_word()) {
        return found_;
      }
    }
    end_rank();
    return finish() ? text_problem{} : found_;
  }

 private:
  static constexpr int largest = 1000000;
  static constexpr std::string_view separators = " ,\t\r\n|";

  constexpr bool at_end() const { return at_ >= text_.size() || separators.find(text_[at_]) != std::string_view::npos; }

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
  constexpr bool ends_line() const { return at_ >= text_.size() || text_[at_] == '\n' || text_[at_] == '|'; }
  constexpr bool list_is_empty() const { return static_cast<int>(out_.actions.size()) == out_.offsets.back(); }

  // A rank that does nothing.
  constexpr bool read_idle() {
    constexpr const char* alone = "\"-\" stands alone, for a rank that does nothing";
    const std::size_t begin = at_++;
    if (!list_is_empty() || !at_end()) return fail(alone, begin);
    for (; !ends_line(); ++at_)
      if (!at_end()) return fail(alone, at_);
    out_.offsets.push_back(out_.offsets.back());
    return true;
  }

  // An action; or, at the beginning of a line, what it says about the whole table.
  constexpr bool read_word() {
    if (list_is_empty()) {
      for (const std::string_view word : {std::string_view("STAGES"), std::string_view("WAYS")}) {
        if (text_.substr(at_, word.size()) != word) continue;
        at_ += word.size();
        if (!at_end()) return fail("expected a blank behind STAGES or WAYS", at_ - word.size());
        while (!ends_line()) {
          if (at_end())
            ++at_;
          else if (word == "WAYS" ? !read_way() : !read_rank_of_stage())
            return false;
        }
        return true;
      }
    }
    return read_action();
  }
  constexpr bool read_rank_of_stage() {
    const std::size_t begin = at_;
    ranks_.push_back(read_number());
    return (at_end() && ranks_.back() >= 0) ||
           about("expected the rank of each stage behind STAGES, as in STAGES 0 1 1 0", begin);
  }
  // 0:0>1>3: a microbatch and its stages.
  constexpr bool read_way() {
    constexpr const char* expected = "expected microbatch:stage>stage>.., as in 0:0>1>3";
    const std::size_t begin = at_;
    const int microbatch = read_number();
    if (microbatch < 0 || at_ >= text_.size() || text_[at_] != ':') return about(expected, begin);
    for (int previous = -1;;) {
      ++at_;
      const int stage = read_number();
      const bool goes_on = at_ < text_.size() && text_[at_] == '>';
      if (stage < 0 || (!goes_on && !at_end())) return about(expected, begin);
      if (stage >= largest || microbatch >= largest) return about("the number is too large", begin);
      if (previous >= 0) visits_.back().next = stage;
      visits_.push_back({microbatch, stage, previous, -1, begin});
      previous = stage;
      if (!goes_on) break;
    }
    if (microbatch >= out_.microbatches) out_.microbatches = microbatch + 1;
    has_ways_ = true;
    return true;
  }

  // What needs all lists.
  constexpr bool finish() {
    const int lists = static_cast<int>(out_.offsets.size()) - 1;
    if (!ranks_.empty()) {
      if (out_.rank_of_stage.size() > ranks_.size())
        return stage_fails("has actions, but STAGES does not say on which rank it is", ranks_.size());
      out_.rank_of_stage = ranks_;
    }
    for (std::size_t s = 0; s < out_.rank_of_stage.size(); ++s) {
      if (out_.rank_of_stage[s] < 0)
        return stage_fails("has no action, but a later one has; STAGES says where such a stage is", s);
      if (out_.rank_of_stage[s] >= lists) return stage_fails("is on a rank that has no list", s);
    }
    if (out_.actions.empty()) return about("there is no action", 0, 0);
    if (out_.microbatches == 0) return about("there is no microbatch", 0, 0);
    const std::size_t stages = out_.rank_of_stage.size();
    if (out_.form.chains < 1 || stages % static_cast<std::size_t>(out_.form.chains) != 0)
      return about("the number of stages is no multiple of the number of chains", 0, 0);
    if (has_ways_ && !finish_ways()) return false;
    const table_view view = out_.view();
    for (action& a : out_.actions) a.peer = peer_of(a, view);
    return true;
  }
  constexpr bool finish_ways() {
    const auto m = static_cast<std::size_t>(out_.microbatches);
    const std::size_t cells = out_.rank_of_stage.size() * m;
    if (cells > static_cast<std::size_t>(most_cells)) return about("there are too many stages and microbatches", 0, 0);
    out_.next.assign(cells, not_on_path);
    out_.previous.assign(cells, not_on_path);
    for (const visit_of_way& v : visits_) {
      const auto stage = static_cast<std::size_t>(v.stage);
      if (stage >= out_.rank_of_stage.size()) return about("there is no such stage in the lists", v.begin);
      const std::size_t cell = stage * m + static_cast<std::size_t>(v.microbatch);
      if (out_.next[cell] != not_on_path) return about("a microbatch comes to one stage twice", v.begin);
      out_.next[cell] = v.next;
      out_.previous[cell] = v.previous;
    }
    return true;
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
      return fail("only computations (F, B, I, W) can overlap", begin, 2);
    first.overlaps_next = true;
    const std::string_view word("OVERLAP");
    const bool named = text_.substr(at_, word.size()) == word;
    if (named) at_ += word.size();
    for (const action_kind k : {first.kind, second.kind}) {
      if (!named || text_.substr(at_, 1) != "_" || text_.substr(at_ + 1, name(k).size()) != name(k))
        return fail("expected (ACTION;ACTION)OVERLAP_F_B with the kinds of the two actions", begin, 2);
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
  constexpr std::size_t piece(std::size_t begin) const {
    std::size_t end = begin;
    while (end < text_.size() && separators.find(text_[end]) == std::string_view::npos) ++end;
    return end - begin;
  }
  // Of the action that is being read, or one of those before it.
  constexpr bool fail(const char* what, std::size_t begin, int before = 0) {
    about(what, begin);
    found_.rank = static_cast<int>(out_.offsets.size()) - 1;
    found_.position = static_cast<int>(out_.actions.size()) - out_.offsets.back() - before;
    return false;
  }
  constexpr bool about(const char* what, std::size_t begin) { return about(what, begin, piece(begin)); }
  constexpr bool about(const char* what, std::size_t begin, std::size_t size) {
    found_ = {what, begin, size};
    return false;
  }
  constexpr bool stage_fails(const char* what, std::size_t stage) {
    found_ = {what};
    found_.stage = static_cast<int>(stage);
    return false;
  }

  struct visit_of_way {
    int microbatch, stage, previous, next;
    std::size_t begin;
  };

  std::string_view text_;
  action_table& out_;
  std::size_t at_ = 0;
  std::vector<int> ranks_{};  // of the stages, where the text says them
  std::vector<visit_of_way> visits_{};
  bool has_ways_ = false;
  text_problem found_{};
};

}  // namespace detail

/// A table from its text form: actions separated by blanks or commas, ranks by line ends or `|`, "-" for a rank that
/// does nothing. A stage lives on the rank that lists it first; an action without a stage number belongs to the stage
/// with the rank's number: "F0 B0". Behind the lists, as if it were a rank, may stand
/// - "STAGES 0 1 1 0": the rank of each stage, needed for stages without actions;
/// - "WAYS 0:0>1>3 1:0>2>3": the stages that each microbatch goes over, where they have ways of their own.
/// What neither the lists nor these say, `form` does.
/// Reads what `to_text` writes; whether the table makes sense is for `check_table` to say.
/// Errors: `schedule_error` with rank and position in its list, the piece of text that is wrong, and what was expected.
constexpr action_table parse(std::string_view text, table_form form = {}) {
  action_table table;
  table.form = form;
  const detail::text_problem found = detail::table_reader(text, table).run();
  if (found.what != nullptr) {
    std::string message = "heddle: the text of a schedule: ";
    if (found.rank >= 0) {
      message += "rank ";
      message += std::to_string(found.rank);
      message += ", position ";
      message += std::to_string(found.position);
      message += ": ";
    }
    if (found.stage >= 0) {
      message += "stage ";
      message += std::to_string(found.stage);
      message += ' ';
    }
    message += found.what;
    if (found.size > 0) {
      message += ": \"";
      message += text.substr(found.begin, found.size);
      message += '"';
    }
    throw schedule_error(message);
  }
  return table;
}

/// Carries the place of what is wrong in a text into the compiler's message, in words: `at::rank<1>, at::position<1>,
/// at::character<14>`; without position where it is in no list.
template <class... Where>
struct text_finding {
  static constexpr bool none = false;
};

namespace detail {
template <int Rank, int Position, std::size_t Character>
using text_finding_at =
    std::conditional_t<(Position >= 0), text_finding<at::rank<Rank>, at::position<Position>, at::character<Character>>,
                       std::conditional_t<(Rank >= 0), text_finding<at::rank<Rank>, at::character<Character>>,
                                          text_finding<at::character<Character>>>>;
}  // namespace detail

/// A schedule written out as text: `written<"F0 F1 B0 B1 | F0 B0 F1 B1">`. With transfers in the text, they are run as
/// written; without, `lower` places them. It runs on exactly as many pipeline ranks as it has lists.
/// Errors: does not compile if the text is not a table; `text_finding` in the message says where.
template <fixed_string Text, table_form Form = table_form{}>
class written {
  struct sizes {
    detail::text_problem found{};
    std::size_t actions = 0, ranks = 0, stages = 0, cells = 0;
  };
  static constexpr sizes size = [] {
    action_table t;
    t.form = Form;
    const detail::text_problem found = detail::table_reader(Text.view(), t).run();
    if (found.what != nullptr) return sizes{found};
    return sizes{found, t.actions.size(), t.offsets.size() - 1, t.rank_of_stage.size(), t.next.size()};
  }();

 public:
  using kind = schedule_kind;
  static constexpr bool is_static = true;
  static constexpr bool readable = size.found.what == nullptr;
  /// The pipeline ranks that it has lists for.
  static constexpr int ranks_of_text = static_cast<int>(size.ranks);

  constexpr written() noexcept { refuse_other_text(); }

  // A text that cannot be read stands for one microbatch on one stage per rank, so that its uses add no errors of their own.
  static constexpr table_form form() noexcept { return readable ? Form : table_form{}; }
  static constexpr int microbatch_count() noexcept { return readable ? table.microbatches : 1; }
  static constexpr int stages(int ranks) noexcept { return readable ? static_cast<int>(size.stages) : ranks; }
  static constexpr int rank_of(int stage, int) noexcept { return readable ? table.view().rank_of(stage) : stage; }
  static constexpr bool fits(int ranks) noexcept { return !readable || ranks == static_cast<int>(size.ranks); }
  static constexpr bool has_paths() noexcept { return size.cells > 0; }
  static constexpr int next(int stage, int microbatch) noexcept { return table.view().next(stage, microbatch); }
  static constexpr int previous(int stage, int microbatch) noexcept { return table.view().previous(stage, microbatch); }
  static constexpr int action_count(int ranks) noexcept {
    return readable ? static_cast<int>(size.actions) : 2 * ranks;
  }

  template <class Sink>
  constexpr void generate(int rank, int, Sink& emit) const {
    if constexpr (readable) {
      for (const action& a : table.view().list(rank)) emit(a.kind, a.stage, a.microbatch, a.overlaps_next);
    } else {
      emit(action_kind::forward, rank, 0);
      emit(action_kind::backward, rank, 0);
    }
  }

 private:
  static constexpr auto table = [] {
    static_action_table<size.actions, size.ranks, size.stages, size.cells> out{};
    if constexpr (readable) {
      const action_table t = parse(Text.view(), Form);
      for (std::size_t k = 0; k < size.actions; ++k) out.actions[k] = t.actions[k];
      for (std::size_t r = 0; r <= size.ranks; ++r) out.offsets[r] = t.offsets[r];
      for (std::size_t s = 0; s < size.stages; ++s) out.rank_of_stage[s] = t.rank_of_stage[s];
      if constexpr (size.cells > 0)
        for (std::size_t c = 0; c < size.cells; ++c) {
          out.ways.next[c] = t.next[c];
          out.ways.previous[c] = t.previous[c];
        }
      out.microbatches = t.microbatches;
      out.form = Form;
    }
    return out;
  }();

  // Here, not in the class: clang takes a class whose assertion failed for broken, and says so for each use.
  static constexpr void refuse_other_text() noexcept {
    static_assert(readable || detail::text_finding_at<size.found.rank, size.found.position, size.found.begin>::none,
                  "heddle: written<\"...\">: the text is not a schedule; write [stage]KIND[microbatch] separated by "
                  "blanks, ranks separated by |, as in \"F0 F1 B0 B1 | F0 B0 F1 B1\"; `text_finding` says where: rank, "
                  "position in its list, character");
  }
};

}  // namespace heddle::inline v0::schedule
