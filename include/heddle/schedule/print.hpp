// heddle/schedule/print.hpp: action tables as text.
#pragma once

#include <heddle/schedule/table.hpp>

#include <string>

namespace heddle::inline v0::schedule {

/// The text form of one action: stage, kind, microbatch: "2F0", "0SEND_F2", "3REDUCE_GRAD".
inline std::string to_text(const action& a) {
  const auto append = [](std::string& text, int n) {
    int scale = 1;
    while (n / scale >= 10) scale *= 10;
    for (; scale > 0; scale /= 10) text += static_cast<char>('0' + n / scale % 10);
  };
  std::string text;
  if (a.stage >= 0) append(text, a.stage);
  text += name(a.kind);
  if (a.microbatch >= 0) append(text, a.microbatch);
  return text;
}

/// The text form of a table: one line per rank, actions separated by blanks; a pair that may run side by side as
/// "(2F5;5B1)OVERLAP_F_B"; "-" for a rank without actions. `parse` reads it back.
inline std::string to_text(table_view table) {
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
  return text;
}

}  // namespace heddle::inline v0::schedule
