// heddle/draw/impl/gantt.hpp: bodies of heddle/draw/gantt.hpp.
#pragma once

#include <heddle/draw/gantt.hpp>
#include <heddle/draw/svg.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE double tick_step(double range, int most) {
  if (!(range > 0.0)) return 1.0;
  const double power = std::pow(10.0, std::floor(std::log10(range / most)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / (factor * power) <= most) return factor * power;
  return 10.0 * power;
}

HEDDLE_INLINE gantt_drawing::gantt_drawing(std::span<const gantt_chart> charts, const gantt_options& options)
    : options_(options), width_(options.width) {
  for (const gantt_chart& c : charts)
    for (const std::string& r : c.rows) left_ = (std::max)(left_, margin + svg_text_width(r, 12.0) + 14.0);
  left_ = std::ceil((std::min)(left_, 0.35 * width_));
  double longest = options.shown;
  for (const gantt_chart& c : charts) longest = (std::max)(longest, c.span());
  double y = header();
  for (const gantt_chart& c : charts) y = chart(c, y, options.same_scale ? longest : c.span());
  height_ = std::ceil(legend(y));
}

HEDDLE_INLINE std::string gantt_drawing::text() const {
  return out_.page(
      "<pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#1b222c\"/>"
      "<rect width=\"2\" height=\"6\" fill=\"#2a3441\"/></pattern>",
      width_, height_, "#0f141b");
}

HEDDLE_INLINE double gantt_drawing::header() {
  double y = margin;
  if (!options_.title.empty()) out_.words(margin, (y += 18.0), options_.title, 20.0, "#f2f5f9", "start", true);
  if (!options_.subtitle.empty())
    out_.words(margin, (y += 22.0), svg_fitted(options_.subtitle, 13.0, width_ - 2 * margin), 13.0, "#9aa7b8");
  return y + (y > margin ? 12.0 : 0.0);
}

HEDDLE_INLINE double gantt_drawing::titles(const gantt_chart& c, double y) {
  const double right = width_ - margin;
  y += 18.0;
  out_.words(margin, y, c.title, 15.0, "#f2f5f9", "start", true);
  const double captions_left = (std::max)(left_, margin + svg_text_width(c.title, 15.0) + 24.0);
  std::string line;
  for (const std::string& s : c.captions) {
    std::string longer = line;
    if (!line.empty()) longer += " \u00b7 ";
    longer += s;
    if (!line.empty() && captions_left + svg_text_width(longer, 13.0) > right) {
      out_.words(captions_left, y, line, 13.0, "#c4cfdb");
      y += 18.0;
      line = s;
    } else {
      line = std::move(longer);
    }
  }
  if (!line.empty()) out_.words(captions_left, y, svg_fitted(line, 13.0, right - captions_left), 13.0, "#c4cfdb");
  return y + 12.0;
}

HEDDLE_INLINE void gantt_drawing::axis(double range, double top, double bottom) {
  const double right = width_ - margin;
  const double step = tick_step(range, 12);
  for (int i = 0; i * step <= range * (1.0 + 1e-9); ++i) {
    const double x = left_ + (right - left_) * (i * step / range);
    out_.rect(x - 0.5, top, 1.0, bottom - top + 4.0, "#232c38");
    std::string label = i == 0 ? "0" : tick(i * step, step);
    if (i == 0) label += " " + options_.unit;
    const bool over_edge = x + svg_text_width(label, 11.0) / 2 > width_ - 4.0;
    out_.words(over_edge ? right : x, bottom + 18.0, label, 11.0, "#8593a5", over_edge ? "end" : "middle");
  }
}

HEDDLE_INLINE double gantt_drawing::chart(const gantt_chart& c, double y, double range) {
  if (!(range > 0.0)) range = 1e-6;
  const double top = titles(c, y);
  const bool strips = std::any_of(c.boxes.begin(), c.boxes.end(), [&](const gantt_box& b) {
    return known(c, b) && c.styles[static_cast<std::size_t>(b.style)].strip;
  });
  const double row_height = box_height + (strips ? strip_height + 7.0 : 6.0);
  const double bottom = top + row_height * static_cast<double>(c.rows.size());
  // Few binary digits, so that products with simple times are exact and a picture is the same on every machine.
  double scale = (width_ - margin - left_) / range;
  if (scale >= 1.0) scale = std::floor(scale * 64.0) / 64.0;
  axis((width_ - margin - left_) / scale, top, bottom);
  const double span = scale * c.span();
  for (std::size_t r = 0; r < c.rows.size(); ++r) {
    const double row_top = top + row_height * static_cast<double>(r);
    out_.words(left_ - 12.0, row_top + 16.0, svg_fitted(c.rows[r], 12.0, left_ - 12.0 - margin), 12.0, "#d5dde7",
               "end");
    if (span > 0.0) out_.rect(left_, row_top, span, box_height, "url(#idle)", 2.0);
  }
  boxes(c, top, row_height, scale);
  return bottom + 34.0;
}

HEDDLE_INLINE void gantt_drawing::boxes(const gantt_chart& c, double top, double row_height, double scale) {
  const auto style_of = [&c](const gantt_box& b) -> const gantt_style& {
    return c.styles[static_cast<std::size_t>(b.style)];
  };
  // Thin strips after the boxes, so that what is nested in a box stays visible; both in order of time.
  std::vector<const gantt_box*> order;
  for (const gantt_box& b : c.boxes)
    if (known(c, b)) order.push_back(&b);
  std::sort(order.begin(), order.end(), [&](const gantt_box* a, const gantt_box* b) {
    const bool thin_a = style_of(*a).strip, thin_b = style_of(*b).strip;
    if (thin_a != thin_b) return thin_b;
    if (a->row != b->row) return a->row < b->row;
    if (a->begin != b->begin) return a->begin < b->begin;
    return a->end != b->end ? a->end > b->end : a < b;
  });
  std::vector<placed_label> labels;
  for (const gantt_box* b : order) {
    const gantt_style& style = style_of(*b);
    use(style);
    const double row_top = top + row_height * b->row;
    const double x = left_ + scale * b->begin;
    const double w = scale * (b->end - b->begin);
    if (style.strip) {
      out_.rect(x, row_top + box_height + 2.0, (std::max)(w, 0.75), strip_height, style.fill);
      continue;
    }
    // A gap between neighbours where there is room for one.
    const double gap = w > 4.0 ? 1.0 : 0.0;
    const bool whole = b->lane == gantt_lane::whole;
    const double height = whole ? box_height : (box_height - 1.0) / 2;
    const double box_top = b->lane == gantt_lane::lower ? row_top + box_height - height : row_top;
    out_.rect(x, box_top, (std::max)(w - gap, 0.5), height, style.fill, whole && w > 6.0 ? 2.0 : 0.0);
    if (!b->label.empty() && svg_text_width(b->label, size_of(*b)) + 3.0 <= w)
      labels.push_back({b, x + (w - gap) / 2.0, box_top + (whole ? 15.0 : 8.5)});
  }
  // Labels that look alike together.
  const auto look = [&](const placed_label& l) {
    return std::pair(size_of(*l.box), std::string_view(style_of(*l.box).ink));
  };
  std::sort(labels.begin(), labels.end(), [&](const placed_label& a, const placed_label& b) {
    return look(a) != look(b) ? look(a) < look(b) : a.box < b.box;
  });
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (i == 0 || look(labels[i - 1]) != look(labels[i]))
      out_.begin_words(look(labels[i]).first, look(labels[i]).second, "middle", true);
    out_.word(labels[i].x, labels[i].y, labels[i].box->label);
    if (i + 1 == labels.size() || look(labels[i + 1]) != look(labels[i])) out_.end_words();
  }
}

HEDDLE_INLINE double gantt_drawing::legend(double y) {
  struct entry {
    std::string_view fill;
    bool strip;
    std::string text;
  };
  std::vector<entry> entries;
  const auto enter = [&entries](const gantt_style* s) {
    const auto same = std::find_if(entries.begin(), entries.end(), [s](const entry& e) { return e.fill == s->fill; });
    if (same == entries.end()) {
      entries.push_back({s->fill, s->strip, s->name});
    } else if (same->text.find(s->name) == std::string::npos) {
      same->text += ", ";
      same->text += s->name;
    }
  };
  for (const bool strip : {false, true})
    for (const gantt_style* s : used_)
      if (s->strip == strip && !s->name.empty()) enter(s);
  double x = margin;
  y += 8.0;
  const auto item = [&](std::string_view fill, bool strip, const std::string& text) {
    const double swatch = fill.empty() ? 0.0 : 22.0;
    const double w = swatch + svg_text_width(text, 12.0) + 18.0;
    if (x + w > width_ - margin && x > margin) {
      x = margin;
      y += 22.0;
    }
    if (!fill.empty())
      out_.rect(x, strip ? y - 3.5 : y - 7.0, 16.0, strip ? strip_height : 12.0, fill, strip ? 0.0 : 2.0);
    out_.words(x + swatch, y + 4.0, text, 12.0, "#c4cfdb");
    x += w;
  };
  for (const entry& e : entries) item(e.fill, e.strip, e.text);
  item("url(#idle)", false, "idle");
  if (!options_.note.empty()) item("", false, svg_fitted(options_.note, 12.0, width_ - 2 * margin - 18.0));
  return y + margin;
}

HEDDLE_INLINE double gantt_columns_per_unit(std::span<const gantt_chart> charts, double range, int columns) {
  if (!(range > 0)) return 1;
  double shortest = range;
  for (const gantt_chart& chart : charts)
    for (const gantt_box& b : chart.boxes)
      if (b.end > b.begin && b.end - b.begin < shortest) shortest = b.end - b.begin;
  for (const int each : {4, 3, 2, 1})
    if (range * each / shortest <= columns * (1 + 1e-9)) return each / shortest;
  return columns / range;
}

HEDDLE_INLINE std::string gantt_letters(const gantt_chart& chart, double per_unit) {
  std::string text = chart.title;
  for (const std::string& caption : chart.captions) {
    if (!text.empty()) text += "; ";
    text += caption;
  }
  if (!text.empty()) text += '\n';
  std::size_t names = 0;
  for (const std::string& r : chart.rows) names = (std::max)(names, r.size());
  const auto column = [per_unit](double time) { return static_cast<std::size_t>(std::llround(time * per_unit)); };
  for (std::size_t r = 0; r < chart.rows.size(); ++r) {
    std::string line(column(chart.span()), '.');
    std::vector<const gantt_box*> upper;
    // What fits: letters and label, or the letters, or the first of them.
    const auto write = [&](const gantt_box& b, const std::string& all, const std::string& letters) {
      const std::size_t from = column(b.begin), to = (std::min)(column(b.end), line.size());
      const std::string& what = from + all.size() <= to ? all : letters;
      for (std::size_t k = from; k < to; ++k) line[k] = k - from < what.size() ? what[k - from] : '-';
    };
    const auto letters_of = [&](const gantt_box& b) { return chart.styles[static_cast<std::size_t>(b.style)].letters; };
    for (const gantt_box& b : chart.boxes) {
      if (b.row < 0 || static_cast<std::size_t>(b.row) != r || b.begin < 0) continue;
      if (b.style < 0 || static_cast<std::size_t>(b.style) >= chart.styles.size()) continue;
      if (chart.styles[static_cast<std::size_t>(b.style)].strip) continue;
      if (b.lane == gantt_lane::upper) upper.push_back(&b);
      std::string letters = letters_of(b), all = letters + b.label;
      if (b.lane == gantt_lane::lower)
        for (const gantt_box* above : upper) {
          if (above->begin >= b.end || b.begin >= above->end) continue;
          letters.insert(0, letters_of(*above) + '+');
          all.insert(0, letters_of(*above) + above->label + '+');
        }
      write(b, all, letters);
    }
    text += chart.rows[r];
    text.append(names - chart.rows[r].size() + 1, ' ');
    text += line;
    text += '\n';
  }
  return text;
}

}  // namespace detail
}  // namespace heddle::inline v0

namespace heddle::inline v0 {

HEDDLE_INLINE std::string gantt_text(std::span<const gantt_chart> charts, int columns, double shown) {
  for (const gantt_chart& c : charts) shown = (std::max)(shown, c.span());
  const double per_unit = detail::gantt_columns_per_unit(charts, shown, columns);
  std::string text;
  for (const gantt_chart& c : charts) text += detail::gantt_letters(c, per_unit);
  return text;
}

}  // namespace heddle::inline v0
