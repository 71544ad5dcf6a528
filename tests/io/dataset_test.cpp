// Sample order is a pure function of the global index; any mesh trains on the same samples.
#include "catch.hpp"

#include <heddle/io/dataset.hpp>
#include <heddle/train/further_targets.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace io = heddle::io;

namespace {
std::vector<std::uint8_t> counting(std::size_t n) {
  std::vector<std::uint8_t> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  return bytes;
}
}  // namespace

TEST_CASE("chunks partition the tokens with an overlap of one", "[io][dataset][law]") {
  for (std::size_t n = 2; n < 60; ++n)
    for (std::int64_t context = 1; context < static_cast<std::int64_t>(n) && context < 9; ++context) {
      const auto bytes = counting(n);
      const io::dataset data(bytes, {.context = context, .batch = 1, .validation = 0.0});
      std::int64_t chunks = 0;  // the slow, obvious way
      while ((chunks + 1) * context + 1 <= static_cast<std::int64_t>(n)) ++chunks;
      REQUIRE(data.chunks() == chunks);
      for (std::int64_t c = 0; c < chunks; ++c) {
        const auto chunk = data.chunk(c);
        REQUIRE(chunk.size() == static_cast<std::size_t>(context + 1));
        REQUIRE(chunk.data() == bytes.data() + c * context);
        if (c > 0) REQUIRE(data.chunk(c - 1).back() == chunk.front());
      }
    }
}

TEST_CASE("validation holds out the last chunks", "[io][dataset]") {
  const auto bytes = counting(1001);
  const auto held_out = [&](double part) {
    const io::dataset data(bytes, {.context = 10, .batch = 4, .validation = part});
    CHECK(data.train_samples() + data.validation_samples() == data.chunks());
    CHECK(data.chunks() == 100);
    for (std::int64_t k = 0; k < 250; ++k) CHECK(data.train_chunk(k) < data.train_samples());
    for (std::int64_t k = 0; k < data.validation_samples(); ++k)
      CHECK(data.validation_chunk(k) >= data.train_samples());
    return data.validation_samples();
  };
  CHECK(held_out(0.0) == 0);
  CHECK(held_out(0.05) == 5);
  CHECK(held_out(0.001) == 1);
  CHECK(held_out(0.999) == 99);
}

TEST_CASE("every epoch visits each chunk once, in its own order", "[io][dataset]") {
  const auto bytes = counting(1001);
  const io::dataset data(bytes, {.context = 10, .batch = 4, .validation = 0.07, .seed = 9});
  std::vector<std::vector<std::int64_t>> epochs;
  const std::int64_t n = data.train_samples();
  for (std::int64_t e = 0; e < 4; ++e) {
    std::vector<std::int64_t> order;
    for (std::int64_t k = 0; k < n; ++k) {
      order.push_back(data.train_chunk(e * n + k));
      CHECK(data.epoch(e * n + k) == e);
    }
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t k = 0; k < n; ++k) REQUIRE(sorted[static_cast<std::size_t>(k)] == k);
    for (const auto& other : epochs) CHECK(other != order);
    epochs.push_back(order);
  }
  const io::dataset plain(bytes, {.context = 10, .batch = 4, .validation = 0.07, .shuffle = false});
  CHECK(plain.train_chunk(n + 3) == 3);
}

TEST_CASE("any world size sees the same samples at every step", "[io][dataset][law]") {
  const auto bytes = counting(2000);
  for (const std::int64_t batch : {1, 5, 8, 12}) {
    const io::dataset data(bytes, {.context = 7, .batch = batch, .validation = 0.1, .seed = 3});
    for (std::int64_t step = 0; step <= 60; step += 3) {
      std::vector<std::int64_t> expected;
      for (std::int64_t k = step * batch; k < (step + 1) * batch; ++k) expected.push_back(k);
      for (int dp = 1; dp <= 8; ++dp)
        for (int microbatches = 1; microbatches <= 5; ++microbatches) {
          std::vector<std::int64_t> seen;  // in rank and microbatch order these are consecutive
          std::int64_t least = batch, most = 0;
          for (int r = 0; r < dp; ++r) {
            const auto mine = data.samples(data.at_step(step), r, dp);
            least = (std::min)(least, mine.count);
            most = (std::max)(most, mine.count);
            for (int m = 0; m < microbatches; ++m) {
              const auto block = data.samples(data.at_step(step), r, dp, m, microbatches);
              REQUIRE(block.count <= data.largest_microbatch(dp, microbatches));
              for (std::int64_t k = 0; k < block.count; ++k) seen.push_back(block.first + k);
            }
          }
          REQUIRE(seen == expected);
          REQUIRE(most - least <= 1);
        }
    }
  }
}

TEST_CASE("resuming with another number of ranks repeats and loses nothing", "[io][dataset][law]") {
  const auto bytes = counting(3000);
  const io::dataset data(bytes, {.context = 7, .batch = 12, .validation = 0.0, .seed = 8});
  const std::vector<int> worlds{1, 2, 3, 4, 6, 8, 5, 7};
  for (std::int64_t stop = 0; stop <= 20; ++stop) {
    std::map<std::int64_t, int> seen;
    io::data_position position;
    for (std::int64_t step = 0; step < 30; ++step) {
      const int dp = step < stop ? 4 : worlds[static_cast<std::size_t>(stop) % worlds.size()];
      for (int r = 0; r < dp; ++r) {
        const auto mine = data.samples(position, r, dp);
        for (std::int64_t k = 0; k < mine.count; ++k) ++seen[data.train_chunk(mine.first + k)];
      }
      position = data.after_step(position);
    }
    CHECK(position == data.at_step(30));
    CHECK(seen.size() == 360);
    bool once = true;
    for (const auto& [chunk, times] : seen) once = once && times == 1;
    CHECK(once);
  }
  // A position has nothing but the count, so it cannot depend on a mesh.
  STATIC_REQUIRE(sizeof(io::data_position) == sizeof(std::int64_t));
}

TEST_CASE("a block is written as inputs and, one later, targets", "[io][dataset]") {
  const auto bytes = counting(500);
  const io::dataset data(bytes, {.context = 6, .batch = 9, .validation = 0.2, .seed = 1});
  const auto block = data.samples({100}, 1, 2, 0, 2);
  REQUIRE(block.count == 2);
  std::vector<std::int32_t> inputs(12), targets(12);
  data.fill_train<std::int32_t>(block, inputs, targets);
  for (std::int64_t s = 0; s < 2; ++s)
    for (std::int64_t t = 0; t < 6; ++t) {
      const auto at = static_cast<std::size_t>(data.train_chunk(block.first + s) * 6 + t);
      CHECK(inputs[static_cast<std::size_t>(s * 6 + t)] == bytes[at]);
      CHECK(targets[static_cast<std::size_t>(s * 6 + t)] == bytes[at + 1]);
    }
  data.fill_validation<std::int32_t>({data.validation_samples() - 1, 1}, inputs, targets);
  CHECK(targets[5] == bytes[static_cast<std::size_t>(data.chunks() * 6)]);
  CHECK_THROWS_AS(data.fill_validation<std::int32_t>({data.validation_samples(), 1}, inputs, targets),
                  heddle::config_error);
  CHECK(message_of<heddle::config_error>([&] { data.fill_train<std::int32_t>({0, 3}, inputs, targets); }) ==
        "heddle: 3 samples of 6 tokens need 18 elements, got room for 12 inputs and 12 targets");
}

TEST_CASE("targets further on are those of the block's samples, in buffers of any size", "[io][dataset]") {
  const auto bytes = counting(500);
  const io::dataset data(bytes, {.context = 6, .batch = 9, .validation = 0.2, .seed = 1});
  std::vector<std::int32_t> inputs(16, -7), plain(16, -7);
  data.fill_train<std::int32_t>({3, 2}, inputs, plain);
  for (const std::int64_t ahead : {1, 3, 5}) {
    const heddle::train::further_targets<io::dataset> further{&data, ahead};
    std::vector<std::int32_t> targets(16, -7);
    further.fill_train<std::int32_t, std::int32_t>({3, 2}, inputs, targets);
    for (std::int64_t i = 0; i < 16; ++i) {
      const std::int32_t expected = i >= 12             ? -7
                                    : i % 6 + ahead < 6 ? plain[static_cast<std::size_t>(i + ahead)]
                                                        : -100;
      CHECK(targets[static_cast<std::size_t>(i)] == expected);
    }
  }
  for (const std::int64_t ahead : {-1, 0, 6}) {
    const heddle::train::further_targets<io::dataset> further{&data, ahead};
    CHECK(message_of<heddle::config_error>([&] {
            further.fill_validation<std::int32_t, std::int32_t>({0, 1}, inputs, plain);
          }) == "heddle: further_targets.ahead must be 1 to 5 (less than the context), got " + std::to_string(ahead));
  }
}

TEST_CASE("a dataset that cannot work says what it needs", "[io][dataset]") {
  const auto bytes = counting(20);
  const auto message = [&](io::dataset_options o) {
    return message_of<heddle::error>([&] { io::dataset data(bytes, o); });
  };
  CHECK(message({.context = 20}) ==
        "heddle: the data has 20 tokens; a context of 20 with a validation part needs at least 41");
  CHECK(message({.context = 20, .validation = 0.0}) ==
        "heddle: the data has 20 tokens; a context of 20 needs at least 21");
  CHECK(message({.context = 19, .validation = 0.0}).empty());
  CHECK(message({.context = 0}) == "heddle: the context must be at least 1 token, got 0");
  CHECK(message({.context = 4, .batch = 0}) == "heddle: the batch must be at least 1 sample, got 0");
  CHECK(message({.context = 4, .validation = 1.0}).find("must be in [0, 1)") != std::string::npos);
}

TEST_CASE("samples with targets of their own keep them", "[io][dataset]") {
  std::vector<std::int32_t> tokens, targets;
  for (std::int32_t i = 0; i < 15; ++i) {
    tokens.push_back(i);
    targets.push_back(i % 4 == 0 ? -100 : 100 + i);
  }
  const io::basic_dataset<std::int32_t> data(tokens, targets, {.context = 5, .batch = 2, .validation = 0.3});
  CHECK(data.chunks() == 3);
  CHECK(data.train_samples() == 2);
  std::vector<std::int32_t> in(10), to(10);
  data.fill_train({3, 2}, std::span(in), std::span(to));
  for (std::size_t i = 0; i < 10; ++i) {
    const auto at = static_cast<std::size_t>(data.train_chunk(3 + static_cast<std::int64_t>(i) / 5) * 5) + i % 5;
    CHECK(in[i] == tokens[at]);
    CHECK(to[i] == targets[at]);
  }
  data.fill_validation({0, 1}, std::span(in), std::span(to));
  for (std::size_t i = 0; i < 5; ++i) CHECK((in[i] == tokens[10 + i] && to[i] == targets[10 + i]));
  CHECK_THROWS_AS(io::basic_dataset<std::int32_t>(tokens, std::span(targets).first(14), {.context = 5}),
                  heddle::config_error);
  CHECK_THROWS_AS(io::basic_dataset<std::int32_t>(tokens, targets, {.context = 15}), heddle::io_error);
}
