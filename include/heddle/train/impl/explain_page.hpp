// heddle/train/impl/explain_page.hpp: bodies of heddle/train/explain_page.hpp.
#pragma once

#include <heddle/draw/svg.hpp>
#include <heddle/sim/gantt.hpp>
#include <heddle/train/explain_page.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::inline v0::train {
namespace detail {

inline constexpr std::string_view page_ink = "#e6ebf1", page_soft = "#9aa7b5", page_background = "#10151c";
inline constexpr std::array<const char*, 6> memory_colours{"#5aa9f7", "#56d4a0", "#b18cf5",
                                                           "#d95c8c", "#ffb224", "#8b98a9"};

// In a page a picture needs no name space, which would be an address.
HEDDLE_INLINE std::string inline_svg(std::string svg) {
  constexpr std::string_view space = " xmlns=\"http://www.w3.org/2000/svg\"";
  if (const auto at = svg.find(space); at != std::string::npos) svg.erase(at, space.size());
  return "<div class=wide>" + svg + "</div>\n";
}
HEDDLE_INLINE std::string table_row(const std::vector<std::string>& cells, std::string_view tag = "td") {
  std::string row = "<tr>";
  for (const std::string& c : cells) {
    row += "<";
    row += tag;
    row += ">" + svg_escaped(c) + "</";
    row += tag;
    row += ">";
  }
  return row + "</tr>\n";
}

// A bar for each class, by kind, and the device's line.
HEDDLE_INLINE std::string memory_picture(const explanation& e) {
  constexpr double left = 110, width = 660, step = 34;
  const auto device = static_cast<double>(e.on.memory);
  double most = device;
  for (const rank_class& c : e.classes)
    if (c.member.memory) most = (std::max)(most, static_cast<double>(c.member.memory->total()));
  const double scale = width / (1.05 * most);
  svg_drawing d;
  double x = left;
  std::size_t k = 0;
  for (const auto& [name, bytes] : kinds_of_memory({})) {
    d.rect(x, 12, 12, 12, memory_colours[k++], 2);
    d.words(x + 17, 23, name, 13, page_soft);
    x += 30 + svg_text_width(name, 13);
  }
  double y = 44;
  for (const rank_class& c : e.classes) {
    d.words(left - 10, y + 16, "rank " + std::to_string(c.member.rank), 13, page_ink, "end");
    if (c.member.memory) {
      x = left;
      k = 0;
      for (const auto& [name, bytes] : kinds_of_memory(*c.member.memory)) {
        const double w = scale * static_cast<double>(bytes);
        if (w > 0) d.rect(x, y, w, 22, memory_colours[k]);
        x += w;
        ++k;
      }
      d.words(x + 8, y + 16, shown_amount(static_cast<double>(c.member.memory->total()), "B"), 13, page_ink);
    }
    y += step;
  }
  const double line = left + scale * device;
  d.rect(line, 36, 2, y - 40, "#ff6b6b");
  d.words(line, y + 14, "device " + shown_amount(device, "B"), 13, "#ff6b6b", "middle");
  return inline_svg(d.page("", left + width + 130, y + 28, page_background));
}

// Devices in the parts of the narrowest level; the first rank's group of each axis is marked.
HEDDLE_INLINE std::string mesh_picture(const explanation& e) {
  constexpr int most = 256;
  constexpr double size = 24, gap = 3;
  const int of_part = (std::min)(e.on.levels.front().devices, 32);
  const int used = (e.ranks + 63) / 32 * 32;  // and a row that is free
  const int shown = (std::min)({e.on.devices, most, used}), columns = (std::max)(1, 32 / of_part);
  svg_drawing d;
  for (int device = 0; device < shown; ++device) {
    const int part = device / of_part, in_part = device % of_part;
    const double x = 12 + (part % columns) * (of_part * (size + gap) + 14) + in_part * (size + gap);
    const double y = 12 + (part / columns) * (size + 16);
    std::string_view fill = device < e.ranks ? "#2b3644" : "#171d25";
    for (std::size_t a = e.axes.size(); a-- > 0;)
      if (const axis_on_cluster& axis = e.axes[a];
          axis.ranks > 1 && device % axis.distance == 0 && device / axis.distance < axis.ranks && device > 0)
        fill = rank_colour(static_cast<int>(a));
    if (device == 0) fill = page_ink;
    d.rect(x, y, size, size, fill, 3);
    d.words(x + size / 2, y + 16, std::to_string(device), 9, device == 0 ? page_background : page_ink, "middle");
  }
  std::string legend = "<p>White: rank 0. ";
  for (std::size_t a = 0; a < e.axes.size(); ++a)
    if (e.axes[a].ranks > 1)
      legend += "<span class=key style=\"background:" + std::string(rank_colour(static_cast<int>(a))) + "\"></span>" +
                svg_escaped(e.axes[a].name) + ": " + std::to_string(e.axes[a].ranks) + " ranks, " +
                std::to_string(e.axes[a].distance) + " apart, inside of one " + svg_escaped(e.axes[a].level) + ". ";
  if (shown < e.on.devices) legend += std::to_string(e.on.devices - shown) + " devices more are not drawn.";
  return inline_svg(d.text("", 12, page_background)) + legend + "</p>\n";
}

HEDDLE_INLINE std::string pipeline_picture(const explanation& e) {
  constexpr std::size_t most = 6000;
  if (e.table.actions.size() > most)
    return "<p>" + std::to_string(e.table.actions.size()) + " actions: too many to draw.</p>\n";
  sim::timeline in_ms = e.line;
  in_ms.makespan *= 1e3;
  for (auto* times : {&in_ms.start, &in_ms.end, &in_ms.busy})
    for (double& t : *times) t *= 1e3;
  return inline_svg(sim::schedule_svg(e.table, in_ms, "one pipeline, the slowest ranks of each stage",
                                      {.unit = "ms", .width = 1080}));
}

HEDDLE_INLINE std::string box_text(const std::vector<std::int64_t>& extents) {
  std::string text;
  for (const std::int64_t n : extents) text += (text.empty() ? "" : " x ") + std::to_string(n);
  return text;
}
// A name with a star for each number between dots: equal blocks are one row.
HEDDLE_INLINE std::string name_of_all_blocks(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    const std::size_t end = (std::min)(name.find('.', i), name.size());
    const std::string_view part = name.substr(i, end - i);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (number)
      out += '*';
    else
      out += part;
    if (end < name.size()) out += '.';
    i = end + 1;
  }
  return out;
}
HEDDLE_INLINE std::string tensor_rows(const explanation& e) {
  std::string rows;
  std::set<std::string> known;
  for (const rank_class& c : e.classes)
    for (const model::parameter& p : c.member.tensors)
      if (const std::string name = name_of_all_blocks(p.name); known.insert(name + box_text(p.local)).second)
        rows += table_row({name, box_text(p.shape), box_text(p.logical), box_text(p.local), box_text(p.start),
                           std::to_string(c.member.rank)});
  return rows;
}

inline constexpr std::string_view page_head = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>strategy</title><style>
body{margin:0 auto;max-width:1120px;padding:16px;background:#10151c;color:#e6ebf1;font:15px/1.5 "Segoe UI",Arial,sans-serif}
h1{font-size:22px;margin:8px 0}h2{font-size:17px;margin:28px 0 8px}p{color:#9aa7b5;margin:4px 0}
.wide{overflow-x:auto}svg{display:block;max-width:none;height:auto}
.cards{display:flex;flex-wrap:wrap;gap:10px;margin:14px 0}.cards div{background:#1a212b;border-radius:8px;padding:8px 14px}
.cards b{display:block;font-size:18px}table{border-collapse:collapse;white-space:nowrap;font-size:14px}
td,th{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid #2b3644}th{color:#9aa7b5;font-weight:600}
.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 8px}.bad{color:#ff6b6b}
</style></head><body>
)html";

}  // namespace detail

HEDDLE_INLINE std::string text_page(std::string_view title, std::string_view text) {
  return std::string(detail::page_head) + "<h1>" + svg_escaped(std::string(title)) + "</h1>\n<div class=wide><pre>" +
         svg_escaped(std::string(text)) + "</pre></div>\n</body></html>\n";
}

HEDDLE_INLINE std::string explain_page(const explanation& e, std::string_view search) {
  using detail::shown_amount, detail::shown_seconds, detail::shown_share, detail::table_row;
  const auto card = [](const std::string& value, const char* what) {
    return "<div><b>" + svg_escaped(value) + "</b>" + what + "</div>\n";
  };
  std::string out(detail::page_head);
  out += "<h1>" + svg_escaped(e.mesh) + "</h1>\n<p>" + svg_escaped(e.strategy) + "</p>\n<p>" + svg_escaped(e.model) +
         "</p>\n<div class=cards>\n";
  out += card(shown_seconds(e.seconds), "a step") + card(shown_amount(e.tokens_per_second(), ""), "tokens/s") +
         card(shown_share(e.mfu()), "MFU") + card(shown_share(e.bubble), "bubble") +
         card(shown_amount(static_cast<double>(e.parameters), ""), "parameters") +
         card(std::to_string(e.ranks) + " of " + std::to_string(e.on.devices), "devices") + "</div>\n";
  if (!e.fits())
    out += "<p class=bad>Does not fit: rank " + std::to_string(e.fullest().member.rank) + " needs " +
           shown_amount(static_cast<double>(e.missing_bytes()), "B") + " more than a device has.</p>\n";
  if (!search.empty())
    out += "<h2>Search</h2>\n<div class=wide><pre>" + svg_escaped(std::string(search)) + "</pre></div>\n";
  out += "<h2>Memory</h2>\n" + detail::memory_picture(e) + "<h2>Sent in a step</h2>\n<div class=wide><table>\n" +
         table_row({"axis", "ranks", "level", "call", "calls", "bytes", "of ranks"}, "th");
  for (const detail::traffic_row& r : detail::traffic_rows(e))
    out += table_row({r.axes, std::to_string(r.ranks), r.level, r.call, std::to_string(r.calls),
                      shown_amount(static_cast<double>(r.bytes), "B"), r.of});
  out += "</table></div>\n<p>Calls and bytes that one rank gives to them.</p>\n<h2>Pipeline</h2>\n" +
         detail::pipeline_picture(e) + "<h2>Mesh on the cluster</h2>\n" + detail::mesh_picture(e) +
         "<h2>Tensors</h2>\n<div class=wide><table>\n" +
         table_row({"tensor", "published", "as split", "part of a rank", "begins at", "of rank"}, "th") +
         detail::tensor_rows(e) + "</table></div>\n</body></html>\n";
  return out;
}

}  // namespace heddle::inline v0::train
