// Shards that MosaicML's writer has made, through a cache of bounded size, and what is read ahead of a step.
#include "catch.hpp"

#include <heddle/io/store.hpp>
#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/io/tokens/prefetched_source.hpp>
#include <heddle/io/tokens/shard_cache.hpp>
#include <heddle/io/tokens/shard_order.hpp>
#include <heddle/io/tokens/token_source.hpp>
#include <heddle/train/step_batches.hpp>

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/io/tokenizer/json_string.hpp>
#include <heddle/io/tokens/mds.hpp>
#endif
#if defined(HEDDLE_HAS_ZSTD)
#include <heddle/io/zstd/decompress.hpp>
#endif

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "scratch.hpp"

using Catch::Matchers::Contains;

namespace mds_test {
namespace {

namespace mio = heddle::io;

// A folder that is far away: what is there must be read, and is counted.
struct far_folder {
  mio::folder_bytes files;
  mutable std::atomic<int> reads{0};
  explicit far_folder(const std::filesystem::path& path) : files(path) {}
  std::uint64_t size(const std::string& key) const { return files.size(key); }
  void read(const std::string& key, std::uint64_t offset, std::span<std::byte> to) const {
    ++reads;
    files.read(key, offset, to);
  }
};
static_assert(mio::byte_store<far_folder>);

std::int64_t bytes_in(const std::filesystem::path& folder) {
  std::int64_t n = 0;
  for (const auto& e : std::filesystem::directory_iterator(folder))
    if (e.path().filename().string()[0] != '.') n += static_cast<std::int64_t>(e.file_size());
  return n;
}

#if __has_include(<nlohmann/json.hpp>)
std::string shards_of(const char* name) {
  return std::string(HEDDLE_SOURCE_DIR "/tests/golden/mds/") + name;
}

void require_golden(const mio::mds_shards& shards, bool fixed, std::int64_t element) {
  REQUIRE(shards.documents() == 20);
  for (const std::int64_t i : {3, 19, 0, 7, 12, 1, 2, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18}) {
    CAPTURE(i);
    const std::int64_t n = fixed ? 3 : i % 5 + 1;
    REQUIRE(shards.length(i) == n);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(n));
    shards.copy(i, 0, std::span(tokens));
    for (std::int64_t t = 0; t < n; ++t) REQUIRE(tokens[static_cast<std::size_t>(t)] == 100 * i + t);
    shards.copy(i, n - 1, std::span(tokens).first(1));
    REQUIRE(tokens[0] == 100 * i + n - 1);
    const auto text = shards.column(i, "text");
    REQUIRE(std::string(reinterpret_cast<const char*>(text.data()), text.size()) ==
            "sample " + std::string(static_cast<std::size_t>(i), 'i'));
    std::int64_t number = 0;
    REQUIRE(shards.column(i, "number").size() == sizeof number);
    std::memcpy(&number, shards.column(i, "number").data(), sizeof number);
    REQUIRE(number == 7 * i - 3);
    REQUIRE(shards.bytes_of(i, 0, n).bytes == n * element);
  }
}
#endif

}  // namespace

#if __has_include(<nlohmann/json.hpp>)
static_assert(mio::token_store<mio::mds_shards>);

TEST_CASE("shards that MosaicML's writer has made are read, where they are and from far", "[io][tokens][golden]") {
  const scratch_folder folder("mds");
  for (const char* name : {"bytes", "array", "any"}) {
    CAPTURE(name);
    const std::int64_t element = name[0] == 'b' ? 8 : name[1] == 'r' ? 2 : 4;
    const mio::folder_bytes here(shards_of(name));
    mio::shard_cache in_place(here, {});
    require_golden(mio::mds_shards(in_place), false, element);
    CHECK(in_place.shards_read() == 0);
    const far_folder far(shards_of(name));
    mio::shard_cache cache(far, {.folder = folder / "cache"});  // one folder for all three
    require_golden(mio::mds_shards(cache), false, element);
    CHECK(cache.shards_read() == (name[0] == 'b' ? 4 : 3));
    // What another process has brought is not read again.
    mio::shard_cache second(far, {.folder = folder / "cache"});
    require_golden(mio::mds_shards(second), false, element);
    CHECK(second.shards_read() == 0);
    const mio::folder_store objects(shards_of(name));
    const mio::stored_bytes bucket(objects);
    static_assert(mio::byte_store<mio::stored_bytes>);
    CHECK_THROWS_WITH(bucket.size("none"), Contains("none' is not there"));
    mio::shard_cache stored(bucket, {.folder = folder / ("stored-" + std::string(name))});
    require_golden(mio::mds_shards(stored), false, element);
  }
#if defined(HEDDLE_HAS_ZSTD)
  const far_folder far(shards_of("fixed"));
  mio::shard_cache cache(far, {.folder = folder / "fixed"});
  const mio::mds_shards shards(cache, {.zstd = mio::zstd_decompressed});
  CHECK((shards.length(17) == 3 && cache.shards_read() == 0));  // all have one shape
  require_golden(shards, true, 4);
  CHECK(cache.shards_read() == 3);
  // As token_source has them, each shard read by the stream that needs it.
  const mio::shard_order order(shards, {.context = 2, .batch = 4, .streams = 2, .window = 3}, shards.shard_begins());
  const mio::token_source source(shards, order, 2000);
  std::vector<std::int32_t> in(8), out(8);
  for (std::int64_t step = 0; step < 10; ++step) {
    source.fill_train({4 * step, 4}, std::span(in), std::span(out));
    for (std::size_t i = 0; i < 8; i += 2) CHECK(out[i] == in[i + 1]);
  }
  const std::string whole = get(shards_of("fixed") + "/shard.00001.mds.zstd");
  CHECK(mio::zstd_decompressed(std::as_bytes(std::span(whole)), 558).size() == 558);
  CHECK_THROWS_WITH(mio::zstd_decompressed(std::as_bytes(std::span(whole)), 557),
                    Contains("more than 558 bytes, expected 557"));
  CHECK_THROWS_WITH(mio::zstd_decompressed(std::as_bytes(std::span(whole)), 559), Contains("558 bytes, expected 559"));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, whole.size() / 2, whole.size() - 1})
    CHECK_THROWS_WITH(mio::zstd_decompressed(std::as_bytes(std::span(whole).first(cut)), 558),
                      Contains("heddle: zstd: "));
  CHECK_THROWS_WITH(mio::zstd_decompressed(std::as_bytes(std::span(whole).subspan(1)), 558),
                    Contains("heddle: zstd: "));
#endif
}

TEST_CASE("a string of JSON says what a parser says of it, whatever its bytes are", "[io][tokens]") {
  std::string said;
  const auto check = [&](const std::string& text) {
    const auto parsed = nlohmann::json::parse(text, nullptr, false);
    const bool is = mio::read_string(text, said);
    if (is != parsed.is_string()) return false;
    return !is || said == parsed.get_ref<const std::string&>();
  };
  for (const char* text :
       {"\"\"", "\"", "", "1", "\"a\\n\\\"\\\\\\/\"", "\"\\u00e9\\uD83D\\ude00\"", "\"\\ud83d\"", "\"\\udc00\"",
        "\"\\u12\"", "\"\\x\"", "\"a\nb\"", "\"a\"b\"", "\"\\\"", "\"\\u0000\"", "\"\\uD83Dx\"", "\"\xc3\""}) {
    CAPTURE(text);
    CHECK(check(text));
  }
  const std::uint64_t seed = 45;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  constexpr std::string_view some = "ab\"\\\\\\uuudD8cC0019nrt/ \n\x7f\xc3\xa9\xed\xa0\xf0\x9f\x98\x80";
  int strings = 0;
  for (int k = 0; k < 20000; ++k) {
    std::string text = "\"";
    for (auto n = random() % 14; n > 0; --n) {
      if (random() % 4 == 0)
        text += std::array<const char*, 4>{"\\ud83d", "\\ude00", "\\u00E9", "\xf0\x9f\x98\x80"}[random() % 4];
      else
        text += some[random() % some.size()];
    }
    text += '"';
    if (!check(text)) FAIL(text);
    strings += nlohmann::json::accept(text);
  }
  CHECK(strings > 1000);
}

TEST_CASE("shards of MosaicML that cannot be are named, with what is wrong", "[io][tokens]") {
  const scratch_folder folder("mds-bad");
  const std::string index = get(shards_of("array") + "/index.json");
  const auto fault = [&](const std::string& from, const std::string& to, const std::string& column = "tokens") {
    std::filesystem::remove_all(folder / "x");
    std::filesystem::copy(shards_of("array"), folder / "x");
    std::string text = index;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    put(folder / "x" / "index.json", text.replace(at, from.size(), to));
    const mio::folder_bytes here(folder / "x");
    mio::shard_cache cache(here, {});
    return message_of<heddle::io_error>([&] {
      const mio::mds_shards shards(cache, {.column = column});
      for (std::int64_t d = 0; d < shards.documents(); ++d) (void)shards.length(d);
    });
  };
  CHECK(fault("{", "{").empty());
  CHECK_THAT(fault("{", "["), Contains("index.json"));
  CHECK_THAT(fault("\"mds\"", "\"json\""), Contains("shard 0 is of format \"json\", version 2; mds, 2 is read"));
  CHECK_THAT(fault("\"version\": 2", "\"version\": 3"), Contains("version 3; mds, 2 is read"));
  CHECK_THAT(fault("ndarray:uint16", "ndarray:float32"),
             Contains("the column 'tokens' is 'ndarray:float32'; tokens are bytes, or"));
  CHECK_THAT(fault("{", "{", "text"), Contains("the column 'text' is 'str'"));
  CHECK_THAT(fault("{", "{", "nothing"), Contains("shard 0 has no column 'nothing'"));
  CHECK_THAT(fault("\"compression\": null", "\"compression\": \"br\""), Contains("compressed by 'br'; zstd is read"));
  CHECK_THAT(fault("shard.00000.mds", "../../etc"),
             Contains("has the name '../../etc'; expected one of a file beside it"));
  CHECK_THAT(fault("\"bytes\": 573", "\"bytes\": 574"), Contains("has 573 bytes; expected 574"));
  CHECK_THAT(fault("\"samples\": ", "\"samples\": 1"), Contains("index.json has 1"));
  CHECK_THAT(fault("\"samples\": ", "\"samples\": 4611686018427387904, \"x\": "),
             Contains("has 4611686018427387904 samples in"));
  CHECK_THAT(fault("\"samples\"", "\"sample\""), Contains("index.json: key 'samples' not found"));
  // Any byte of a shard changed is an error or other tokens, and nothing is read outside of it.
  const std::string whole = get(shards_of("array") + "/shard.00000.mds");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x81);
    put(folder / "x" / "shard.00000.mds", bad);
    put(folder / "x" / "index.json", index);
    const mio::folder_bytes here(folder / "x");
    mio::shard_cache cache(here, {});
    const mio::mds_shards shards(cache);
    refused += !message_of<heddle::error>([&] {
                  for (std::int64_t d = 0; d < 6; ++d) {
                    std::vector<std::int32_t> tokens(static_cast<std::size_t>(shards.length(d)));
                    shards.copy(d, 0, std::span(tokens));
                  }
                }).empty();
  }
  CHECK(refused > 20);
}
#endif

TEST_CASE("a cache of shards stays below its size, and reads a shard once for all threads", "[io][tokens]") {
  const scratch_folder folder("shards");
  for (int i = 0; i < 12; ++i) put(folder / "far" / std::to_string(i), std::string(1000, static_cast<char>('a' + i)));
  const far_folder far(folder / "far");
  mio::shard_cache cache(far, {.folder = folder / "near", .most_bytes = 4500, .mapped = 2});
  put(folder / "near" / "mine", std::string(100, 'm'));
  std::filesystem::last_write_time(folder / "near" / "mine",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(24));
  const auto held = cache.get("s0", "0", 1000);
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 12; ++i) {
      const std::string number = std::to_string(i);
      const auto file = cache.get("s" + number, number, 1000);
      CHECK(static_cast<char>(file->bytes()[999]) == 'a' + i);
      CHECK(bytes_in(folder / "near") <= 4500 + 100);
    }
  CHECK(std::filesystem::file_size(folder / "near" / "mine") == 100);  // not the cache's
  CHECK(cache.shards_read() > 12);
  CHECK(static_cast<char>(held->bytes()[0]) == 'a');  // removed, and lives while it is used
  // Four processes' worth of threads want the same shards at once.
  far.reads = 0;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      mio::shard_cache mine(far, {.folder = folder / "shared"});
      for (int i = 0; i < 12; ++i)
        wrong += static_cast<char>(mine.get("s" + std::to_string(i), std::to_string(i), 1000)->bytes()[5]) != 'a' + i;
    });
  for (std::thread& t : threads) t.join();
  CHECK((wrong == 0 && far.reads == 12));
  // Some remove what others are about to map.
  threads.clear();
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      mio::shard_cache mine(far, {.folder = folder / "tight", .most_bytes = 1, .mapped = 1});
      for (int i = 0; i < 300; ++i) {
        const int n = 2 * t + i % 2;
        try {
          wrong += static_cast<char>(mine.get("s" + std::to_string(n), std::to_string(n), 1000)->bytes()[5]) != 'a' + n;
        } catch (const heddle::error&) {
          ++wrong;
        }
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  // A file of another size in the folder is replaced.
  put(folder / "shared" / "s3.heddle-shard", "half");
  mio::shard_cache again(far, {.folder = folder / "shared"});
  CHECK(again.get("s3", "3", 1000)->bytes().size() == 1000);
  CHECK_THROWS_WITH(again.get("s4x", "4", 999), Contains("'4' has 1000 bytes; expected 999"));
  CHECK_THROWS_AS(again.get("gone", "gone", 10), heddle::io_error);
  CHECK_THROWS_AS(again.get("../x", "4", 1000), heddle::config_error);
  CHECK_THROWS_AS(mio::shard_cache(far, {.folder = folder / "x", .most_bytes = 0}), heddle::config_error);
}

namespace {
// Sample i has 4 tokens from 10 i on. Says which thread asked for which; a sample may fail.
struct slow_source {
  std::int64_t bad = -1;
  mutable std::mutex mutex{};
  mutable std::multiset<std::int64_t> by_caller{}, ahead{};
  std::thread::id caller = std::this_thread::get_id();
  std::int64_t context() const { return 4; }
  std::int64_t validation_samples() const { return 0; }
  template <class Id>
  void fill_train(mio::sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    const std::lock_guard lock(mutex);
    for (std::int64_t i = 0; i < block.count; ++i) {
      if (block.first + i == bad) throw heddle::io_error("sample " + std::to_string(bad) + " cannot be read");
      (std::this_thread::get_id() == caller ? by_caller : ahead).insert(block.first + i);
      for (std::size_t t = 0; t < 4; ++t) {
        const auto at = static_cast<std::size_t>(4 * i) + t;
        inputs[at] = static_cast<Id>(10 * (block.first + i) + static_cast<std::int64_t>(t));
        targets[at] = inputs[at] + 1;
      }
    }
  }
  template <class Id>
  void fill_validation(mio::sample_block, std::span<Id>, std::span<Id>) const {}
};

// A store whose requests take 50 ms; and samples of four tokens, of which each is a request.
struct late_samples {
  mio::folder_store store;
  mutable std::atomic<int> under_way{0}, most_under_way{0}, requests{0}, by_caller{0};
  std::thread::id caller = std::this_thread::get_id();
  explicit late_samples(const std::filesystem::path& folder, std::int64_t samples) : store(folder) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(5 * samples));
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<std::int32_t>(t);
    store.put("tokens", std::as_bytes(std::span(tokens)));
  }
  std::int64_t context() const { return 4; }
  std::int64_t validation_samples() const { return 0; }
  template <class Id>
  void fill_train(mio::sample_block block, std::span<Id> inputs, std::span<Id> targets) const {
    for (std::int64_t i = 0; i < block.count; ++i) {
      std::array<std::int32_t, 5> tokens{};
      const int now = ++under_way;
      for (int most = most_under_way; now > most && !most_under_way.compare_exchange_weak(most, now);) {
      }
      by_caller += std::this_thread::get_id() == caller;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      mio::stored_bytes(store).read("tokens", static_cast<std::uint64_t>(20 * (block.first + i)),
                                    std::as_writable_bytes(std::span(tokens)));
      ++requests;
      --under_way;
      for (std::size_t t = 0; t < 4; ++t) {
        inputs[static_cast<std::size_t>(4 * i) + t] = tokens[t];
        targets[static_cast<std::size_t>(4 * i) + t] = tokens[t + 1];
      }
    }
  }
  template <class Id>
  void fill_validation(mio::sample_block, std::span<Id>, std::span<Id>) const {}
};
}  // namespace
static_assert(heddle::train::sample_source<mio::prefetched_source<slow_source>>);

TEST_CASE("of a store with 50 ms a request a step waits for nothing but the first time", "[io][tokens][store]") {
  constexpr int steps = 5, batch = 4, depth = 2;
  const scratch_folder folder("late");
  const late_samples source(folder.path, batch * (steps + depth));
  {
    const mio::prefetched_source ahead(source, {.batch = batch, .depth = depth});
    std::vector<std::int32_t> in(4), out(4);
    for (int step = 0; step < steps; ++step) {
      for (int k = 0; k < batch; ++k) {
        const std::int64_t sample = batch * step + k;
        ahead.fill_train({sample, 1}, std::span(in), std::span(out));
        REQUIRE((in[0] == 5 * sample && out[3] == 5 * sample + 4));
      }
      // The step lasts until what is read ahead has come; the next one then asks the store for nothing.
      while (source.requests < batch * (step + 1 + depth)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  CHECK(source.by_caller == batch);
  CHECK(source.requests == batch * (steps + depth));
  CHECK(source.most_under_way > 1);
  CHECK(source.most_under_way <= 1 + 4);
}

TEST_CASE("what is read ahead hides all but the first step, and is never counted", "[io][tokens]") {
  const slow_source source;
  {
    const mio::prefetched_source ahead(source, {.batch = 12, .depth = 2});
    // Rank 1 of 2 in three microbatches; from step 5 on rank 0 of 3 in one, which is another rank and cut.
    std::vector<std::int32_t> in(16), out(16);
    for (std::int64_t step = 0; step < 10; ++step)
      for (std::int64_t m = 0; m < (step < 5 ? 3 : 1); ++m) {
        const mio::sample_block block =
            step < 5 ? mio::sample_block{12 * step + 6 + 2 * m, 2} : mio::sample_block{12 * step, 4};
        ahead.fill_train(block, std::span(in), std::span(out));
        for (std::int64_t i = 0; i < block.count; ++i)
          for (std::int64_t t = 0; t < 4; ++t) {
            REQUIRE(in[static_cast<std::size_t>(4 * i + t)] == 10 * (block.first + i) + t);
            REQUIRE(out[static_cast<std::size_t>(4 * i + t)] == 10 * (block.first + i) + t + 1);
          }
      }
  }
  // The caller itself read the first step of each cut, nothing else.
  CHECK(source.by_caller == std::multiset<std::int64_t>{6, 7, 8, 9, 10, 11, 60, 61, 62, 63});
  for (std::int64_t i = 18; i < 60; ++i) CHECK(source.ahead.count(i) == (i % 12 >= 6 ? 1 : 0));
  // An error arrives at the step whose sample it is, again if it is asked again.
  const slow_source broken{.bad = 26};
  const mio::prefetched_source ahead(broken, {.batch = 12, .depth = 3});
  std::vector<std::int32_t> in(48), out(48);
  ahead.fill_train({0, 12}, std::span(in), std::span(out));
  ahead.fill_train({12, 12}, std::span(in), std::span(out));
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH(ahead.fill_train({24, 12}, std::span(in), std::span(out)), Contains("sample 26 cannot be read"));
  ahead.fill_train({36, 12}, std::span(in), std::span(out));
  CHECK(in[0] == 360);
  CHECK_THROWS_AS(mio::prefetched_source(source, {.batch = 0}), heddle::config_error);
  CHECK_THROWS_AS(mio::prefetched_source(source, {.batch = 1, .readers = 0}), heddle::config_error);
}

}  // namespace mds_test
