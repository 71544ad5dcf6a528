// The lazy views give the same samples in the same order as io::dataset.
#include "catch.hpp"

#if __has_include(<range/v3/view/sliding.hpp>)

#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/io/range_v3.hpp>

#include <range/v3/algorithm/equal.hpp>
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/take.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace io = heddle::io;

namespace {
std::vector<std::uint8_t> some_bytes(std::size_t n) {
  std::vector<std::uint8_t> bytes(n);
  const heddle::counter_random random(11, 0);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(random.integer(i));
  return bytes;
}
}  // namespace

TEST_CASE("chunks as views are the chunks of the dataset", "[io][range-v3]") {
  for (const std::size_t n : {17u, 18u, 31u, 32u, 33u, 1000u}) {
    for (const std::int64_t context : {1, 3, 8, 15}) {
      CAPTURE(n, context);
      const auto bytes = some_bytes(n);
      const std::span<const std::uint8_t> tokens(bytes);
      const io::dataset data(tokens, {.context = context, .batch = 1, .validation = 0.0});
      const auto chunks = tokens | io::views::chunks(context);
      REQUIRE(ranges::distance(chunks) == data.chunks());
      std::int64_t i = 0;
      for (auto&& chunk : chunks) REQUIRE(ranges::equal(chunk, data.chunk(i++)));
    }
  }
}

TEST_CASE("batches as views are the batches of the dataset on every rank", "[io][range-v3]") {
  const auto bytes = some_bytes(997);
  const io::corpus text("bytes", bytes);
  const io::dataset_options options{.context = 8, .batch = 10, .validation = 0.1, .seed = 42};
  const io::dataset data(text.tokens(), options);
  const auto samples = text.tokens() | io::views::chunks(options.context) | io::views::training(options.validation) |
                       io::views::shuffled(options.seed);
  const auto held_out = text.tokens() | io::views::chunks(options.context) | io::views::validation(options.validation);
  REQUIRE(ranges::distance(held_out) == data.validation_samples());
  for (std::int64_t i = 0; i < data.validation_samples(); ++i)
    REQUIRE(ranges::equal(held_out[i], data.chunk(data.validation_chunk(i))));

  for (const std::int64_t start : {0, 3, 25})  // the third runs into a later epoch
    for (const int dp : {1, 2, 3, 4})
      for (const int microbatches : {1, 2, 3}) {
        CAPTURE(start, dp, microbatches);
        for (int rank = 0; rank < dp; ++rank) {
          auto steps = samples | io::views::from(data.at_step(start)) | io::views::batches(options.batch) |
                       io::views::share(rank, dp) | io::views::microbatches(microbatches);
          std::int64_t step = start;
          for (auto&& batch : steps | ranges::views::take(3)) {
            int microbatch = 0;
            for (auto&& part : batch) {
              const auto block = data.samples(data.at_step(step), rank, dp, microbatch++, microbatches);
              REQUIRE(ranges::distance(part) == block.count);
              std::int64_t k = block.first;
              for (auto&& chunk : part) REQUIRE(ranges::equal(chunk, data.chunk(data.train_chunk(k++))));
            }
            REQUIRE(microbatch == microbatches);
            ++step;
          }
        }
      }
}

TEST_CASE("inputs and targets are a chunk without its last and without its first token", "[io][range-v3]") {
  const std::vector<std::uint8_t> bytes{1, 2, 3, 4, 5, 6, 7};
  const std::span<const std::uint8_t> tokens(bytes);
  const auto chunk = (tokens | io::views::chunks(3))[1];
  CHECK(ranges::equal(io::views::inputs(chunk), std::vector<int>{4, 5, 6}));
  CHECK(ranges::equal(io::views::targets(chunk), std::vector<int>{5, 6, 7}));
}

TEST_CASE("the views compose with those of range-v3", "[io][range-v3]") {
  const auto bytes = some_bytes(400);
  const std::span<const std::uint8_t> tokens(bytes);
  // Only chunks that begin with an even byte, then shuffled: a user's own filter in the middle.
  const auto even = tokens | io::views::chunks(4) |
                    ranges::views::filter([](auto&& chunk) { return *ranges::begin(chunk) % 2 == 0; }) |
                    ranges::to_vector;
  int seen = 0;
  for (auto&& chunk : even | io::views::shuffled(1) | ranges::views::take(even.size())) {
    CHECK(*ranges::begin(chunk) % 2 == 0);
    ++seen;
  }
  CHECK(seen == static_cast<int>(even.size()));
}

TEST_CASE("the views refuse what cannot work", "[io][range-v3]") {
  const std::vector<int> none;
  CHECK_THROWS_AS(io::views::chunks(0), heddle::config_error);
  CHECK_THROWS_AS(io::views::batches(0), heddle::config_error);
  CHECK_THROWS_AS(io::views::share(2, 2), heddle::config_error);
  CHECK_THROWS_AS(none | io::views::shuffled(0), heddle::io_error);
}

#endif
