// heddle/io/json/lines.hpp: files of JSON lines.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/io/json/strict.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace heddle::inline v0::io {

/// Calls `take(object, line, where)` for each line that is not empty, with its text and its place for errors.
/// Errors: `io_error` for a file that cannot be read, and as of `parse_json`; `config_error` for a line that is no object.
template <class Take>
void read_json_lines(const std::filesystem::path& file, Take&& take) {
  std::ifstream in(file);
  if (!in || std::filesystem::is_directory(file))
    throw io_error("heddle: '" + file.string() + "' cannot be read; expected a file of JSON lines");
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = "'" + file.string() + "' line " + std::to_string(number);
    const nlohmann::json said = parse_json(line, where);
    if (!said.is_object())
      throw config_error("heddle: " + where + " should be an object, got " + std::string(said.type_name()));
    take(said, line, where);
  }
  if (in.bad()) throw io_error("heddle: '" + file.string() + "' cannot be read to its end");
}

}  // namespace heddle::inline v0::io
