// heddle/context/impl/picture.hpp: bodies of heddle/context/picture.hpp.
#pragma once

#include <heddle/context/cost.hpp>
#include <heddle/context/picture.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE std::string to_string(const context_table& t) {
  const auto counted = [](std::size_t n, const char* one) {
    return std::to_string(n) + " " + one + (n == 1 ? "" : "s");
  };
  const auto item = [&](int piece, int part) {
    return std::to_string(piece) + (t.parts() > 1 ? "." + std::to_string(part) : "");
  };
  const int rounds = t.round_count();
  std::string text(to_string(t.pass));
  text += " on " + counted(static_cast<std::size_t>(t.ranks()), "rank") + ": " + counted(t.cut.pieces.size(), "piece");
  if (t.parts() > 1) text += " by " + std::to_string(t.parts()) + " parts of the heads";
  text += ", " + counted(static_cast<std::size_t>(rounds), "round") + ", " +
          counted(t.rounds.transfers.size(), "message") + "\n";
  for (std::size_t i = 0; i < t.cut.pieces.size(); ++i) {
    const context_piece& p = t.cut.pieces[i];
    text += "piece " + std::to_string(i) + ": positions " + std::to_string(p.first) + " to " +
            std::to_string(p.first + (p.count - 1) * p.stride);
    if (p.stride > 1 && p.count > 1) text += " by " + std::to_string(p.stride);
    text += " of document " + std::to_string(p.document) + ", on rank " + std::to_string(p.home) + "\n";
  }
  std::size_t task = 0, message = 0;
  for (int k = 0; k < rounds; ++k) {
    text += "round " + std::to_string(k) + "\n";
    for (int rank = -1; task < t.tasks.size() && t.tasks[task].round == k; ++task) {
      const context_task& own = t.tasks[task];
      text += own.rank == rank ? ", " : (rank < 0 ? "  rank " : "\n  rank ") + std::to_string(own.rank) + " attends ";
      rank = own.rank;
      text += item(own.queries, own.part) + " to " + std::to_string(own.keys);
      if (task + 1 == t.tasks.size() || t.tasks[task + 1].round != k) text += "\n";
    }
    for (; message < t.rounds.transfers.size() && t.rounds.transfers[message].round == k; ++message) {
      const round_transfer& m = t.rounds.transfers[message];
      text += "  " + std::to_string(m.from) + " -> " + std::to_string(m.to) + "  ";
      const auto items = t.rounds.view().items_of(m);
      text += to_string(t.kind_of(items[0]));
      for (std::size_t i = 0; i < items.size(); ++i)
        text += (i == 0 ? " " : ", ") + item(t.piece_of(items[i]), t.part_of(items[i]));
      text += "\n";
    }
  }
  return text;
}

HEDDLE_INLINE std::string context_svg(const context_table& t, std::string_view title) {
  constexpr std::array<const char*, 4> colours{"#0072b2", "#d55e00", "#e69f00", "#56b4e9"};  // by kind
  constexpr double left = 80, top = 64, column = 150, line = 62, room = column - 16;
  const auto n = static_cast<std::size_t>(t.ranks());
  const int rounds = t.round_count();
  const std::vector<std::int64_t> areas = context_areas(t);
  const auto most = static_cast<double>(
      areas.empty() ? 1 : (std::max)(std::int64_t{1}, *std::max_element(areas.begin(), areas.end())));
  // Rows of each message, and the most that one rank sends or receives in a round.
  std::vector<double> rows;
  std::vector<double> sent(static_cast<std::size_t>(rounds) * n, 0), received = sent;
  double widest = 1;
  for (const round_transfer& m : t.rounds.transfers) {
    double count = 0;
    for (const int item : t.rounds.view().items_of(m)) count += static_cast<double>(t.cut[t.piece_of(item)].count);
    rows.push_back(count);
    double& out = sent[static_cast<std::size_t>(m.round) * n + static_cast<std::size_t>(m.from)];
    double& in = received[static_cast<std::size_t>(m.round) * n + static_cast<std::size_t>(m.to)];
    widest = (std::max)({widest, out += count, in += count});
  }
  svg_drawing d;
  d.words(8, 24, title, 16, "#000000", "start", true);
  for (std::size_t kind = 0; kind < colours.size(); ++kind) {
    const double x = left + static_cast<double>(kind) * 110;
    d.rect(x, 34, 10, 10, colours[kind]);
    d.words(x + 14, 43, to_string(static_cast<context_kind>(kind)), 11, "#000000");
  }
  d.rect(left + 440, 34, 10, 10, "#c4c9d0");
  d.words(left + 454, 43, "pairs attended", 11, "#000000");
  for (int k = 0; k < rounds; ++k) d.words(left + column * k, top - 6, "round " + std::to_string(k), 11, "#555555");
  for (int r = 0; r < t.ranks(); ++r) {
    const double y = top + line * r;
    d.words(8, y + 14, "rank " + std::to_string(r), 12, "#000000");
    for (int k = 0; k < rounds; ++k) {
      const double x = left + column * k;
      d.rect(x, y, room, line - 8, "#f4f4f4");
      const std::int64_t area = areas[static_cast<std::size_t>(k) * n + static_cast<std::size_t>(r)];
      if (area == 0) continue;
      d.rect(x, y + 2, room * static_cast<double>(area) / most, 18, "#c4c9d0");
      d.words(x + 4, y + 15, std::to_string(area), 10, "#000000");
    }
  }
  std::vector<double> out(sent.size(), 0), in(sent.size(), 0);  // where the next one begins
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const round_transfer& m = t.rounds.transfers[i];
    const char* const colour =
        colours[static_cast<std::size_t>(t.kind_of(t.rounds.items[static_cast<std::size_t>(m.first)]))];
    const double width = room * rows[i] / widest, x = left + column * m.round;
    const auto draw = [&](int rank, double& at, double down, const char* arrow, int peer) {
      const double y = top + line * rank + down;
      d.rect(x + at, y, (std::max)(1.0, width - 1), 13, colour);
      d.words(x + at + 2, y + 10, svg_fitted(arrow + std::to_string(peer), 9, width), 9, "#ffffff");
      at += width;
    };
    const std::size_t round = static_cast<std::size_t>(m.round) * n;
    draw(m.from, out[round + static_cast<std::size_t>(m.from)], 23, "\u2192 ", m.to);
    draw(m.to, in[round + static_cast<std::size_t>(m.to)], 38, "\u2190 ", m.from);
  }
  return d.text("", 8, "#ffffff");
}

}  // namespace heddle::inline v0
