// heddle/observe/timeline_svg.hpp: pipelines as Gantt charts in a standalone SVG picture: measured above predicted.
#pragma once

#include <heddle/core/observer.hpp>
#include <heddle/observe/activity.hpp>
#include <heddle/observe/text_file.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0::observe {

/// One thing in a chart. Units: nanoseconds from the chart's left edge.
struct timeline_box {
  int row = 0;
  activity kind = activity::other;
  std::string label = {};  ///< written inside if there is room: the microbatch, say
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// One chart: a row per rank or stage. Measured events and simulated tables both become one.
struct timeline_chart {
  std::string title = {};                  ///< "measured"
  std::vector<std::string> captions = {};  ///< "bubble 27.3 %", "peak memory 41 MiB"; shown beside the title
  std::vector<std::string> rows = {};      ///< labels, top to bottom
  std::vector<timeline_box> boxes = {};
};

struct timeline_options {
  std::string title = {};     ///< of the whole picture
  std::string subtitle = {};  ///< mesh, schedule, machine
  int width = 1200;           ///< pixels
  bool same_scale = true;     ///< one time scale for all charts; otherwise each chart fills the width
};

/// A chart of what ranks did: one row per rank, in the order of `ranks` (all that occur, ascending, if empty), boxes
/// labelled with their microbatch. Shows the pipeline of `step` (or of all steps, if negative): the span from the first
/// to the last stage work of these ranks, and nothing outside of it.
inline timeline_chart timeline_from_events(std::span<const event> events, int step,
                                           std::span<const std::string> rank_names, std::span<const int> ranks = {}) {
  std::vector<int> order(ranks.begin(), ranks.end());
  if (order.empty()) {
    for (const event& e : events)
      if (e.rank >= 0) order.push_back(e.rank);
    std::sort(order.begin(), order.end());
    order.erase(std::unique(order.begin(), order.end()), order.end());
  }
  const auto row_of = [&order](int rank) { return std::find(order.begin(), order.end(), rank) - order.begin(); };
  const auto shown = [&](const event& e) {
    return (step < 0 || e.step == step) && row_of(e.rank) < static_cast<std::ptrdiff_t>(order.size());
  };
  timeline_chart chart;
  chart.title = "measured";
  for (const int r : order) {
    const auto i = static_cast<std::size_t>(r);
    chart.rows.push_back(r >= 0 && i < rank_names.size() ? rank_names[i] : "rank " + std::to_string(r));
  }
  std::int64_t begin = (std::numeric_limits<std::int64_t>::max)();
  std::int64_t end = (std::numeric_limits<std::int64_t>::min)();
  for (const event& e : events) {
    if (!shown(e) || !is_stage_work(e.kind)) continue;
    begin = (std::min)(begin, e.begin_ns);
    end = (std::max)(end, e.end_ns);
  }
  for (const event& e : events) {
    if (!shown(e) || e.end_ns <= begin || e.begin_ns >= end) continue;
    chart.boxes.push_back({static_cast<int>(row_of(e.rank)), e.kind,
                           e.microbatch >= 0 ? std::to_string(e.microbatch) : std::string{},
                           (std::max)(e.begin_ns, begin) - begin, (std::min)(e.end_ns, end) - begin});
  }
  return chart;
}

namespace detail {

struct timeline_style {
  activity kind;
  const char* fill;
  const char* text;
  bool thin;  // in the strip under the boxes
};
inline constexpr std::array<timeline_style, 11> timeline_styles{{
    {activity::forward, "#5aa9f7", "#08213b", false},
    {activity::backward, "#56d4a0", "#06281b", false},
    {activity::backward_input, "#56d4a0", "#06281b", false},
    {activity::backward_weight, "#b7d968", "#222d05", false},
    {activity::optimizer, "#b18cf5", "#1f0f3d", false},
    {activity::data, "#8b98a9", "#10151c", false},
    {activity::checkpoint, "#8b98a9", "#10151c", false},
    {activity::other, "#8b98a9", "#10151c", false},
    {activity::send, "#ffb224", "#000000", true},
    {activity::recv, "#a3660c", "#000000", true},
    {activity::collective, "#d95c8c", "#000000", true},
}};
inline const timeline_style& timeline_style_of(activity kind) {
  for (const timeline_style& s : timeline_styles)
    if (s.kind == kind) return s;
  return timeline_styles[7];
}

// Two decimals at most, with a point whatever the locale.
inline std::string decimal(double value) {
  const long long hundredths = std::llround(value * 100.0);
  const long long n = hundredths < 0 ? -hundredths : hundredths;
  std::string text = (hundredths < 0 ? "-" : "") + std::to_string(n / 100);
  if (n % 100 != 0)
    text += n % 10 == 0 ? "." + std::to_string(n % 100 / 10)
                        : "." + std::string(n % 100 < 10 ? "0" : "") + std::to_string(n % 100);
  return text;
}

// About how wide a text is, in pixels, in the sans-serif fonts that viewers use: an upper estimate.
inline double text_width(std::string_view text, double size) {
  double ems = 0.0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;  // continuation of a character counted already
    ems += c == ' ' || c == '.' || c == ',' || c == '(' || c == ')' || c == 'i' || c == 'l' ? 0.36
           : c == 'm' || c == 'w' || (c >= 'A' && c <= 'Z')                                 ? 0.8
                                                                                            : 0.62;
  }
  return ems * size;
}

// The step between ticks of an axis: 1, 2 or 5 times a power of ten, with at most `most` steps in `range`.
inline double tick_step(double range, int most) {
  if (!(range > 0.0)) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(range / most)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / (factor * power) <= most) return factor * power;
  return 10.0 * power;
}

class timeline_drawing {
 public:
  timeline_drawing(std::span<const timeline_chart> charts, const timeline_options& options)
      : charts_(charts), width_(options.width) {
    for (const timeline_chart& c : charts)
      for (const std::string& r : c.rows) left_ = (std::max)(left_, margin + text_width(r, 12.0) + 14.0);
    left_ = (std::min)(left_, 0.35 * width_);
    std::int64_t longest = 1;
    for (const timeline_chart& c : charts) longest = (std::max)(longest, span_of(c));
    double y = header(options);
    for (const timeline_chart& c : charts_)
      y = chart(c, y, options.same_scale ? longest : (std::max)(span_of(c), std::int64_t{1}));
    y = legend(y);
    height_ = y;
  }

  std::string text() const {
    const std::string w = std::to_string(width_);
    const std::string h = decimal(std::ceil(height_));
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h + "\" viewBox=\"0 0 " + w +
           " " + h +
           "\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n"
           "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
           "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#1b222c\"/>"
           "<rect width=\"2\" height=\"6\" fill=\"#2a3441\"/></pattern></defs>\n"
           "<rect width=\"" +
           w + "\" height=\"" + h + "\" rx=\"8\" fill=\"#0f141b\"/>\n" + out_ + "</svg>\n";
  }

 private:
  static constexpr double margin = 24.0;
  static constexpr double box_height = 22.0;
  static constexpr double strip_height = 5.0;

  static std::int64_t span_of(const timeline_chart& c) {
    std::int64_t end = 0;
    for (const timeline_box& b : c.boxes) end = (std::max)(end, b.end_ns);
    return end;
  }

  void rect(double x, double y, double w, double h, std::string_view fill, double radius = 0.0,
            std::string_view more = {}) {
    out_ += "<rect x=\"" + decimal(x) + "\" y=\"" + decimal(y) + "\" width=\"" + decimal(w) + "\" height=\"" +
            decimal(h) + "\" fill=\"" + std::string(fill) + "\"";
    if (radius > 0.0) out_ += " rx=\"" + decimal(radius) + "\"";
    out_ += std::string(more) + "/>\n";
  }
  void words(double x, double y, std::string_view text, double size, std::string_view fill,
             std::string_view anchor = "start", bool bold = false) {
    out_ += "<text x=\"" + decimal(x) + "\" y=\"" + decimal(y) + "\" font-size=\"" + decimal(size) + "\" fill=\"" +
            std::string(fill) + "\"";
    if (anchor != "start") out_ += " text-anchor=\"" + std::string(anchor) + "\"";
    if (bold) out_ += " font-weight=\"600\"";
    out_ += ">" + xml_escape(text) + "</text>\n";
  }

  double header(const timeline_options& o) {
    double y = margin;
    if (!o.title.empty()) words(margin, (y += 18.0), o.title, 20.0, "#f2f5f9", "start", true);
    if (!o.subtitle.empty()) words(margin, (y += 22.0), fitted(o.subtitle, 13.0, width_ - 2 * margin), 13.0, "#9aa7b8");
    return y + (y > margin ? 12.0 : 0.0);
  }

  double chart(const timeline_chart& c, double y, std::int64_t range_ns) {
    const double right = width_ - margin;
    const double scale = (right - left_) / static_cast<double>(range_ns);
    const auto x_of = [&](std::int64_t ns) { return left_ + scale * static_cast<double>(ns); };

    y += 18.0;
    words(margin, y, c.title, 15.0, "#f2f5f9", "start", true);
    const double captions_left = (std::max)(left_, margin + text_width(c.title, 15.0) + 24.0);
    std::string line;
    for (const std::string& s : c.captions) {  // wrapped between captions, never within one
      const std::string longer = line.empty() ? s : line + " \u00b7 " + s;
      if (!line.empty() && captions_left + text_width(longer, 13.0) > right) {
        words(captions_left, y, line, 13.0, "#c4cfdb");
        y += 18.0;
        line = s;
      } else {
        line = longer;
      }
    }
    if (!line.empty()) words(captions_left, y, fitted(line, 13.0, right - captions_left), 13.0, "#c4cfdb");
    y += 12.0;

    const bool strips = std::any_of(c.boxes.begin(), c.boxes.end(),
                                    [](const timeline_box& b) { return timeline_style_of(b.kind).thin; });
    const double row_height = box_height + (strips ? strip_height + 7.0 : 6.0);
    const double top = y;
    const double bottom = top + row_height * static_cast<double>(c.rows.size());
    const double range_ms = static_cast<double>(range_ns) * 1e-6;
    const double tick_ms = tick_step(range_ms, 12);
    for (int i = 0; i * tick_ms <= range_ms * (1.0 + 1e-9); ++i) {
      const double x = left_ + (right - left_) * (i * tick_ms / range_ms);
      rect(x - 0.5, top, 1.0, bottom - top + 4.0, "#232c38");
      const std::string label = decimal_ms(i * tick_ms, tick_ms);
      const bool over_edge = x + text_width(label, 11.0) / 2 > width_ - 4.0;
      words(over_edge ? right : x, bottom + 18.0, i == 0 ? "0 ms" : label, 11.0, "#8593a5",
            over_edge ? "end" : "middle");
    }
    const double span_width = scale * static_cast<double>(span_of(c));
    for (std::size_t r = 0; r < c.rows.size(); ++r) {
      const double row_top = top + row_height * static_cast<double>(r);
      words(left_ - 12.0, row_top + 16.0, fitted(c.rows[r], 12.0, left_ - 12.0 - margin), 12.0, "#d5dde7", "end");
      if (span_width > 0.0) rect(left_, row_top, span_width, box_height, "url(#idle)", 2.0);
    }
    // Thin strips after the boxes, so that what is nested in a box stays visible; both in order of time.
    std::vector<const timeline_box*> boxes;
    for (const timeline_box& b : c.boxes)
      if (b.row >= 0 && static_cast<std::size_t>(b.row) < c.rows.size() && b.end_ns > b.begin_ns) boxes.push_back(&b);
    std::sort(boxes.begin(), boxes.end(), [](const timeline_box* a, const timeline_box* b) {
      const bool thin_a = timeline_style_of(a->kind).thin, thin_b = timeline_style_of(b->kind).thin;
      if (thin_a != thin_b) return thin_b;
      if (a->row != b->row) return a->row < b->row;
      return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
    });
    for (const timeline_box* b : boxes) {
      const timeline_style& style = timeline_style_of(b->kind);
      used_[static_cast<std::size_t>(&style - timeline_styles.data())] = true;
      const double row_top = top + row_height * b->row;
      const double x = x_of(b->begin_ns);
      const double w = scale * static_cast<double>(b->end_ns - b->begin_ns);
      if (style.thin) {
        rect(x, row_top + box_height + 2.0, (std::max)(w, 0.75), strip_height, style.fill);
        continue;
      }
      // A gap between neighbours where there is room for one.
      const double gap = w > 4.0 ? 1.0 : 0.0;
      rect(x, row_top, (std::max)(w - gap, 0.5), box_height, style.fill, w > 6.0 ? 2.0 : 0.0);
      if (!b->label.empty() && text_width(b->label, 11.0) + 3.0 <= w)
        words(x + (w - gap) / 2.0, row_top + 15.0, b->label, 11.0, style.text, "middle", true);
    }
    return bottom + 34.0;
  }

  double legend(double y) {
    // One entry per colour that occurs; kinds that share a colour share the entry.
    struct entry {
      const timeline_style* style;
      std::string text;
    };
    std::vector<entry> entries;
    for (std::size_t i = 0; i < timeline_styles.size(); ++i) {
      if (!used_[i]) continue;
      const timeline_style& s = timeline_styles[i];
      const std::string name = std::string(activity_name(s.kind)) + (s.thin ? " (with waiting)" : "");
      const auto same = std::find_if(entries.begin(), entries.end(),
                                     [&s](const entry& e) { return std::string_view(e.style->fill) == s.fill; });
      if (same == entries.end())
        entries.push_back({&s, name});
      else
        same->text += ", " + name;
    }
    double x = margin;
    y += 8.0;
    const auto item = [&](std::string_view fill, bool thin, const std::string& text) {
      const double w = 22.0 + text_width(text, 12.0) + 18.0;
      if (x + w > width_ - margin && x > margin) {
        x = margin;
        y += 22.0;
      }
      rect(x, thin ? y - 3.5 : y - 7.0, 16.0, thin ? strip_height : 12.0, fill, thin ? 0.0 : 2.0);
      words(x + 22.0, y + 4.0, text, 12.0, "#c4cfdb");
      x += w;
    };
    for (const entry& e : entries) item(e.style->fill, e.style->thin, e.text);
    item("url(#idle)", false, "idle");
    return y + margin;
  }

  // A tick's label with as many decimals as the step needs.
  static std::string decimal_ms(double ms, double step) {
    if (step >= 0.01) return decimal(ms);
    return decimal(ms * 1000.0) + " \u00b5s";
  }
  static std::string fitted(const std::string& text, double size, double room) {
    if (text_width(text, size) <= room) return text;
    std::string cut = text;
    while (!cut.empty() && text_width(cut, size) + size > room) {
      while (cut.size() > 1 && (static_cast<unsigned char>(cut.back()) & 0xC0) == 0x80) cut.pop_back();
      cut.pop_back();
    }
    return cut + "\u2026";
  }

  std::span<const timeline_chart> charts_;
  int width_;
  double left_ = 90.0;
  double height_ = 0.0;
  std::array<bool, timeline_styles.size()> used_{};
  std::string out_;
};

}  // namespace detail

/// The picture as text: the charts one above the other on one time axis, a row per rank, idle time hatched, sends,
/// receives and collectives as thin strips under the boxes. Stands alone: no scripts, no external fonts or styles.
inline std::string timeline_svg(std::span<const timeline_chart> charts, const timeline_options& options = {}) {
  return detail::timeline_drawing(charts, options).text();
}

/// Writes the measured chart above the predicted one. Errors: `io_error` with the path and the system's text.
inline void write_timeline_svg(const std::string& path, const timeline_chart& measured, const timeline_chart& predicted,
                               const timeline_options& options = {}) {
  const std::array<timeline_chart, 2> charts{measured, predicted};
  write_text_file(path, timeline_svg(charts, options));
}

}  // namespace heddle::inline v0::observe
