// heddle/rendezvous/impl/file.hpp: bodies of heddle/rendezvous/file.hpp.
#pragma once

#include <heddle/rendezvous/file.hpp>
#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/text.hpp>

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

HEDDLE_INLINE std::optional<folder_welcome> read_welcome(std::string_view text, std::string_view mine) {
  folder_welcome w;
  const char* const last = text.data() + (std::min)(text.size(), std::size_t{16});
  const auto [end, problem] = std::from_chars(text.data(), last, w.session, 16);
  if (problem != std::errc{} || text.size() < 16 || end != last || w.session == 0) return {};
  std::string label = "\n";
  label += mine;
  label += ' ';
  const std::size_t at = text.find(label);
  if (at == std::string_view::npos) return {};
  const std::size_t begin = at + label.size(), line_end = text.find('\n', begin);
  if (line_end == std::string_view::npos) return {};
  w.verdict = text.substr(begin, line_end - begin);
  return w;
}

}  // namespace detail
}  // namespace heddle::inline v0

namespace heddle::inline v0 {

HEDDLE_INLINE file_rendezvous::file_rendezvous(std::string folder, int rank, int size,
                                               std::chrono::milliseconds timeout)
    : folder_(std::move(folder)), rank_(rank), size_(size), timeout_(timeout), mine_(fresh()) {
  detail::require_rank_of("file_rendezvous", rank, size);
  if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) broken("make the folder", folder_);
  if (rank_ == 0)
    receive_all();
  else
    report_in();
}

HEDDLE_INLINE file_rendezvous::~file_rendezvous() {
  try {
    leave();
  } catch (...) {  // files stay behind; they do no harm
  }
}

HEDDLE_INLINE std::vector<std::byte> file_rendezvous::get(const std::string& key, int giver) {
  const detail::deadline until(timeout_);
  const std::string path = value_path(key);
  for (int turn = 0;; ++turn) {
    std::vector<std::byte> value;
    if (read(path, value)) return value;
    if (turn % 8 == 0)
      if (std::string text = failure(); !text.empty()) throw aborted_error(text);
    if (until.passed()) absent(rank_, until, place(), key, giver);
    pause(until);
  }
}

HEDDLE_INLINE bool file_rendezvous::draw(const std::string& key, std::vector<std::byte>& value,
                                         std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  const std::string path = value_path(key);
  for (int turn = 0;; ++turn) {
    if (read(path, value)) {
      ::unlink(path.c_str());
      return true;
    }
    if (turn % 8 == 0)
      if (std::string text = failure(); !text.empty()) throw aborted_error(text);
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds((std::min)(2'000, 50 * (turn + 1))));
  }
}

HEDDLE_INLINE void file_rendezvous::announce(const std::string& text) noexcept {
  try {
    if (failure().empty()) write(failure_path(), std::as_bytes(std::span(text)));
  } catch (...) {  // the folder is gone: the others will run into their timeouts
  }
}

HEDDLE_INLINE std::uint64_t file_rendezvous::fresh() {
  std::uint64_t drawn = 0;
  if (::getentropy(&drawn, sizeof drawn) != 0) drawn = 0;  // the clock and the process have to do
  std::uint64_t number = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  number ^= drawn ^ (static_cast<std::uint64_t>(::getpid()) << 20);
  return number == 0 ? 1 : number;
}

HEDDLE_INLINE std::string file_rendezvous::path_of(const std::string& name) const {
  return text_of({folder_, '/', name});
}

HEDDLE_INLINE std::string file_rendezvous::value_path(const std::string& key) const {
  std::string name = hex(session_);
  name += '.';
  for (const char c : key) {  // any key is a file name; long ones are cut and told apart by a hash
    if (name.size() > 120) break;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain ? c : '-';
  }
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  name += '.';
  name += hex(hash);
  return path_of(name);
}

HEDDLE_INLINE void file_rendezvous::broken(const char* what, const std::string& path) {
  throw io_error(text_of({"heddle: cannot ", what, " ", path, ": ", std::strerror(errno)}));
}

HEDDLE_INLINE void file_rendezvous::write(const std::string& path, std::span<const std::byte> bytes) const {
  const file_size_signal_off no_signal;
  std::string aside = path;
  aside += '.';
  aside += hex(mine_);
  const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) broken("write", aside);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ::ssize_t n = ::write(file, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      ::close(file);
      broken("write", aside);
    }
    done += static_cast<std::size_t>(n);
  }
  ::close(file);
  if (::rename(aside.c_str(), path.c_str()) != 0) broken("write", path);
}

HEDDLE_INLINE bool file_rendezvous::read(const std::string& path, std::vector<std::byte>& bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT || errno == ESTALE) return false;
    broken("read", path);
  }
  bytes.clear();
  std::byte part[512];
  for (;;) {
    const ::ssize_t n = ::read(file, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    bytes.insert(bytes.end(), part, part + n);
  }
  ::close(file);
  return true;
}

HEDDLE_INLINE void file_rendezvous::report_in() {
  const detail::deadline until(timeout_);
  const std::string hello = numbered("hello.", rank_);
  std::string greeting = hex(mine_);
  greeting += ' ';
  greeting += std::to_string(size_);
  write(hello, greeting);
  for (;;) {
    std::vector<std::byte> bytes;
    if (read(path_of("welcome"), bytes)) {
      if (const auto welcome = detail::read_welcome(string_of(bytes), hex(mine_))) {
        session_ = welcome->session;
        std::string answer = hex(mine_);
        answer += ' ';
        answer += hex(session_);
        write(numbered("ack.", rank_), answer);
        if (welcome->verdict != "ok") throw comm_error(welcome->verdict);
        return;
      }
    }
    if (!read(hello, bytes)) {
      write(hello, greeting);  // the last rank of an earlier run has cleaned up
    } else if (string_of(bytes).substr(0, 16) != hex(mine_)) {
      throw comm_error(text_of({"heddle: another process has come to the rendezvous ", place(), " as rank ", rank_}));
    }
    if (until.passed()) absent(rank_, until, place(), "welcome", 0);
    pause(until);
  }
}

HEDDLE_INLINE void file_rendezvous::receive_all() {
  const detail::deadline until(timeout_);
  session_ = mine_;
  ::unlink(path_of("welcome").c_str());
  std::vector<std::string> heard(static_cast<std::size_t>(size_));
  std::vector<std::string> verdict(heard.size());
  std::vector<char> arrived(heard.size(), 0);
  arrived[0] = 1;
  bool changed = true;
  for (;;) {
    bool all = true;
    std::string wrong;
    for (int r = 1; r < size_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      std::vector<std::byte> bytes;
      if (!arrived[at] && read(numbered("hello.", r), bytes)) {
        const std::string text = string_of(bytes);
        if (text.size() > 17 && text.substr(0, 16) != heard[at]) {
          heard[at] = text.substr(0, 16);
          verdict[at] = judge(r, text.substr(17));
          changed = true;
        }
      }
      if (!arrived[at] && !heard[at].empty() && read(numbered("ack.", r), bytes)) {
        std::string expected = heard[at];
        expected += ' ';
        expected += hex(mine_);
        if (string_of(bytes) == expected) {
          arrived[at] = 1;
          if (verdict[at] != "ok") wrong = verdict[at];
        }
      }
      all = all && arrived[at];
    }
    if (!wrong.empty())
      for (std::string& v : verdict) v = wrong;  // ranks that have been let in already learn it from `failed`
    if (changed || !wrong.empty()) {
      std::string text = hex(mine_);
      for (std::size_t r = 1; r < heard.size(); ++r) {
        if (heard[r].empty()) continue;
        text += '\n';
        text += heard[r];
        text += ' ';
        text += verdict[r];
      }
      text += '\n';
      write(path_of("welcome"), text);
      changed = false;
    }
    if (!wrong.empty()) {
      announce(wrong);
      throw comm_error(wrong);
    }
    if (all) break;
    if (until.passed()) {
      std::vector<int> missing;
      for (int r = 1; r < size_; ++r)
        if (!arrived[static_cast<std::size_t>(r)]) missing.push_back(r);
      std::string text = "heddle: rank 0 has waited ";
      text += until.text();
      text += " at the rendezvous ";
      text += place();
      text += " for ";
      text += detail::absent_ranks(missing);
      text += " of ";
      text += std::to_string(size_);
      text += " ranks";
      announce(text);
      throw comm_error(text);
    }
    pause(until);
  }
}

HEDDLE_INLINE void file_rendezvous::leave() {
  if (rank_ != 0) return write(bye_path(rank_), hex(mine_));
  const detail::deadline until(failure().empty() ? timeout_ : std::chrono::milliseconds(1'000));
  for (int r = 1; r < size_ && !until.passed(); ++r)
    while (::access(bye_path(r).c_str(), F_OK) != 0 && !until.passed()) pause(until);
  ::unlink(path_of("welcome").c_str());
  for (int r = 1; r < size_; ++r) {
    ::unlink(numbered("hello.", r).c_str());
    ::unlink(numbered("ack.", r).c_str());
  }
  const std::string prefix = hex(session_);
  if (::DIR* listing = ::opendir(folder_.c_str())) {
    while (const ::dirent* entry = ::readdir(listing))
      if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0) ::unlink(path_of(entry->d_name).c_str());
    ::closedir(listing);
  }
}

HEDDLE_INLINE std::string file_rendezvous::bye_path(int rank) const {
  std::string name = hex(session_);
  name += ".bye.";
  name += std::to_string(rank);
  return path_of(name);
}

HEDDLE_INLINE std::string file_rendezvous::judge(int rank, const std::string& size) const {
  if (size == std::to_string(size_)) return "ok";
  return text_of({"heddle: rank ", rank, " was started for ", size, " ranks, rank 0 for ", size_});
}

}  // namespace heddle::inline v0
