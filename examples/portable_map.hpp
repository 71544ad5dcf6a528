// examples/portable_map.hpp: reads and writes binary PGM and PPM pictures of 8 bits.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace portable_map {

struct picture {
  std::int64_t rows = 0, columns = 0;
  std::int64_t channels = 1;  // 3 in PPM
  std::vector<std::uint8_t> values;
};

/// Reads the bytes of a P5 or P6 file. Errors: `io_error` with the file's name and the offset of what is wrong: another format, a
/// header that is cut, numbers that are none, no pixels, values of more or less than 8 bits, too few or too many bytes.
inline picture parse_picture(const std::string& bytes, const std::string& name) {
  std::size_t at = 0;
  const auto fail = [&](const std::string& what) {
    throw heddle::io_error("heddle: '" + name + "', offset " + std::to_string(at) + ": " + what);
  };
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  if (bytes.size() < 2 || bytes[0] != 'P' || (bytes[1] != '5' && bytes[1] != '6'))
    fail("a binary PGM or PPM begins with P5 or P6");
  picture p;
  p.channels = bytes[1] == '6' ? 3 : 1;
  at = 2;
  const auto number = [&](const char* what) {
    for (bool comment = false; at < bytes.size() && (comment || is_space(bytes[at]) || bytes[at] == '#'); ++at)
      comment = bytes[at] == '#' || (comment && bytes[at] != '\n');
    const std::size_t from = at;
    std::int64_t n = 0;
    for (; at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9'; ++at)
      if ((n = 10 * n + (bytes[at] - '0')) > (std::int64_t{1} << 30)) fail(std::string(what) + " is above 2^30");
    if (at == bytes.size()) fail("the header is cut, in or before " + std::string(what));
    if (at == from) fail(std::string(what) + " is no number");
    return n;
  };
  p.columns = number("the width");
  p.rows = number("the height");
  if (p.columns == 0 || p.rows == 0)
    fail("a picture of " + std::to_string(p.columns) + " x " + std::to_string(p.rows) + " has no pixels");
  const std::int64_t most = number("the greatest value");
  if (most != 255) fail("values are 0 to " + std::to_string(most) + "; 0 to 255, 8 bits, are needed");
  if (!is_space(bytes[at])) fail("white space is needed between header and values");
  ++at;
  const std::int64_t wanted = p.rows * p.columns * p.channels;
  const auto got = static_cast<std::int64_t>(bytes.size() - at);
  const std::string sizes = std::to_string(got) + " values, where the header says " + std::to_string(p.columns) +
                            " x " + std::to_string(p.rows) + " x " + std::to_string(p.channels) + " = " +
                            std::to_string(wanted);
  if (got < wanted) {
    at = bytes.size();
    fail("the file is cut: " + sizes);
  }
  if (got > wanted) {
    at += static_cast<std::size_t>(wanted);
    fail("the file is larger than its header says: " + sizes);
  }
  p.values.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
  return p;
}

inline picture read_picture(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw heddle::io_error("heddle: cannot read '" + path + "'");
  return parse_picture({std::istreambuf_iterator<char>(file), {}}, path);
}

inline std::string picture_text(const picture& p) {
  return std::string(p.channels == 3 ? "P6" : "P5") + "\n" + std::to_string(p.columns) + " " + std::to_string(p.rows) +
         "\n255\n" + std::string(p.values.begin(), p.values.end());
}

inline void write_picture(const std::string& path, const picture& p) {
  std::ofstream file(path, std::ios::binary);
  file << picture_text(p);
  if (!file.flush()) throw heddle::io_error("heddle: cannot write '" + path + "'");
}

}  // namespace portable_map
