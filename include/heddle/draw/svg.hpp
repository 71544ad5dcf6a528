// heddle/draw/svg.hpp: the few shapes that our SVG pictures are made of.
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::inline v0 {
namespace detail {

// How many bytes the first character of a text has in UTF-8; 0 if they are none, or one that XML cannot hold.
constexpr std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t n = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  unsigned code = lead & (0xFFU >> (n + 1));
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool too_long = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
  const bool is_none = (code >= 0xD800 && code < 0xE000) || code == 0xFFFE || code == 0xFFFF || code > 0x10FFFF;
  return too_long || is_none ? 0 : n;
}

}  // namespace detail

/// Text for an XML element or attribute. Control characters become spaces, what is no UTF-8 a replacement character.
HEDDLE_INLINE std::string svg_escaped(std::string_view text);

/// A number of an SVG file: two decimals at most, with a point whatever the locale.
HEDDLE_INLINE std::string svg_number(double value);

/// About how wide a text is, in pixels, in the sans-serif fonts that viewers use: an upper estimate.
HEDDLE_INLINE double svg_text_width(std::string_view text, double size);

/// The text, shortened until it fits into `room` pixels.
HEDDLE_INLINE std::string svg_fitted(std::string text, double size, double room);

/// An SVG picture: shapes in the order in which they are painted. Units: pixels.
class svg_drawing {
 public:
  void rect(double x, double y, double w, double h, std::string_view fill, double radius = 0.0,
            std::string_view more = {});
  void words(double x, double y, std::string_view text, double size, std::string_view fill,
             std::string_view anchor = "start", bool bold = false);
  /// Texts that look alike are children of one group.
  void begin_words(double size, std::string_view fill, std::string_view anchor = "start", bool bold = false);
  void word(double x, double y, std::string_view text);
  void end_words() { out_ += "</g>\n"; }
  /// An arrow that points down.
  void arrow(double x, double top, double bottom, std::string_view fill);

  /// The whole file; `definitions` are patterns. The picture is as large as what was drawn, and a margin.
  std::string text(std::string_view definitions, double margin, std::string_view background) const {
    return page(definitions, std::ceil(right_ + margin), std::ceil(bottom_ + margin), background);
  }
  /// The whole file, as large as is said.
  std::string page(std::string_view definitions, double width, double height, std::string_view background) const;

 private:
  void open(std::string_view name) {
    out_ += "<";
    out_ += name;
  }
  void attribute(std::string_view name, std::string_view value);
  void attribute(std::string_view name, double value) { attribute(name, std::string_view(svg_number(value))); }
  void reach(double x, double y) {
    right_ = x > right_ ? x : right_;
    bottom_ = y > bottom_ ? y : bottom_;
  }

  std::string out_;
  double right_ = 0.0;
  double bottom_ = 0.0;
};

namespace detail {
// Eight hues that colour-blind people tell apart (Okabe and Ito 2008), then the same ones darker.
inline constexpr std::array<const char*, 16> rank_colours{
    "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#3a8fd0", "#d55e00", "#cc79a7", "#c4c9d0",
    "#96690a", "#34708f", "#00674b", "#9c942b", "#1f5580", "#8a3d00", "#85486b", "#7d828a"};
}  // namespace detail

/// One colour per rank, of 16 that colour-blind people tell apart.
inline std::string_view rank_colour(int rank) {
  return detail::rank_colours[static_cast<std::size_t>(rank) % detail::rank_colours.size()];
}
/// The colour of text on the colour of a rank.
inline std::string_view rank_text_colour(int rank) {
  const std::size_t i = static_cast<std::size_t>(rank) % detail::rank_colours.size();
  return i < 8 || i == 11 || i == 15 ? "#000000" : "#ffffff";
}

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/draw/impl/svg.hpp>
#endif
