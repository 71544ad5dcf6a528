// heddle/layout/impl/plan_svg.hpp: bodies of heddle/layout/plan_svg.hpp.
#pragma once

#include <heddle/layout/plan_svg.hpp>
#include <heddle/draw/svg.hpp>
#include <heddle/layout/describe_plan.hpp>
#include <heddle/layout/describe_svg.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units{" bytes", " KiB", " MiB", " GiB", " TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1023.995 && unit + 1 < units.size(); ++unit) value /= 1024.0;  // "1 MiB", not "1024 KiB"
  return svg_number(value) + units[unit];
}

HEDDLE_INLINE std::string plan_svg(const described_plan& p) {
  svg_drawing to;
  const double left = picture::margin;
  double y = picture::margin + 16.0;
  to.words(left, y, svg_fitted(p.title, 17.0, picture::title_width), 17.0, picture::bright, "start", true);
  y += 20.0;
  std::string text = "tensor " + extents_text(p.extents);
  text += ", " + std::to_string(p.element_size) + " bytes per element";
  if (p.states.front().has(axis_role::partial) || p.states.back().has(axis_role::partial))
    text += "; hatched: contributions still to be combined";
  to.words(left, y, text, 12.5, picture::dim);
  y += 26.0;
  for (std::size_t i = 0; i < p.states.size(); ++i) {
    std::string state = i == 0 ? "before: " : "after step " + std::to_string(i) + ": ";
    state += p.states[i].layout;
    to.words(left, y, svg_fitted(state, 13.0, picture::title_width), 13.0, picture::bright, "start", true);
    y = holdings_drawing(p.states[i], to).ranks(left, y + 12.0, i == 0) + 8.0;
    if (i == p.steps.size()) break;
    const described_step& s = p.steps[i];
    to.arrow(left + 12.0, y, y + 40.0, picture::normal);
    to.words(left + 32.0, y + 16.0, std::to_string(i + 1) + ". " + s.what, 14.0, picture::bright, "start", true);
    text = s.all_sent == 0
               ? "sends nothing"
               : "a rank sends at most " + bytes_text(s.most_sent) + ", all ranks " + bytes_text(s.all_sent);
    text += "; a rank's parts before and after need at most " + bytes_text(s.peak);
    to.words(left + 32.0, y + 34.0, text, 12.0, picture::normal);
    y += 66.0;
  }
  y += 16.0;
  text = p.steps.empty() ? "nothing to do"
                         : "together: a rank sends at most " + bytes_text(p.most_sent) + ", all ranks " +
                               bytes_text(p.all_sent) + "; peak " + bytes_text(p.peak) + " per rank";
  to.words(left, y, text, 13.0, picture::bright, "start", true);
  return to.text(holdings_patterns, picture::margin, picture::background);
}

}  // namespace detail
}  // namespace heddle::inline v0
