// tests/io/scratch.hpp: a folder that is gone after the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include <unistd.h>

struct scratch_folder {
  std::filesystem::path path;

  explicit scratch_folder(std::string_view name) {
    static int count = 0;
    path = std::filesystem::temp_directory_path() /
           ("heddle-test-" + std::string(name) + "-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path / name; }
};

inline void put(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}
inline std::string get(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
// The message of the exception of type E that `work` throws; empty if it throws none.
template <class E, class Work>
std::string message_of(Work&& work) {
  try {
    work();
  } catch (const E& e) {
    return e.what();
  }
  return {};
}
