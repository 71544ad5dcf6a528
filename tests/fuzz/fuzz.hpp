// tests/fuzz/fuzz.hpp: what every fuzz target needs: its name, the only errors it may throw, and a property it keeps.
//
// A target is a function of some bytes. With HEDDLE_FUZZ defined it is libFuzzer's entry point; otherwise it enters a
// list, from which tests/fuzz/replay.cpp runs all targets over their seed corpora.
#pragma once

#include <heddle/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fuzz {

/// Ends the program, which a fuzzer takes for a find: `what` is a property that does not hold.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "the property does not hold: %s\n", what);
  std::abort();
}

/// Calls `work`, which may throw nothing but heddle's own errors. Returns whether it ended without one.
template <class Work>
bool accepted(Work&& work) {
  try {
    work();
    return true;
  } catch (const heddle::error& e) {
    require(std::strncmp(e.what(), "heddle: ", 8) == 0, "an error begins with \"heddle: \"");
    return false;
  }
}

/// Numbers and texts from the bytes of an input; zeros and empty texts behind its end.
class bytes {
 public:
  bytes(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const noexcept { return rest_.empty(); }
  unsigned byte() noexcept {
    if (rest_.empty()) return 0;
    const auto b = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return b;
  }
  int below(int n) noexcept { return static_cast<int>(byte()) % n; }
  std::string_view rest() const noexcept { return rest_; }

 private:
  std::string_view rest_;
};

/// A file in memory that has a path, for readers that take one.
class memory_file {
 public:
  memory_file() : file_(::memfd_create("fuzz", MFD_CLOEXEC)) { require(file_ >= 0, "memfd_create works"); }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(file_); }
  void fill(std::string_view text) const {
    require(::ftruncate(file_, 0) == 0, "ftruncate works");
    require(::pwrite(file_, text.data(), text.size(), 0) == static_cast<::ssize_t>(text.size()), "pwrite works");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

struct target {
  const char* name;
  void (*run)(const std::uint8_t*, std::size_t);
};
inline std::vector<target>& targets() {
  static std::vector<target> all;
  return all;
}

}  // namespace fuzz

#if defined(HEDDLE_FUZZ)
#define HEDDLE_FUZZ_TARGET(name)                                                      \
  static void name(const std::uint8_t* data, std::size_t size);                       \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    name(data, size);                                                                 \
    return 0;                                                                         \
  }                                                                                   \
  static void name(const std::uint8_t* data, std::size_t size)
#else
#define HEDDLE_FUZZ_TARGET(name)                                                         \
  static void name(const std::uint8_t* data, std::size_t size);                          \
  static const bool name##_is_listed = (fuzz::targets().push_back({#name, name}), true); \
  static void name(const std::uint8_t* data, std::size_t size)
#endif
