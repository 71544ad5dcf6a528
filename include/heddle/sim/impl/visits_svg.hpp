// heddle/sim/impl/visits_svg.hpp: bodies of heddle/sim/visits_svg.hpp.
#pragma once

#include <heddle/sim/visits_svg.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/schedule/paths.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::sim {

HEDDLE_INLINE std::string visits_svg(const schedule::path_table& paths, const schedule::timetable& times,
                                     std::span<const std::string> names, const std::string& title, double shown) {
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  constexpr double row = 15, left = 132, top = 84, width = 1040;
  shown = (std::max)({shown, times.makespan, 1e-9});
  const double scale = width / shown;
  std::vector<int> order(at(paths.nodes())), line(order.size()), colour(order.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const int x = paths.stage_of_node[at(a)], y = paths.stage_of_node[at(b)];
    return x != y ? x < y : a < b;
  });
  int origins = 0;
  for (int k = 0; k < paths.nodes(); ++k) {
    line[at(order[at(k)])] = k;
    if (paths.stage_of_node[at(order[at(k)])] == 0) colour[at(order[at(k)])] = origins++;
  }
  double busy = 0;
  for (const schedule::visit& v : times.visits) busy += v.end - v.start;

  svg_drawing out;
  out.words(24, 34, title, 15, "#111111", "start", true);
  std::string caption = std::to_string(paths.microbatches()) + " microbatches, ";
  caption += svg_number(times.makespan);
  caption += " s; nodes are idle for ";
  const double all = times.makespan * paths.nodes();
  caption += std::to_string(std::lround(all > 0 ? 100 * (1 - busy / all) : 0));
  caption += " % of it";
  out.words(24, 54, caption, 12, "#333333");
  const double bottom = top + row * paths.nodes();
  // Idle time is shaded.
  for (int k = 0; k < paths.nodes(); ++k) out.rect(left, top + row * k + 1, scale * times.makespan, row - 3, "#eef1f4");
  const double step = shown > 400 ? 100 : shown > 100 ? 20 : shown > 40 ? 10 : shown > 10 ? 5 : 1;
  for (double t = 0; t <= shown + 1e-9; t += step) {
    out.rect(left + scale * t - 0.5, top - 4, 1, bottom - top + 4, "#d5dade");
    out.words(left + scale * t, top - 8, svg_number(t) + (t + step > shown ? " s" : ""), 11, "#333333", "middle");
  }
  for (int k = 0; k < paths.nodes(); ++k) {
    const int node = order[at(k)], stage = paths.stage_of_node[at(node)];
    const double y = top + row * k;
    const bool first = k == 0 || paths.stage_of_node[at(order[at(k - 1)])] != stage;
    if (first) {
      if (k > 0) out.rect(24, y - 1, left + width - 24, 1, "#9aa3ab");
      std::string label = "stage ";
      label += std::to_string(stage);
      out.words(24, y + 11, label, 11, "#333333");
    }
    std::string name = std::to_string(node);
    if (at(node) < names.size()) name = names[at(node)];
    out.words(left - 6, y + 11, name, 11, "#333333", "end");
  }
  for (const schedule::visit& v : times.visits) {
    const std::string_view fill = rank_colour(colour[at(paths.origin(v.microbatch))]);
    const double x = left + scale * v.start, w = (std::max)(scale * (v.end - v.start), 0.6);
    const bool loss = schedule::is_loss(v, paths.length), forward = schedule::is_forward(v, paths.length);
    out.rect(x, top + row * line[at(v.node)] + 1, w, row - 3, loss ? "#30363c" : fill, 0,
             forward || loss ? "" : " opacity=\"0.5\"");
  }
  double x = left;
  const double y = bottom + 18;
  for (const int node : order) {
    if (paths.stage_of_node[at(node)] != 0) continue;
    std::string name = "from ";
    name += at(node) < names.size() ? names[at(node)] : std::to_string(node);
    out.rect(x, y, 12, 12, rank_colour(colour[at(node)]));
    out.words(x + 17, y + 10, name, 11, "#333333");
    x += 34 + svg_text_width(name, 11);
  }
  out.words(x, y + 10, "full: forward, pale: backward, dark: loss", 11, "#333333");
  return out.text("", 20, "#ffffff");
}

}  // namespace heddle::inline v0::sim
