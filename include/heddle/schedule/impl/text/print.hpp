// heddle/schedule/impl/text/print.hpp: bodies of heddle/schedule/text/print.hpp.
#pragma once

#include <heddle/schedule/text/print.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <string>

namespace heddle::inline v0::schedule {
namespace detail {

HEDDLE_INLINE void append_number(std::string& text, int n) {
  if (n < 0) {
    text += '?';
    return;
  }
  int scale = 1;
  while (n / scale >= 10) scale *= 10;
  for (; scale > 0; scale /= 10) text += static_cast<char>('0' + n / scale % 10);
}

HEDDLE_INLINE void append_ways(std::string& text, table_view t) {
  text += "WAYS";
  for (int i = 0; i < t.microbatches(); ++i)
    for (int s = 0; s < t.stages(); ++s) {
      if (!t.handles(s, i) || t.previous(s, i) >= 0) continue;
      text += ' ';
      append_number(text, i);
      text += ':';
      append_number(text, s);
      int left = t.stages();
      for (int to = t.next(s, i); to >= 0 && to < t.stages() && --left > 0; to = t.next(to, i)) {
        text += '>';
        append_number(text, to);
      }
    }
  text += '\n';
}

HEDDLE_INLINE bool lists_tell_ranks(table_view t) {
  std::string known(static_cast<std::size_t>(t.stages()), '\0');
  int left = t.stages();
  for (int r = 0; r < t.ranks() && left > 0; ++r)
    for (const action& a : t.list(r)) {
      if (a.stage < 0 || a.stage >= t.stages() || known[static_cast<std::size_t>(a.stage)] != 0) continue;
      if (t.rank_of(a.stage) != r) return false;
      known[static_cast<std::size_t>(a.stage)] = 1;
      --left;
    }
  return left == 0;
}

}  // namespace detail
}  // namespace heddle::inline v0::schedule

namespace heddle::inline v0::schedule {

HEDDLE_INLINE std::string to_text(const action& a) {
  std::string text;
  if (a.stage >= 0) detail::append_number(text, a.stage);
  text += name(a.kind);
  if (a.microbatch >= 0) detail::append_number(text, a.microbatch);
  return text;
}

HEDDLE_INLINE std::string to_text(table_view table) {
  std::string text;
  for (int r = 0; r < table.ranks(); ++r) {
    if (table.offset(r) == table.offset(r + 1)) text += '-';
    for (int k = table.offset(r); k < table.offset(r + 1); ++k) {
      if (k != table.offset(r)) text += ' ';
      if (table[k].overlaps_next && k + 1 < table.offset(r + 1)) {
        text += '(';
        text += to_text(table[k]);
        text += ';';
        text += to_text(table[k + 1]);
        text += ")OVERLAP_";
        text += name(table[k].kind);
        text += '_';
        text += name(table[k + 1].kind);
        ++k;
      } else {
        text += to_text(table[k]);
      }
    }
    text += '\n';
  }
  if (!detail::lists_tell_ranks(table)) {
    text += "STAGES";
    for (const int rank : table.rank_of_stage()) {
      text += ' ';
      detail::append_number(text, rank);
    }
    text += '\n';
  }
  if (table.has_paths() && table.paths_fit()) detail::append_ways(text, table);
  return text;
}

}  // namespace heddle::inline v0::schedule
