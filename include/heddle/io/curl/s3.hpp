// heddle/io/curl/s3.hpp: a bucket of S3, or of a server with its protocol, as a store.
#pragma once

#if !__has_include(<curl/curl.h>)
#error "heddle/io/curl/ needs libcurl 7.88: link heddle::curl (Debian: libcurl4-openssl-dev, libpugixml-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/safetensors/input_file.hpp>
#include <heddle/io/store.hpp>

#include <curl/curl.h>
#include <pugixml.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

static_assert(LIBCURL_VERSION_NUM >= 0x075800, "heddle: libcurl 7.88 or later signs requests as S3 wants them");

namespace heddle::inline v0::io {

/// How a bucket is reached. `from_environment` has what the AWS_* variables say.
struct s3_options {
  std::string endpoint{};  ///< as in "http://127.0.0.1:9000"; empty: https://s3.REGION.amazonaws.com
  std::string region = "us-east-1";
  std::string access_key{}, secret_key{}, session_token{};
  /// Of a request that failed on the way, or with 429, 500, 502, 503 or 504, or with 409 where several put one object.
  int retries = 5;
  std::chrono::milliseconds first_pause{100};        ///< before the first retry; twice as long before each of the next
  std::chrono::milliseconds connect_timeout{10000};  ///< of a connection
  std::chrono::milliseconds stall_timeout{30000};    ///< a transfer that brings nothing for so long has failed
  std::int64_t part_bytes = std::int64_t{64} << 20;  ///< files above it go up in parts of this size

  /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
  /// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL.
  static s3_options from_environment() {
    const auto first = [](std::initializer_list<const char*> names, std::string otherwise = {}) {
      for (const char* name : names)
        if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return std::string(value);
      return otherwise;
    };
    s3_options o;
    o.endpoint = first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
    o.region = first({"AWS_REGION", "AWS_DEFAULT_REGION"}, o.region);
    o.access_key = first({"AWS_ACCESS_KEY_ID"});
    o.secret_key = first({"AWS_SECRET_ACCESS_KEY"});
    o.session_token = first({"AWS_SESSION_TOKEN"});
    return o;
  }
};

namespace detail {

// Bytes of part `number`, from 0 on, of an object whose size is not known, where the first ones have so many: the most
// that a server takes is 10,000 parts of 5 GiB. In all of them 5 TiB have room from a first one of 6 MiB on.
constexpr std::int64_t s3_part_bytes(std::int64_t first, std::int64_t number) noexcept {
  constexpr std::int64_t most = std::int64_t{5} << 30;
  for (; number >= 1000 && first < most; number -= 1000) first *= 2;
  return (std::min)(first, most);
}

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
  std::span<std::byte> out{};
  std::int64_t received = 0;
  bool has_head = false;  // to its last line: libcurl takes a head that is cut for a whole one
  CURL* of = nullptr;

  bool is_cut() const noexcept {
    return !has_head ||
           (out.data() != nullptr && (status == 200 || status == 206) && length >= 0 && received != length);
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
    if (name == "content-length") a.length = std::strtoll(std::string(value).c_str(), nullptr, 10);
    return one * count;
  }
};

struct curl_slist_end {
  void operator()(curl_slist* list) const noexcept { curl_slist_free_all(list); }
};

}  // namespace detail

/// Objects of a bucket, below a prefix. Requests are signed (AWS signature 4, by libcurl). One object serves any
/// number of threads, each with a connection of its own. Keys are in no message.
/// Errors: `config_error` for what is no "s3://bucket/prefix" or misses keys; `io_error` with URL, HTTP status and the
/// server's text.
/// Source: Amazon S3 API reference, 2006-03-01.
class s3_store final : public store {
 public:
  explicit s3_store(std::string_view url, s3_options options = s3_options::from_environment())
      : options_(std::move(options)) {
    static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (ready != CURLE_OK) throw io_error("heddle: libcurl does not start: " + std::string(curl_easy_strerror(ready)));
    constexpr std::string_view scheme = "s3://";
    if (!url.starts_with(scheme) || url.size() == scheme.size() || url[scheme.size()] == '/')
      throw config_error("heddle: a bucket is \"s3://BUCKET/PREFIX\", got '" +
                         heddle::v0::detail::shown_name(std::string(url)) + "'");
    url.remove_prefix(scheme.size());
    const auto slash = url.find('/');
    bucket_ = url.substr(0, slash);
    if (slash != url.npos) prefix_ = url.substr(slash + 1);
    while (!prefix_.empty() && prefix_.back() == '/') prefix_.pop_back();
    if (!prefix_.empty()) prefix_ += '/';
    if (options_.endpoint.empty()) options_.endpoint = "https://s3." + options_.region + ".amazonaws.com";
    while (options_.endpoint.back() == '/') options_.endpoint.pop_back();
    if (options_.access_key.empty() || options_.secret_key.empty())
      throw config_error("heddle: 's3://" + bucket_ +
                         "' needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give them in s3_options");
    constexpr std::int64_t least = std::int64_t{5} << 20;
    if (options_.part_bytes < least)
      throw config_error("heddle: s3_options::part_bytes should be " + std::to_string(least) + " or more, got " +
                         std::to_string(options_.part_bytes));
  }
  ~s3_store() override {
    for (CURL* c : free_) curl_easy_cleanup(c);
  }

  std::string where(std::string_view name) const override { return shown_url(std::string(name)); }

  std::optional<std::int64_t> size(const std::string& name) const override {
    request r{"HEAD", name};
    const detail::s3_answer a = perform(r);
    if (a.status == 404) {
      // A missing object and a missing bucket look the same here.
      if (!bucket_seen_.exchange(true)) require_bucket();
      return std::nullopt;
    }
    require(r, a, a.status == 200 && a.length >= 0);
    const std::scoped_lock lock(lock_);
    etags_[name] = a.etag;
    return a.length;
  }
  void read(const std::string& name, std::int64_t offset, std::span<std::byte> out) const override {
    if (out.empty()) return;
    request r{"GET", name};
    {
      const std::scoped_lock lock(lock_);
      if (const auto known = etags_.find(name); known != etags_.end()) r.etag = known->second;
    }
    r.offset = offset;
    r.out = out;
    const detail::s3_answer a = perform(r);
    if (a.status == 412 || ((a.status == 200 || a.status == 206) && !r.etag.empty() && a.etag != r.etag))
      throw io_error("heddle: '" + where(name) +
                     "' is another object than when it was opened: it was written to while it was read");
    if (a.status == 416)
      throw io_error("heddle: '" + where(name) + "' ends early: " + std::to_string(out.size()) + " bytes at " +
                     std::to_string(offset) + " expected (HTTP status 416)");
    require(r, a, a.status == 206 || (a.status == 200 && r.offset == 0));
    if (a.received != std::ssize(r.out))
      throw io_error("heddle: '" + where(name) + "' ends early: " + std::to_string(out.size()) + " bytes at " +
                     std::to_string(offset) + " expected, got " + std::to_string(r.offset - offset + a.received));
  }
  void put(const std::string& name, std::span<const std::byte> bytes) override {
    request r{"PUT", name};
    r.body = detail::s3_body::of(bytes);
    require_done(r, perform(r));
    forget(name);
  }
  bool put_new(const std::string& name, std::span<const std::byte> bytes) override {
    request r{"PUT", name};
    r.body = detail::s3_body::of(bytes);
    r.if_absent = true;
    const detail::s3_answer a = perform(r);
    forget(name);
    if (a.status == 412) {
      // After an answer that was lost, what is there may be what this call has put.
      if (!r.was_retried) return false;
      const auto there = read_all(name);
      return std::equal(there.begin(), there.end(), bytes.begin(), bytes.end());
    }
    require_done(r, a);
    return true;
  }
  void put_file(const std::string& name, const std::filesystem::path& from) override {
    const input_file file(from);
    if (file.size() > options_.part_bytes) {
      put_parts(name, file);
    } else {
      request r{"PUT", name};
      r.body = {{}, &file, 0, file.size()};
      require_done(r, perform(r));
    }
    file.require_unchanged();
    forget(name);
  }
  /// Memory: one part: `s3_options::part_bytes`, and twice as much after each 1,000 parts, up to 5 GiB.
  std::unique_ptr<object_writer> writer(const std::string& name) override {
    return std::make_unique<parts_writer>(*this, name);
  }
  std::vector<std::string> list(const std::string& prefix) const override {
    std::vector<std::string> names;
    for (std::string next;;) {
      request r{"GET", {}};
      r.query = (next.empty() ? "" : "continuation-token=" + escaped(next) + "&") + std::string("list-type=2&prefix=") +
                escaped(prefix_ + prefix);
      const detail::s3_answer a = perform(r);
      require_done(r, a);
      const pugi::xml_document answer = xml(r, a);
      const pugi::xml_node all = answer.child("ListBucketResult");
      for (const pugi::xml_node object : all.children("Contents")) {
        const std::string key = object.child_value("Key");
        if (key.starts_with(prefix_)) names.push_back(key.substr(prefix_.size()));
      }
      next = all.child_value("NextContinuationToken");
      if (std::string_view(all.child_value("IsTruncated")) != "true" || next.empty()) break;
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void remove(const std::string& name) override {
    request r{"DELETE", name};
    const detail::s3_answer a = perform(r);
    require(r, a, a.status == 204 || a.status == 200 || a.status == 404);
    forget(name);
  }

  /// Requests that were sent again so far.
  std::int64_t retries() const noexcept { return retries_.load(std::memory_order_relaxed); }

 private:
  struct request {
    const char* method;
    std::string name;
    std::string query{};
    std::optional<detail::s3_body> body{};
    bool if_absent = false;
    std::int64_t offset = 0;
    std::span<std::byte> out{};
    std::string etag{};
    bool was_retried = false;
  };

  static std::string escaped(std::string_view text, bool keep_slash = false) {
    constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
      if (plain.find(c) != plain.npos || (keep_slash && c == '/')) {
        out += c;
      } else {
        const auto byte = static_cast<unsigned char>(c);
        (out += '%') += digits[byte >> 4];
        out += digits[byte & 15];
      }
    }
    return out;
  }
  std::string url_of(const std::string& name) const {
    return options_.endpoint + "/" + escaped(bucket_) + "/" + (name.empty() ? "" : escaped(prefix_ + name, true));
  }
  // For messages: without what stands before an '@'.
  std::string shown_url(const std::string& name) const {
    std::string url = url_of(name);
    const auto scheme = url.find("://");
    const auto host = scheme == url.npos ? 0 : scheme + 3;
    const auto at = url.substr(0, url.find('/', host)).rfind('@');
    if (at != url.npos && at >= host) url.replace(host, at - host, "***");
    return url;
  }
  void forget(const std::string& name) {
    const std::scoped_lock lock(lock_);
    etags_.erase(name);
  }

  // What the server says, without the keys.
  std::string said(const detail::s3_answer& a) const {
    pugi::xml_document answer;
    std::string text;
    if (answer.load_buffer(a.text.data(), a.text.size())) {
      const pugi::xml_node error = answer.child("Error");
      text = std::string(error.child_value("Code")) + ": " + error.child_value("Message");
      if (text == ": ") text.clear();
    }
    for (const std::string* key : {&options_.access_key, &options_.secret_key, &options_.session_token})
      for (std::size_t at = 0; !key->empty() && (at = text.find(*key, at)) != text.npos;)
        text.replace(at, key->size(), "***");
    return text.empty() ? std::string() : ", " + heddle::v0::detail::shown_name(text);
  }
  void require(const request& r, const detail::s3_answer& a, bool is) const {
    if (!is)
      throw io_error("heddle: " + std::string(r.method) + " '" + shown_url(r.name) + "': HTTP status " +
                     std::to_string(a.status) + said(a));
  }
  void require_done(const request& r, const detail::s3_answer& a) const { require(r, a, a.status == 200); }
  void require_bucket() const {
    request r{"HEAD", {}};
    const detail::s3_answer a = perform(r);
    if (a.status == 404) throw io_error("heddle: there is no bucket '" + shown_url({}) + "' (HTTP status 404)");
  }
  pugi::xml_document xml(const request& r, const detail::s3_answer& a) const {
    pugi::xml_document answer;
    if (const auto parsed = answer.load_buffer(a.text.data(), a.text.size()); !parsed)
      throw io_error("heddle: " + std::string(r.method) + " '" + shown_url(r.name) +
                     "': the answer is no XML, offset " + std::to_string(parsed.offset) + ": " + parsed.description());
    return answer;
  }

  void put_parts(const std::string& name, const input_file& file) {
    constexpr std::int64_t most_parts = 10000;
    const std::int64_t bytes = (std::max)(options_.part_bytes, (file.size() + most_parts - 1) / most_parts);
    upload up(*this, name);
    for (std::int64_t at = 0; at < file.size(); at += bytes)
      up.add({{}, &file, at, (std::min)(bytes, file.size() - at)});
    up.finish();
  }

  // An object that is put in parts; what is not finished is told to the server.
  class upload {
   public:
    upload(s3_store& to, const std::string& name) : to_(&to), name_(name) {
      request begin{"POST", name_, "uploads="};
      begin.body = detail::s3_body::of({});
      const detail::s3_answer begun = to_->perform(begin);
      to_->require_done(begin, begun);
      const std::string id = to_->xml(begin, begun).child("InitiateMultipartUploadResult").child_value("UploadId");
      to_->require(begin, begun, !id.empty());
      id_ = "uploadId=" + escaped(id);
    }
    upload(const upload&) = delete;
    upload& operator=(const upload&) = delete;
    ~upload() {
      if (done_) return;
      try {
        to_->perform({"DELETE", name_, id_});
      } catch (const std::exception&) {  // the first error is what is told
      }
    }
    void add(detail::s3_body part) {
      const std::string number = std::to_string(++number_);
      bytes_ += part.size;
      request r{"PUT", name_, "partNumber=" + number + "&" + id_};
      r.body = std::move(part);
      const detail::s3_answer a = to_->perform(r);
      to_->require(r, a, a.status == 200 && !a.etag.empty());
      parts_ += "<Part><PartNumber>" + number + "</PartNumber><ETag>" + a.etag + "</ETag></Part>";
    }
    void finish() {
      const std::string all = "<CompleteMultipartUpload>" + parts_ + "</CompleteMultipartUpload>";
      request end{"POST", name_, id_};
      end.body = detail::s3_body::of(std::as_bytes(std::span<const char>(all)));
      const detail::s3_answer ended = to_->perform(end);
      // An upload that an answer was lost of is not there any more, but the object is.
      done_ = ended.status == 404 && end.was_retried && to_->size(name_) == bytes_;
      if (done_) return;
      to_->require(end, ended, ended.status == 200 && to_->xml(end, ended).child("Error").empty());
      done_ = true;
    }

   private:
    s3_store* to_;
    std::string name_, id_{}, parts_{};
    std::int64_t number_ = 0, bytes_ = 0;
    bool done_ = false;
  };
  class parts_writer final : public object_writer {
   public:
    parts_writer(s3_store& to, std::string name) : to_(&to), name_(std::move(name)) {}
    void write(std::span<const std::byte> bytes) override {
      while (!bytes.empty()) {
        const auto room = detail::s3_part_bytes(to_->options_.part_bytes, number_) - std::ssize(held_);
        const auto some = bytes.first(static_cast<std::size_t>((std::min)(room, std::ssize(bytes))));
        held_.insert(held_.end(), some.begin(), some.end());
        bytes = bytes.subspan(some.size());
        if (std::ssize(some) == room && !bytes.empty()) give();
      }
    }
    void finish() override {
      if (!up_) return to_->put(name_, held_);
      give();
      up_->finish();
      to_->forget(name_);
    }

   private:
    void give() {
      if (!up_) up_.emplace(*to_, name_);
      up_->add(detail::s3_body::of(held_));
      held_.clear();
      ++number_;
    }
    s3_store* to_;
    std::string name_;
    std::vector<std::byte> held_{};
    std::optional<upload> up_{};
    std::int64_t number_ = 0;
  };

  static bool may_pass(long status) noexcept {
    return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
  }
  static bool may_pass(CURLcode code) noexcept {
    return code == CURLE_COULDNT_CONNECT || code == CURLE_OPERATION_TIMEDOUT || code == CURLE_PARTIAL_FILE ||
           code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING ||
           code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_HTTP2 || code == CURLE_HTTP2_STREAM;
  }

  detail::s3_answer perform(request&& r) const { return perform(r); }
  detail::s3_answer perform(request& r) const {
    auto pause = options_.first_pause;
    std::int64_t brought = 0;
    for (int left = options_.retries;; --left) {
      detail::s3_answer a;
      CURLcode code = send(r, a);
      if (code == CURLE_OK && a.is_cut()) code = CURLE_PARTIAL_FILE;
      const bool conflict = code == CURLE_OK && a.status == 409 && r.if_absent;  // nothing was put
      const bool done = code == CURLE_OK && !conflict && !may_pass(a.status);
      if (done) return a;
      if (code != CURLE_OK && a.received > 0) {  // goes on where it was cut
        r.offset += a.received;
        r.out = r.out.subspan(static_cast<std::size_t>(a.received));
        if (r.etag.empty()) r.etag = a.etag;
        if (r.out.empty()) {
          a.received = 0;
          return a;
        }
        if (brought += a.received; brought >= std::int64_t{1} << 20) {  // less is no reason to try for ever
          brought = 0;
          left = options_.retries;
          pause = options_.first_pause;
        }
      }
      if (r.body && !r.body->fault.empty()) throw io_error(r.body->fault);
      if (left <= 0 || (code != CURLE_OK && !may_pass(code))) {
        if (code != CURLE_OK)
          throw io_error("heddle: " + std::string(r.method) + " '" + shown_url(r.name) +
                         "': " + curl_easy_strerror(code) +
                         (r.was_retried ? ", after " + std::to_string(options_.retries) + " retries" : ""));
        return a;
      }
      if (!conflict) r.was_retried = true;
      retries_.fetch_add(1, std::memory_order_relaxed);
      std::this_thread::sleep_for(pause);
      pause *= 2;
    }
  }

  CURL* handle() const {
    {
      const std::scoped_lock lock(lock_);
      if (!free_.empty()) {
        CURL* const c = free_.back();
        free_.pop_back();
        return c;
      }
    }
    CURL* const c = curl_easy_init();
    if (c == nullptr) throw io_error("heddle: libcurl gives no handle");
    return c;
  }

  CURLcode send(request& r, detail::s3_answer& a) const {
    CURL* const c = handle();
    curl_easy_reset(c);  // keeps the connection
    const std::string url = url_of(r.name) + (r.query.empty() ? "" : "?" + r.query);
    const std::string keys = options_.access_key + ":" + options_.secret_key;
    const std::string signature = "aws:amz:" + options_.region + ":s3";
    std::unique_ptr<curl_slist, detail::curl_slist_end> headers;
    const auto add = [&](const std::string& line) {
      if (curl_slist* const all = curl_slist_append(headers.get(), line.c_str()); all != nullptr) {
        static_cast<void>(headers.release());
        headers.reset(all);
      }
    };
    add("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!options_.session_token.empty()) add("x-amz-security-token: " + options_.session_token);
    if (r.if_absent) add("If-None-Match: *");
    if (!r.etag.empty()) add("If-Match: " + r.etag);
    a.of = c;
    a.out = r.out;
    curl_easy_setopt(c, CURLOPT_URL, url.c_str());
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, signature.c_str());
    curl_easy_setopt(c, CURLOPT_USERPWD, keys.c_str());
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME,
                     (std::max)(1L, static_cast<long>(options_.stall_timeout.count() / 1000)));
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &detail::s3_answer::take);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, &a);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, &detail::s3_answer::head);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, &a);
    const std::string_view method = r.method;
    std::string range;
    if (method == "HEAD") {
      curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (r.body) {
      r.body->at = 0;
      curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
      curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, 0L);  // an empty "Expect:" would be signed, and break it
      curl_easy_setopt(c, CURLOPT_READFUNCTION, &detail::s3_body::give);
      curl_easy_setopt(c, CURLOPT_READDATA, &*r.body);
      curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, &detail::s3_body::seek);
      curl_easy_setopt(c, CURLOPT_SEEKDATA, &*r.body);
      curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(r.body->size));
      if (method != "PUT") curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r.method);
    } else if (method != "GET") {
      curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r.method);
    }
    if (!r.out.empty()) {
      range = std::to_string(r.offset) + "-" + std::to_string(r.offset + std::ssize(r.out) - 1);
      curl_easy_setopt(c, CURLOPT_RANGE, range.c_str());
    }
    const CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &a.status);
    a.of = nullptr;
    const std::scoped_lock lock(lock_);
    free_.push_back(c);
    return code;
  }

  s3_options options_;
  std::string bucket_, prefix_;
  mutable std::mutex lock_;
  mutable std::vector<CURL*> free_;
  mutable std::map<std::string, std::string> etags_;
  mutable std::atomic<bool> bucket_seen_{false};
  mutable std::atomic<std::int64_t> retries_{0};
};

}  // namespace heddle::inline v0::io
