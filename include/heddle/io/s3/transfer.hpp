// heddle/io/s3/transfer.hpp: requests to a bucket: bodies, answers, connections, times.
#pragma once

#if !__has_include(<curl/curl.h>)
#error "heddle/io/s3/transfer.hpp needs libcurl 7.88: link heddle::curl (Debian: libcurl4-openssl-dev, libpugixml-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/io/safetensors/input_file.hpp>

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace heddle::inline v0::io::detail {

// Bytes of part `number`, from 0 on, of an object whose size is not known, where the first ones have so many: the most
// that a server takes is 10,000 parts of 5 GiB. In all of them 5 TiB have room from a first one of 6 MiB on.
constexpr std::int64_t s3_part_bytes(std::int64_t first, std::int64_t number) noexcept {
  constexpr std::int64_t most = std::int64_t{5} << 30;
  for (; number >= 1000 && first < most; number -= 1000) first *= 2;
  return (std::min)(first, most);
}

// How long reads took of late, by size: the last 64 of each power of four.
class s3_read_times {
 public:
  using duration = std::chrono::steady_clock::duration;

  void add(std::size_t bytes, duration took) {
    last& of = times_[group(bytes)];
    of.took[of.count++ % of.took.size()] = took;
  }
  // What 95 % of them did not exceed. Nothing while there are too few.
  std::optional<duration> most(std::size_t bytes) const {
    const last& of = times_[group(bytes)];
    const std::size_t n = (std::min)(of.count, of.took.size());
    if (n < 16) return std::nullopt;
    auto took = of.took;
    const auto at = took.begin() + static_cast<std::ptrdiff_t>(n * 95 / 100);
    std::nth_element(took.begin(), at, took.begin() + static_cast<std::ptrdiff_t>(n));
    return *at;
  }

 private:
  struct last {
    std::array<duration, 64> took{};
    std::size_t count = 0;
  };
  static std::size_t group(std::size_t bytes) noexcept { return static_cast<std::size_t>(std::bit_width(bytes)) / 2; }
  std::array<last, 33> times_{};
};

// What a request sends: bytes of memory, or of a file.
struct s3_body {
  std::span<const std::byte> bytes{};
  const input_file* file = nullptr;
  std::int64_t begin = 0, size = 0;
  std::int64_t at = 0;
  std::string fault{};

  static s3_body of(std::span<const std::byte> bytes) { return {bytes, nullptr, 0, std::ssize(bytes)}; }
  static std::size_t give(char* to, std::size_t one, std::size_t count, void* self) {
    auto& b = *static_cast<s3_body*>(self);
    const auto n = static_cast<std::size_t>((std::min)(static_cast<std::int64_t>(one * count), b.size - b.at));
    if (b.file == nullptr) {
      if (n > 0) std::memcpy(to, b.bytes.data() + b.at, n);
    } else {
      try {
        b.file->read(b.begin + b.at, std::as_writable_bytes(std::span(to, n)));
      } catch (const std::exception& e) {
        b.fault = e.what();
        return CURL_READFUNC_ABORT;
      }
    }
    b.at += static_cast<std::int64_t>(n);
    return n;
  }
  static int seek(void* self, curl_off_t offset, int from) {
    if (from != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<s3_body*>(self)->at = offset;
    return CURL_SEEKFUNC_OK;
  }
};

// What came back. A body goes to `out`, as long as it fits there; what an error says to `text`.
struct s3_answer {
  long status = 0;
  std::string text, etag;
  std::int64_t length = -1;
  std::time_t date = -1;  // the server's clock
  std::span<std::byte> out{};
  std::int64_t received = 0;
  bool has_head = false;  // to its last line: libcurl takes a head that is cut for a whole one
  CURL* of = nullptr;

  bool is_cut() const noexcept {
    return !has_head ||
           (out.data() != nullptr && (status == 200 || status == 206) && length >= 0 && received != length);
  }
  // Whether all of a range from `offset` on came.
  bool is_range(std::int64_t offset) const noexcept {
    return (status == 206 || (status == 200 && offset == 0)) && !is_cut() && received == std::ssize(out);
  }

  static std::size_t take(char* from, std::size_t one, std::size_t count, void* self) {
    auto& a = *static_cast<s3_answer*>(self);
    const std::size_t n = one * count;
    long status = 0;
    curl_easy_getinfo(a.of, CURLINFO_RESPONSE_CODE, &status);
    if (a.out.data() != nullptr && (status == 200 || status == 206)) {
      if (a.received + static_cast<std::int64_t>(n) > std::ssize(a.out)) return 0;  // more than was asked for
      std::memcpy(a.out.data() + a.received, from, n);
      a.received += static_cast<std::int64_t>(n);
      return n;
    }
    constexpr std::size_t most = std::size_t{16} << 20;
    if (a.text.size() + n > most) return 0;
    a.text.append(from, n);
    return n;
  }
  static std::size_t head(char* from, std::size_t one, std::size_t count, void* self) {
    auto& a = *static_cast<s3_answer*>(self);
    std::string_view line(from, one * count);
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // what came before is another answer
      a.etag.clear();
      a.length = -1;
    }
    a.has_head = line.empty();
    const auto colon = line.find(':');
    if (colon == line.npos) return one * count;
    std::string name(line.substr(0, colon));
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    if (name == "etag") a.etag = value;
    if (name == "date") a.date = curl_getdate(std::string(value).c_str(), nullptr);
    if (name == "content-length") a.length = std::strtoll(std::string(value).c_str(), nullptr, 10);
    return one * count;
  }
};

struct curl_slist_end {
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
};

// Connections of one thread: for a request, and for a second one of the same.
class s3_line {
 public:
  s3_line() : multi_(curl_multi_init()) {
    for (CURL*& c : handles_) c = curl_easy_init();
    if (multi_ == nullptr || handles_[0] == nullptr || handles_[1] == nullptr) {
      end();
      throw io_error("heddle: libcurl gives no handle");
    }
  }
  s3_line(const s3_line&) = delete;
  s3_line& operator=(const s3_line&) = delete;
  ~s3_line() { end(); }

  CURL* handle(std::size_t i) const noexcept { return handles_[i]; }
  void begin(std::size_t i) {
    ended_[i].reset();
    curl_multi_add_handle(multi_, handles_[i]);
  }
  void drop(std::size_t i) { curl_multi_remove_handle(multi_, handles_[i]); }
  // Goes on with what has begun, for so long at most. Then `ended` says what has come to its end.
  void run(std::chrono::milliseconds most) {
    int running = 0;
    CURLMcode code = curl_multi_perform(multi_, &running);
    if (!take_ended() && code == CURLM_OK) {
      code = curl_multi_poll(multi_, nullptr, 0, static_cast<int>(most.count()), nullptr);
      if (code == CURLM_OK) code = curl_multi_perform(multi_, &running);
      take_ended();
    }
    if (code != CURLM_OK) throw io_error("heddle: libcurl: " + std::string(curl_multi_strerror(code)));
  }
  const std::optional<CURLcode>& ended(std::size_t i) const noexcept { return ended_[i]; }

 private:
  bool take_ended() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* const m = curl_multi_info_read(multi_, &left))
      if (m->msg == CURLMSG_DONE) {
        ended_[m->easy_handle == handles_[1]] = m->data.result;
        any = true;
      }
    return any;
  }
  void end() {
    for (CURL* c : handles_) {
      if (multi_ != nullptr && c != nullptr) curl_multi_remove_handle(multi_, c);
      curl_easy_cleanup(c);
    }
    if (multi_ != nullptr) curl_multi_cleanup(multi_);
  }
  CURLM* multi_;
  std::array<CURL*, 2> handles_{};
  std::array<std::optional<CURLcode>, 2> ended_{};
};

}  // namespace heddle::inline v0::io::detail
