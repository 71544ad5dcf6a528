// heddle/io/impl/manifest.hpp: bodies of heddle/io/manifest.hpp.
#pragma once

#include <heddle/io/manifest.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checksum.hpp>
#include <heddle/io/dataset.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0::io {
namespace detail {

HEDDLE_INLINE std::string escape_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

HEDDLE_INLINE std::string unescape_line(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else {
      ++i;
      out += text[i] == 'n' ? '\n' : text[i];
    }
  }
  return out;
}

HEDDLE_INLINE std::int64_t parse_count(std::string_view text, std::int64_t most, const std::string& what) {
  const auto n = parse_number<std::int64_t>(text, 10, what);
  if (n < 0 || n > most)
    throw io_error("heddle: " + what + " is " + std::to_string(n) + "; it must be in 0 to " + std::to_string(most));
  return n;
}

HEDDLE_INLINE std::string_view next_field(std::string_view& rest, char mark) {
  const std::size_t n = (std::min)(rest.find(mark), rest.size());
  const std::string_view field = rest.substr(0, n);
  rest.remove_prefix((std::min)(n + 1, rest.size()));
  return field;
}

HEDDLE_INLINE bool is_of_later_format(std::string_view text) {
  if (next_field(text, '\n') != manifest_title) return false;
  const std::string_view version = next_field(text, '\n');
  int format = 0;
  if (version.substr(0, 7) == "format=") std::from_chars(version.data() + 7, version.data() + version.size(), format);
  return format > manifest::format;
}

}  // namespace detail
}  // namespace heddle::inline v0::io

namespace heddle::inline v0::io {

HEDDLE_INLINE std::string to_text(const manifest& m) {
  if (m.step < 0 || m.step > manifest::most_steps || m.position.consumed < 0 ||
      m.position.consumed > manifest::most_samples)
    throw io_error("heddle: a checkpoint of step " + std::to_string(m.step) + " after " +
                   std::to_string(m.position.consumed) + " samples cannot be: they are counted from 0 to " +
                   std::to_string(manifest::most_steps) + " and " + std::to_string(manifest::most_samples));
  std::string t(detail::manifest_title);
  const auto line = [&t](std::string_view key, std::string_view value) {
    t += '\n';
    t += key;
    t += '=';
    t += value;
  };
  const bool newest = m.facts.count(detail::attempt_fact) + m.facts.count(detail::pieces_fact) > 0;
  line("format", std::to_string(m.index_bytes == 0 ? 1 : newest ? manifest::format : 2));
  line("step", std::to_string(m.step));
  line("seed", std::to_string(m.seed));
  line("consumed", std::to_string(m.position.consumed));
  line("corpus", to_hex(m.corpus));
  line("mesh", detail::escape_line(m.mesh));
  line("config", detail::escape_line(m.config));
  for (const auto& [name, value] : m.facts) {
    if (name.empty() || name.find_first_of("=\n") != std::string::npos)
      throw io_error("heddle: a fact in a checkpoint needs a name without '=' and line breaks, got '" + name + "'");
    line("fact." + name, detail::escape_line(value));
  }
  line("files", std::to_string(m.files.size()));
  for (const rank_file& f : m.files)
    line("file", std::to_string(f.rank) + " " + std::to_string(f.bytes) + " " + to_hex(f.checksum));
  if (m.index_bytes > 0) line("index", std::to_string(m.index_bytes) + " " + to_hex(m.index_checksum));
  t += '\n';
  return t + "checksum=" + to_hex(checksum(std::as_bytes(std::span<const char>(t)))) + "\n";
}

HEDDLE_INLINE manifest parse_manifest(std::string_view text, const std::string& where) {
  const std::string at = where + ": ";
  std::string_view rest = text;
  if (detail::next_field(rest, '\n') != detail::manifest_title)
    throw io_error("heddle: " + at + "is not a heddle checkpoint manifest");
  // The version first: a later format may be checked differently.
  const std::string_view version = detail::next_field(rest, '\n');
  if (version.substr(0, 7) != "format=") throw io_error("heddle: " + at + "has no format version");
  const int format = detail::parse_number<int>(version.substr(7), 10, at + "format");
  if (format < 1 || format > manifest::format)
    throw io_error("heddle: " + at + "format version " + std::to_string(format) +
                   "; this program reads versions 1 to " + std::to_string(manifest::format));
  const std::size_t last = text.rfind("\nchecksum=");
  if (last == std::string_view::npos || text.back() != '\n') throw io_error("heddle: " + at + "is cut off");
  const std::string_view stated = text.substr(last + 10, text.size() - last - 11);
  const std::string actual = to_hex(checksum(std::as_bytes(std::span<const char>(text.substr(0, last + 1)))));
  if (stated != actual)
    throw io_error("heddle: " + at + "is damaged: its checksum is " + actual + ", it says " + std::string(stated));

  manifest m;
  std::int64_t files = 0;
  constexpr std::int64_t any = (std::numeric_limits<std::int64_t>::max)();
  rest = text.substr(0, last + 1);
  detail::next_field(rest, '\n');
  detail::next_field(rest, '\n');
  constexpr std::array<std::string_view, 7> needed{"step", "seed", "consumed", "corpus", "mesh", "config", "files"};
  std::vector<std::string> seen;  // of those needed, no more
  while (!rest.empty()) {
    std::string_view value = detail::next_field(rest, '\n');
    const std::string key(detail::next_field(value, '='));
    const std::string what = at + key;
    if (std::find(seen.begin(), seen.end(), key) != seen.end() ||
        (key.substr(0, 5) == "fact." && m.facts.find(key.substr(5)) != m.facts.end()))
      throw io_error("heddle: " + what + " comes twice");
    if (std::find(needed.begin(), needed.end(), key) != needed.end()) seen.push_back(key);
    if (key == "step")
      m.step = detail::parse_count(value, manifest::most_steps, what);
    else if (key == "seed")
      m.seed = detail::parse_number<std::uint64_t>(value, 10, what);
    else if (key == "consumed")
      m.position.consumed = detail::parse_count(value, manifest::most_samples, what);
    else if (key == "corpus")
      m.corpus = detail::parse_number<std::uint64_t>(value, 16, what);
    else if (key == "mesh")
      m.mesh = detail::unescape_line(value);
    else if (key == "config")
      m.config = detail::unescape_line(value);
    else if (key == "files")
      files = detail::parse_count(value, any, what);
    else if (key == "index" && format > 1 && m.index_bytes == 0) {
      m.index_bytes = detail::parse_count(detail::next_field(value, ' '), any, what);
      m.index_checksum = detail::parse_number<std::uint64_t>(value, 16, what);
    } else if (key == "file") {
      rank_file f;
      f.rank = detail::parse_count(detail::next_field(value, ' '), any, what);
      f.bytes = detail::parse_count(detail::next_field(value, ' '), any, what);
      f.checksum = detail::parse_number<std::uint64_t>(value, 16, what);
      if (!m.files.empty() && f.rank <= m.files.back().rank)
        throw io_error("heddle: " + what + " of rank " + std::to_string(f.rank) + " stands behind that of rank " +
                       std::to_string(m.files.back().rank));
      m.files.push_back(f);
    } else if (key.substr(0, 5) == "fact.")
      m.facts[key.substr(5)] = detail::unescape_line(value);
    else
      throw io_error("heddle: " + at + "unknown entry '" + key + "'");
  }
  for (const std::string_view key : needed)
    if (std::find(seen.begin(), seen.end(), key) == seen.end())
      throw io_error("heddle: " + at + "has no " + std::string(key));
  if (format > 1 && m.index_bytes == 0) throw io_error("heddle: " + at + "has no index");
  if (static_cast<std::int64_t>(m.files.size()) != files)
    throw io_error("heddle: " + at + "lists " + std::to_string(m.files.size()) + " rank files, it says " +
                   std::to_string(files));
  return m;
}

}  // namespace heddle::inline v0::io
