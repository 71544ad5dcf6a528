// heddle/draw/impl/svg.hpp: bodies of heddle/draw/svg.hpp.
#pragma once

#include <heddle/draw/svg.hpp>
#include <heddle/core/text.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace heddle::inline v0 {

HEDDLE_INLINE std::string svg_escaped(std::string_view text) {
  std::string out;
  for (std::size_t n = 0; !text.empty(); text.remove_prefix(n == 0 ? 1 : n)) {
    n = detail::utf8_length(text);
    const char c = text.front();
    if (n == 0)
      out += "\ufffd";
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += ' ';
    else
      out += text.substr(0, n);
  }
  return out;
}

HEDDLE_INLINE std::string svg_number(double value) {
  if (!(std::abs(value) < 1e15)) return rounded_text(value, 2);
  const long long hundredths = std::llround(value * 100.0);
  const long long n = hundredths < 0 ? -hundredths : hundredths;
  std::string text = hundredths < 0 ? "-" : "";
  text += std::to_string(n / 100);
  if (n % 100 != 0) {
    text += n % 100 < 10 ? ".0" : ".";
    text += std::to_string(n % 10 == 0 ? n % 100 / 10 : n % 100);
  }
  return text;
}

HEDDLE_INLINE double svg_text_width(std::string_view text, double size) {
  double ems = 0.0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;  // continuation of a character counted already
    const bool thin = c == ' ' || c == '.' || c == ',' || c == '(' || c == ')' || c == 'i' || c == 'l' || c == '|';
    ems += thin ? 0.36 : c == 'm' || c == 'w' || c == '+' || c == '=' || (c >= 'A' && c <= 'Z') ? 0.85 : 0.63;
  }
  return ems * size;
}

HEDDLE_INLINE std::string svg_fitted(std::string text, double size, double room) {
  if (svg_text_width(text, size) <= room) return text;
  while (!text.empty() && svg_text_width(text, size) + size > room) {
    while (text.size() > 1 && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    text.pop_back();
  }
  return text.empty() ? text : text + "\u2026";
}

HEDDLE_INLINE void svg_drawing::rect(double x, double y, double w, double h, std::string_view fill, double radius,
                                     std::string_view more) {
  open("rect");
  attribute("x", x);
  attribute("y", y);
  attribute("width", w);
  attribute("height", h);
  attribute("fill", fill);
  if (radius > 0.0) attribute("rx", radius);
  out_ += more;
  out_ += "/>\n";
  reach(x + w, y + h);
}

HEDDLE_INLINE void svg_drawing::words(double x, double y, std::string_view text, double size, std::string_view fill,
                                      std::string_view anchor, bool bold) {
  open("text");
  attribute("x", x);
  attribute("y", y);
  attribute("font-size", size);
  attribute("fill", fill);
  if (anchor != "start") attribute("text-anchor", anchor);
  if (bold) attribute("font-weight", "600");
  out_ += ">";
  out_ += svg_escaped(text);
  out_ += "</text>\n";
  const double width = svg_text_width(text, size);
  reach(anchor == "middle" ? x + width / 2 : anchor == "end" ? x : x + width, y + size * 0.3);
}

HEDDLE_INLINE void svg_drawing::begin_words(double size, std::string_view fill, std::string_view anchor, bool bold) {
  open("g");
  attribute("font-size", size);
  attribute("fill", fill);
  if (anchor != "start") attribute("text-anchor", anchor);
  if (bold) attribute("font-weight", "600");
  out_ += ">\n";
}

HEDDLE_INLINE void svg_drawing::word(double x, double y, std::string_view text) {
  open("text");
  attribute("x", x);
  attribute("y", y);
  out_ += ">";
  out_ += svg_escaped(text);
  out_ += "</text>\n";
}

HEDDLE_INLINE void svg_drawing::arrow(double x, double top, double bottom, std::string_view fill) {
  rect(x - 1.5, top, 3.0, bottom - top - 8.0, fill);
  out_ += "<path d=\"M";
  out_ += svg_number(x - 7.0);
  for (const double at : {bottom - 9.0, x + 7.0, bottom - 9.0, x, bottom}) {
    out_ += " ";
    out_ += svg_number(at);
  }
  out_ += "z\"";
  attribute("fill", fill);
  out_ += "/>\n";
}

HEDDLE_INLINE std::string svg_drawing::page(std::string_view definitions, double width, double height,
                                            std::string_view background) const {
  const std::string w = svg_number(width);
  const std::string h = svg_number(height);
  std::string file;
  for (const std::string_view part : std::initializer_list<std::string_view>{
           "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h, "\" viewBox=\"0 0 ", w, " ", h,
           "\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n<defs>",
           definitions, "</defs>\n<rect width=\"", w, "\" height=\"", h, "\" rx=\"8\" fill=\"", background, "\"/>\n",
           out_, "</svg>\n"})
    file += part;
  return file;
}

HEDDLE_INLINE void svg_drawing::attribute(std::string_view name, std::string_view value) {
  out_ += " ";
  out_ += name;
  out_ += "=\"";
  out_ += value;
  out_ += "\"";
}

}  // namespace heddle::inline v0
