// heddle/io/s3/store.hpp: a bucket of S3, or of a server with its protocol, as a store.
#pragma once

#if !__has_include(<curl/curl.h>)
#error "heddle/io/s3/store.hpp needs libcurl 7.88: link heddle::curl (Debian: libcurl4-openssl-dev, libpugixml-dev)"
#endif

#include <heddle/core/error.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/io/s3/signature.hpp>
#include <heddle/io/s3/transfer.hpp>
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
#include <ctime>
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

static_assert(LIBCURL_VERSION_NUM >= 0x075800, "heddle: libcurl 7.88 or later is needed");

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
  /// A range that takes so many times as long as 95 % of the last 64 of its size did is asked for a second time, and the
  /// first answer counts; 0: never.
  double second_after = 2;

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

/// Objects of a bucket, below a prefix. Requests are signed (AWS signature 4). One object serves any
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
      throw config_error("heddle: a bucket is \"s3://BUCKET/PREFIX\", got '" + shown_name(std::string(url)) + "'");
    url.remove_prefix(scheme.size());
    const auto slash = url.find('/');
    bucket_ = url.substr(0, slash);
    if (slash != url.npos) prefix_ = url.substr(slash + 1);
    while (!prefix_.empty() && prefix_.back() == '/') prefix_.pop_back();
    if (!prefix_.empty()) prefix_ += '/';
    if (options_.endpoint.empty()) options_.endpoint = "https://s3." + options_.region + ".amazonaws.com";
    while (options_.endpoint.back() == '/') options_.endpoint.pop_back();
    const auto begin = options_.endpoint.find("://");
    const auto host = begin == std::string::npos ? 0 : begin + 3, end = options_.endpoint.find('/', host);
    host_ = options_.endpoint.substr(host, end == std::string::npos ? end : end - host);
    if (end != std::string::npos) base_ = options_.endpoint.substr(end);
    const auto at = host_.rfind('@');
    if (at != host_.npos) host_.erase(0, at + 1);
    address_ = options_.endpoint.substr(0, host) + host_;
    shown_ = options_.endpoint.substr(0, host) + (at == host_.npos ? "" : "***@") + host_;
    if (options_.access_key.empty() || options_.secret_key.empty())
      throw config_error("heddle: 's3://" + bucket_ +
                         "' needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give them in s3_options");
    constexpr std::int64_t least = std::int64_t{5} << 20;
    if (options_.part_bytes < least)
      throw config_error("heddle: s3_options::part_bytes should be " + std::to_string(least) + " or more, got " +
                         std::to_string(options_.part_bytes));
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
  /// Ranges that were asked for a second time so far, because the first answer took long.
  std::int64_t second_requests() const noexcept { return seconds_.load(std::memory_order_relaxed); }

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
    bool was_retried = false, was_dated = false;
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
  std::string path_of(const std::string& name) const {
    return base_ + "/" + escaped(bucket_) + "/" + (name.empty() ? "" : escaped(prefix_ + name, true));
  }
  // For messages.
  std::string shown_url(const std::string& name) const { return shown_ + path_of(name); }
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
    return text.empty() ? std::string() : ", " + shown_name(text);
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
      if (code == CURLE_OK && a.status == 403 && a.date >= 0 && !r.was_dated && is_off(a.date)) {
        r.was_dated = true;  // signed again, with the server's time
        retries_.fetch_add(1, std::memory_order_relaxed);
        ++left;
        continue;
      }
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

  // Whether the time that requests are signed with is another than the server's, as it refuses from 15 minutes on. Then
  // later ones have the server's.
  bool is_off(std::time_t of_server) const {
    constexpr std::int64_t most = 300;
    const std::int64_t ahead = static_cast<std::int64_t>(of_server) - static_cast<std::int64_t>(std::time(nullptr));
    const std::int64_t before = ahead_.load(std::memory_order_relaxed);
    if (ahead - before <= most && before - ahead <= most) return false;
    ahead_.store(ahead, std::memory_order_relaxed);
    return true;
  }
  struct line_end {
    const s3_store* of;
    void operator()(detail::s3_line* l) const {
      std::unique_ptr<detail::s3_line> back(l);
      back->drop(0);
      back->drop(1);
      const std::scoped_lock lock(of->lock_);
      of->free_.push_back(std::move(back));
    }
  };
  // A thread's connections, until it gives them back.
  std::unique_ptr<detail::s3_line, line_end> line() const {
    std::unique_ptr<detail::s3_line> one;
    {
      const std::scoped_lock lock(lock_);
      if (!free_.empty()) {
        one = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!one) one = std::make_unique<detail::s3_line>();
    return {one.release(), line_end{this}};
  }

  // Sends a request; a range that takes long is asked for a second time.
  CURLcode send(request& r, detail::s3_answer& a) const {
    using clock = std::chrono::steady_clock;
    const auto lines = line();
    detail::s3_line& l = *lines;
    std::optional<clock::duration> slow;
    if (!r.out.empty() && options_.second_after > 0) {
      const std::scoped_lock lock(lock_);
      slow = times_.most(r.out.size());
    }
    const auto begin = clock::now();
    auto begin_again = begin;
    auto second_at = clock::time_point::max();
    if (slow) second_at = begin + std::chrono::duration_cast<clock::duration>(*slow * options_.second_after);
    const auto headers = prepare(l.handle(0), r, a);
    l.begin(0);
    request again{};
    detail::s3_answer b;
    std::vector<std::byte> bytes;
    headers_type headers_again;
    bool two = false;
    const auto status = [&l](std::size_t i, detail::s3_answer& of) {
      curl_easy_getinfo(l.handle(i), CURLINFO_RESPONSE_CODE, &of.status);
    };
    for (;;) {
      auto wait = std::chrono::milliseconds(1000);
      if (second_at != clock::time_point::max())
        wait = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(second_at - clock::now()),
                          std::chrono::milliseconds(0), wait);
      l.run(wait);
      if (l.ended(0)) {
        status(0, a);
        if (!two || (*l.ended(0) == CURLE_OK && !a.is_cut() && !may_pass(a.status))) break;
      }
      if (two && l.ended(1)) {
        status(1, b);
        l.drop(1);
        two = false;
        if (*l.ended(1) == CURLE_OK && b.is_range(again.offset)) {
          l.drop(0);
          std::copy(bytes.begin(), bytes.end(), r.out.last(bytes.size()).begin());
          b.of = nullptr;
          b.out = r.out;
          b.received = b.length = std::ssize(r.out);
          a = std::move(b);
          note_read(r, clock::now() - begin_again);
          return CURLE_OK;
        }
        if (l.ended(0)) break;
      }
      if (clock::now() < second_at || l.ended(0)) continue;
      second_at = clock::time_point::max();
      again = {r.method, r.name};
      again.etag = r.etag.empty() ? a.etag : r.etag;
      again.offset = r.offset + a.received;  // the rest only
      if (std::ssize(r.out) - a.received > options_.part_bytes || a.received == std::ssize(r.out)) continue;
      bytes.resize(r.out.size() - static_cast<std::size_t>(a.received));
      again.out = bytes;
      headers_again = prepare(l.handle(1), again, b);
      l.begin(1);
      begin_again = clock::now();
      two = true;
      seconds_.fetch_add(1, std::memory_order_relaxed);
    }
    a.of = nullptr;
    if (*l.ended(0) == CURLE_OK && !r.out.empty() && a.is_range(r.offset)) note_read(r, clock::now() - begin);
    return *l.ended(0);
  }
  void note_read(const request& r, std::chrono::steady_clock::duration took) const {
    const std::scoped_lock lock(lock_);
    times_.add(r.out.size(), took);
  }

  using headers_type = std::unique_ptr<curl_slist, detail::curl_slist_end>;
  // Sets what a handle is to do; `r` and `a` must stay, and what this returns.
  headers_type prepare(CURL* c, request& r, detail::s3_answer& a) const {
    curl_easy_reset(c);  // keeps the connection
    const std::string path = path_of(r.name), url = address_ + path + (r.query.empty() ? "" : "?" + r.query);
    headers_type headers;
    const auto add = [&](const std::string& line) {
      if (curl_slist* const all = curl_slist_append(headers.get(), line.c_str()); all != nullptr) {
        static_cast<void>(headers.release());
        headers.reset(all);
      }
    };
    constexpr const char* payload = "UNSIGNED-PAYLOAD";
    const std::int64_t ahead = ahead_.load(std::memory_order_relaxed);
    std::vector<std::pair<std::string, std::string>> signs{
        {"host", host_},
        {"x-amz-content-sha256", payload},
        {"x-amz-date", detail::signature_date(std::time(nullptr) + static_cast<std::time_t>(ahead))}};
    if (!options_.session_token.empty()) signs.emplace_back("x-amz-security-token", options_.session_token);
    for (const auto& [name, value] : signs) add(name + ": " + value);
    add("Authorization: " + detail::signature_of(r.method, path, r.query, signs, payload, options_.region,
                                                 options_.access_key, options_.secret_key));
    if (r.if_absent) add("If-None-Match: *");
    if (!r.etag.empty()) add("If-Match: " + r.etag);
    a.of = c;
    a.out = r.out;
    curl_easy_setopt(c, CURLOPT_URL, url.c_str());
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
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
      curl_easy_setopt(c, CURLOPT_EXPECT_100_TIMEOUT_MS, 0L);
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
    return headers;
  }

  s3_options options_;
  std::string bucket_, prefix_;
  std::string address_, host_, base_, shown_;  // of the endpoint: scheme and host, host, path behind it, for messages
  mutable std::mutex lock_;
  mutable std::vector<std::unique_ptr<detail::s3_line>> free_;
  mutable detail::s3_read_times times_;
  mutable std::map<std::string, std::string> etags_;
  mutable std::atomic<bool> bucket_seen_{false};
  mutable std::atomic<std::int64_t> retries_{0}, seconds_{0};
  mutable std::atomic<std::int64_t> ahead_{
      0};  // seconds that the server's clock is ahead of this one, where it matters
};

}  // namespace heddle::inline v0::io
