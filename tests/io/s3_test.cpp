// Stores: the same laws for a folder and for buckets of servers that speak S3 (HEDDLE_TEST_S3 has their endpoints).
#include "catch.hpp"

#include <heddle/io/checkpoint.hpp>
#include <heddle/io/store.hpp>
#include <heddle/io/store_saves.hpp>

#if __has_include(<curl/curl.h>) && __has_include(<pugixml.hpp>) && defined(HEDDLE_TEST_CURL)
#include <heddle/io/s3/store.hpp>
#define HEDDLE_TEST_HAS_S3 1
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "scratch.hpp"

namespace hd = heddle;
namespace io = heddle::io;
using Catch::Matchers::Contains;

namespace {

std::span<const std::byte> store_bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}
std::string store_text(const io::store& from, const std::string& name) {
  const auto bytes = from.read_all(name);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string store_noise(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(count, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// `at_once`: of those that put a new object at the same time one wins, and not only of those that come one by one.
void check_store(io::store& s, const scratch_folder& at, bool at_once = true) {
  CHECK_FALSE(s.size("a/none"));
  CHECK_THROWS_AS(s.read_all("a/none"), hd::io_error);
  s.put("a/one", store_bytes("first"));
  CHECK(s.size("a/one") == 5);
  CHECK(store_text(s, "a/one") == "first");
  s.put("a/one", store_bytes("second, longer"));
  CHECK(store_text(s, "a/one") == "second, longer");
  std::string part(6, '\0');
  s.read("a/one", 8, std::as_writable_bytes(std::span(part)));
  CHECK(part == "longer");
  CHECK_THROWS_WITH(s.read("a/one", 10, std::as_writable_bytes(std::span(part))), Contains("ends early"));
  CHECK_THROWS_WITH(s.read("a/one", 100, std::as_writable_bytes(std::span(part))), Contains("ends early"));
  s.put("empty", {});
  CHECK(s.size("empty") == 0);
  CHECK(s.read_all("empty").empty());
  CHECK(s.put_new("a/new", store_bytes("mine")));
  CHECK_FALSE(s.put_new("a/new", store_bytes("theirs")));
  CHECK(store_text(s, "a/new") == "mine");
  for (int i = 0; i < 5; ++i) s.put("list of/" + std::to_string(i) + "+&=.x", store_bytes("x"));
  CHECK(s.list("list of/") == std::vector<std::string>{"list of/0+&=.x", "list of/1+&=.x", "list of/2+&=.x",
                                                       "list of/3+&=.x", "list of/4+&=.x"});
  CHECK(s.list("nothing").empty());
  CHECK(store_text(s, "list of/3+&=.x") == "x");
  s.remove("list of/3+&=.x");
  s.remove("list of/3+&=.x");
  CHECK(s.list("list of/").size() == 4);
  const std::string big = store_noise(11 << 20, 7);  // more than two parts of 5 MiB
  put(at / "big", big);
  s.put_file("big", at / "big");
  CHECK(store_text(s, "big") == big);
  put(at / "small", "small");
  s.put_file("small", at / "small");
  CHECK(store_text(s, "small") == "small");
  CHECK_THROWS_AS(s.put_file("none", at / "none"), hd::io_error);
  // Of many that put at once one wins.
  std::atomic<int> won{0};
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) all.emplace_back([&, i] { won += s.put_new("race", store_bytes(std::to_string(i))); });
  for (std::thread& t : all) t.join();
  CHECK(won >= 1);
  if (at_once) CHECK(won == 1);
}

#if defined(HEDDLE_TEST_HAS_S3)
io::s3_options s3_at(const std::string& endpoint) {
  io::s3_options o;
  o.endpoint = endpoint;
  o.access_key = "heddle-access";
  o.secret_key = "heddle-secret-that-nobody-prints";
  o.part_bytes = std::int64_t{5} << 20;
  o.first_pause = std::chrono::milliseconds(5);
  o.retries = 12;  // a proxy may fail many times
  return o;
}
// Each a word of HEDDLE_TEST_S3.
std::vector<std::string> s3_endpoints() {
  std::vector<std::string> all;
  const char* given = std::getenv("HEDDLE_TEST_S3");
  std::istringstream words(given == nullptr ? "" : given);
  for (std::string word; words >> word;) all.push_back(word);
  return all;
}
#endif

}  // namespace

TEST_CASE("a folder is a store", "[io][store]") {
  const scratch_folder at("store");
  io::folder_store s(at / "objects");
  check_store(s, at);
}

#if defined(HEDDLE_TEST_HAS_S3)
TEST_CASE("a bucket is a store", "[io][store][s3]") {
  for (const std::string& endpoint : s3_endpoints()) {
    CAPTURE(endpoint);
    const scratch_folder at("s3");
    io::s3_store s("s3://heddle/test-" + std::to_string(std::random_device{}()), s3_at(endpoint));
    // moto looks whether the object is there, and keeps it, in two steps.
    const char* const two_steps = std::getenv("HEDDLE_TEST_S3_MOTO");
    check_store(s, at, two_steps == nullptr || std::string(two_steps).find(endpoint) == std::string::npos);
    CHECK(s.size("a/one") == 14);
    s.put("elsewhere", {});
    // Another client changes what this one has open.
    io::s3_store other("s3://heddle", s3_at(endpoint));
    const std::string name = s.where("a/one").substr(endpoint.size() + sizeof "/heddle");
    other.put(name, store_bytes("third, as long"));
    std::string part(5, '\0');
    CHECK_THROWS_WITH(s.read("a/one", 0, std::as_writable_bytes(std::span(part))), Contains("another object"));
    CHECK(store_text(s, "a/one") == "third, as long");
  }
}

TEST_CASE("a save in a bucket is there with its manifest, and of two runs one wins", "[io][store][s3]") {
  for (const std::string& endpoint : s3_endpoints()) {
    CAPTURE(endpoint);
    const scratch_folder at("s3-saves");
    io::s3_store s("s3://heddle/saves-" + std::to_string(std::random_device{}()), s3_at(endpoint));
    const auto save = [&](const char* folder, std::int64_t step, const char* run) {
      io::manifest m;
      m.step = step;
      m.facts["run"] = run;
      for (int rank = 0; rank < 2; ++rank) {
        io::checkpoint_writer writer(at / folder, step, rank);
        const std::vector<float> values(1000, static_cast<float>(step));
        writer.add("w", std::span<const float>(values), {{2000}, {1000 * rank}, {1000}});
        m.files.push_back(writer.finish());
      }
      return io::require_save(io::commit(at / folder, m));
    };
    for (const std::int64_t step : {1, 2, 3}) {
      const io::manifest m = save("one", step, "a");
      io::put_save_files(s, io::detail::save_path(at / "one", step), m);
      const auto before = io::latest(s);
      CHECK((before ? before->step : 0) == step - 1);
      io::put_save_manifest(s, m);
      CHECK(io::latest(s)->step == step);
    }
    CHECK(io::detail::steps_in(s) == std::vector<std::int64_t>{3, 2});
    const io::manifest other = save("two", 3, "b");
    CHECK_THROWS_WITH(io::put_save_files(s, at / "two/step-00000003", other),
                      Contains("is there already, of another run"));
    const auto newest = io::latest(s);
    CHECK(io::detail::run_of(*newest) == "a");
    io::get_save_files(s, *newest, at / "back/part");
    const auto got = io::finish_got_save(at / "back", *newest, at / "back/part");
    CHECK(io::require_save(got) == *newest);
    CHECK(get(got / "rank-00001.tensors") == get(at / "one/step-00000003/rank-00001.tensors"));
    // A file that is gone: the save before.
    s.remove("step-00000003/a/rank-00000.tensors");
    CHECK(io::latest(s)->step == 2);
  }
}

TEST_CASE("a range that takes long is asked for a second time", "[io][store][s3]") {
  const char* const endpoint =
      std::getenv("HEDDLE_TEST_S3_HOLDING");  // now and then one of its connections hangs for seconds
  if (endpoint == nullptr) return;            // tests/io/s3_servers.py has one
  const std::string url = "s3://heddle/slow-" + std::to_string(std::random_device{}()), all = store_noise(1 << 20, 11);
  std::istringstream direct(std::getenv("HEDDLE_TEST_S3_DIRECT"));
  std::string put_at;
  while (direct >> put_at) {
  }
  io::s3_store(url, s3_at(put_at)).put("x", store_bytes(all));
  const auto read = [&](const io::s3_store& s, std::size_t bytes) {
    std::string got(bytes, '\0');
    for (std::size_t at = 0; at < bytes; at += 4096)
      s.read("x", static_cast<std::int64_t>(at), std::as_writable_bytes(std::span(got).subspan(at, 4096)));
    CHECK(got == all.substr(0, bytes));
  };
  const io::s3_store s(url, s3_at(endpoint));
  read(s, all.size());
  CHECK(s.second_requests() >= 3);
  auto o = s3_at(put_at);
  o.second_after = 0;
  const io::s3_store once(url, o);
  read(once, 1 << 18);
  CHECK(once.second_requests() == 0);
}

TEST_CASE("a request has the published signature", "[io][store][s3]") {
  // Amazon S3 API reference, "Authenticating requests: using the Authorization header", the examples GET Object and
  // GET Bucket Lifecycle.
  const std::string empty = io::detail::hex_text(io::detail::sha256(""));
  CHECK(empty == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(io::detail::hex_text(io::detail::sha256(std::string(1000, 'a'))) ==
        "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
  const std::string date = io::detail::signature_date(1369353600);
  CHECK(date == "20130524T000000Z");
  const auto sign = [&](const char* path, const char* query, std::vector<std::pair<std::string, std::string>> headers) {
    const std::string all =
        io::detail::signature_of("GET", path, query, headers, empty, "us-east-1", "AKIAIOSFODNN7EXAMPLE",
                                 "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    CHECK_THAT(all, Contains("Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"));
    return all.substr(all.size() - 64);
  };
  const std::pair<std::string, std::string> host{"host", "examplebucket.s3.amazonaws.com"},
      payload{"x-amz-content-sha256", empty}, at{"x-amz-date", date};
  CHECK(sign("/test.txt", "", {host, {"range", "bytes=0-9"}, payload, at}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(sign("/", "lifecycle=", {host, payload, at}) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_CASE("a request is signed again with the server's time where the clock is off", "[io][store][s3]") {
  const char* const endpoint = std::getenv("HEDDLE_TEST_S3_AHEAD");
  if (endpoint == nullptr) return;  // tests/io/s3_servers.py has one
  const io::s3_store s("s3://heddle/p", s3_at(endpoint));
  CHECK(s.size("x") == 5);
  CHECK(s.retries() == 1);
  CHECK(store_text(s, "x") == "clock");
  CHECK(s.retries() == 1);  // from then on it is known
  const io::s3_store other("s3://heddle/p", s3_at(endpoint));
  std::string part(5, '\0');
  other.read("x", 0, std::as_writable_bytes(std::span(part)));
  CHECK(part == "clock");
}

TEST_CASE("10,000 parts have room for the largest object", "[io][store][s3]") {
  constexpr std::int64_t mib = std::int64_t{1} << 20, gib = mib << 10, tib = gib << 10;
  const auto room = [](std::int64_t first) {
    std::int64_t sum = 0, before = 0;
    bool fits = true;
    for (std::int64_t number = 0; number < 10000; ++number) {
      const std::int64_t part = io::detail::s3_part_bytes(first, number);
      fits = fits && part >= before && part <= 5 * gib;
      sum += before = part;
    }
    CHECK(fits);
    return sum;
  };
  CHECK(io::detail::s3_part_bytes(64 * mib, 999) == 64 * mib);
  CHECK(io::detail::s3_part_bytes(64 * mib, 1000) == 128 * mib);
  CHECK(room(5 * mib) == 1023 * 1000 * 5 * mib);
  CHECK(room(6 * mib) >= 5 * tib);
  CHECK(room(64 * mib) >= 5 * tib);
  CHECK(room(6 * gib) == 10000 * 5 * gib);
}

TEST_CASE("what a bucket refuses is told with URL and status, and without keys", "[io][store][s3]") {
  CHECK_THROWS_WITH(io::s3_store("http://x", s3_at("http://127.0.0.1:1")),
                    Contains("a bucket is \"s3://BUCKET/PREFIX\""));
  CHECK_THROWS_WITH(io::s3_store("s3://b/p", io::s3_options{}), Contains("needs keys"));
  {
    auto o = s3_at("http://127.0.0.1:1");
    o.retries = 1;
    const io::s3_store s("s3://b/p", o);
    CHECK_THROWS_WITH(s.size("x"), Contains("'http://127.0.0.1:1/b/p/x'") && Contains("after 1 retries"));
    CHECK(s.retries() == 1);
  }
  {
    const io::s3_store s("s3://b/p@q", s3_at("http://user:pass@word@127.0.0.1:1"));
    CHECK(s.where("x") == "http://***@127.0.0.1:1/b/p%40q/x");
  }
  for (const std::string& endpoint : s3_endpoints()) {
    CAPTURE(endpoint);
    const io::s3_store s("s3://no-such-bucket/p", s3_at(endpoint));
    CHECK_THROWS_WITH(s.size("x"), Contains("no bucket") && Contains("404"));
  }
  if (const char* strict = std::getenv("HEDDLE_TEST_S3_STRICT");
      strict != nullptr) {  // of a server that looks at signatures
    auto o = s3_at(strict);
    o.secret_key += "-but-another";
    const io::s3_store wrong("s3://heddle/p", o);
    const std::string said = message_of<hd::io_error>([&] { static_cast<void>(wrong.list("x")); });
    CHECK_THAT(said, Contains("HTTP status 403") && Contains("SignatureDoesNotMatch"));
    CHECK_THAT(said, !Contains(o.secret_key) && !Contains(o.access_key));
    o.access_key = "unknown-access";
    const io::s3_store unknown("s3://heddle/p", o);
    const std::string of_unknown = message_of<hd::io_error>([&] { static_cast<void>(unknown.list("x")); });
    CHECK_THAT(of_unknown, Contains("HTTP status 403") && !Contains(o.access_key));
  }
}
#endif
