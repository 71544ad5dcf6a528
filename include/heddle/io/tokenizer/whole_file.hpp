// heddle/io/tokenizer/whole_file.hpp: the bytes of a file.
#pragma once

#include <heddle/core/error.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace heddle::inline v0::io::detail {

inline std::string whole_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(std::filesystem::status(path, failed)))
    throw io_error("heddle: " + path.string() + " is not a file that can be read");
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) throw io_error("heddle: " + path.string() + " cannot be read");
  return text;
}

}  // namespace heddle::inline v0::io::detail
