// heddle/rendezvous/file.hpp: a rendezvous of processes in a folder that all of them see.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/core/file_size_signal.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

// What rank 0 of a folder's rendezvous has written: its number, and what it says to the rank whose number is asked for.
struct folder_welcome {
  std::uint64_t session = 0;
  std::string verdict;
};
// Nothing where it does not name that rank, or is not whole: something else may lie there.
HEDDLE_INLINE std::optional<folder_welcome> read_welcome(std::string_view text, std::string_view mine);

}  // namespace detail

/// Processes that meet in a folder of a file system they share, one folder per job; it is made where it is missing. The
/// constructor of rank 0 returns when all ranks are there, those of the others when rank 0 has seen them; the destructor
/// of rank 0 waits for the others' and removes the files.
///
/// What an earlier run left behind does no harm: every start draws a number of its own, ranks listen only to a rank 0 that
/// has seen theirs, and everything afterwards is named after rank 0's. Units: milliseconds; zero waits for ever.
/// Errors: `comm_error` when ranks do not come in time (naming them), were started for another number of ranks, or two
/// have the same number; `io_error` when the folder cannot be used.
class file_rendezvous final : public detail::keyed_rendezvous {
 public:
  file_rendezvous(std::string folder, int rank, int size,
                  std::chrono::milliseconds timeout = std::chrono::milliseconds(60'000));
  ~file_rendezvous() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  void put(const std::string& key, std::span<const std::byte> value) override { write(value_path(key), value); }
  std::vector<std::byte> get(const std::string& key, int giver) override;
  bool draw(const std::string& key, std::vector<std::byte>& value, std::chrono::milliseconds patience) override;
  void announce(const std::string& text) noexcept override;
  std::string failure() override {
    std::vector<std::byte> text;
    return read(failure_path(), text) ? string_of(text) : std::string();
  }

 private:
  static std::uint64_t fresh();
  static std::string string_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  static std::string hex(std::uint64_t number) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
  }
  std::string place() const {
    std::string text = "in ";
    text += folder_;
    return text;
  }
  std::string path_of(const std::string& name) const;
  std::string numbered(const char* name, int rank) const {
    std::string text = name;
    text += std::to_string(rank);
    return path_of(text);
  }
  std::string value_path(const std::string& key) const;
  std::string failure_path() const {
    std::string name = hex(session_);
    name += ".failed";
    return path_of(name);
  }
  static void pause(const detail::deadline& until) {
    std::this_thread::sleep_for((std::max)(until.rest(std::chrono::milliseconds(5)), std::chrono::milliseconds(1)));
  }

  [[noreturn]] static void broken(const char* what, const std::string& path);
  // Whole or not at all: written aside, then renamed.
  void write(const std::string& path, std::span<const std::byte> bytes) const;
  void write(const std::string& path, const std::string& text) const { write(path, std::as_bytes(std::span(text))); }
  static bool read(const std::string& path, std::vector<std::byte>& bytes);

  // hello.r: rank r's number and how many ranks it expects. welcome: rank 0's number, then the numbers it has heard, each
  // with "ok" or what is wrong. ack.r: rank r's number and the rank 0 it has found.
  void report_in();

  void receive_all();
  // Values stay until every rank has gone: the giver may be the first to leave.
  void leave();
  std::string bye_path(int rank) const;

  std::string judge(int rank, const std::string& size) const;

  std::string folder_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::uint64_t mine_;
  std::uint64_t session_ = 0;
};

}  // namespace heddle::inline v0

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/rendezvous/impl/file.hpp>
#endif
