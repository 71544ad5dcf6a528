// Blends, packings and orders of shards: against Megatron's numbers, by brute force, and for any number of ranks.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/tokens/best_fit.hpp>
#include <heddle/io/tokens/blend.hpp>
#include <heddle/io/tokens/gpt_order.hpp>
#include <heddle/io/tokens/megatron_index.hpp>
#include <heddle/io/tokens/provenance.hpp>
#include <heddle/io/tokens/shard_order.hpp>
#include <heddle/io/tokens/token_source.hpp>
#include <heddle/train/step_batches.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "scratch.hpp"

using Catch::Matchers::Contains;

namespace token_orders_test {
namespace {

namespace tio = heddle::io;

// Documents of given lengths; token t of document d is 1000 d + t.
struct numbered_store {
  std::vector<std::int64_t> lengths;
  std::int64_t documents() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t length(std::int64_t d) const { return lengths[static_cast<std::size_t>(d)]; }
  template <class Id>
  void copy(std::int64_t d, std::int64_t first, std::span<Id> to) const {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = static_cast<Id>(1000 * d + first + static_cast<std::int64_t>(i));
  }
  std::uint64_t fingerprint() const { return 77; }
};
using gpt_source = tio::token_source<numbered_store, tio::gpt_order>;
static_assert(heddle::train::sample_source<tio::blended_source<gpt_source>>);
static_assert(heddle::train::sample_source<tio::token_source<numbered_store, tio::shard_order>>);
static_assert(heddle::train::document_source<tio::packed_documents<numbered_store>>);

std::vector<std::int64_t> random_lengths(heddle::counter_random random, std::size_t n, std::int64_t most) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < n; ++i)
    lengths.push_back(1 + static_cast<std::int64_t>(random.integer(i) % static_cast<std::uint64_t>(most)));
  return lengths;
}

// Fewest bins, by trying all.
std::size_t fewest_bins(std::span<const std::int32_t> items, std::vector<std::int32_t>& rooms, std::int32_t capacity,
                        std::size_t best) {
  if (rooms.size() >= best) return best;
  if (items.empty()) return rooms.size();
  for (std::size_t b = 0; b < rooms.size(); ++b) {
    if (rooms[b] < items[0]) continue;
    rooms[b] -= items[0];
    best = std::min(best, fewest_bins(items.subspan(1), rooms, capacity, best));
    rooms[b] += items[0];
  }
  rooms.push_back(capacity - items[0]);
  best = std::min(best, fewest_bins(items.subspan(1), rooms, capacity, best));
  rooms.pop_back();
  return best;
}
std::size_t bins_of(const std::vector<std::int32_t>& items, std::int32_t capacity) {
  const std::vector<std::int32_t> bins = tio::best_fit_bins(items, capacity);
  std::map<std::int32_t, std::int64_t> full;
  for (std::size_t i = 0; i < items.size(); ++i) full[bins[i]] += items[i];
  for (const auto& [bin, tokens] : full) REQUIRE((bin >= 0 && tokens <= capacity));
  REQUIRE((full.empty() || full.rbegin()->first + 1 == static_cast<std::int32_t>(full.size())));
  return full.size();
}

TEST_CASE("corpora are blended in Megatron's order, bit for bit", "[io][tokens][golden]") {
  std::ifstream golden(HEDDLE_SOURCE_DIR "/tests/golden/blend_golden.txt");
  int lines = 0;
  for (std::string line; std::getline(golden, line); ++lines) {
    std::istringstream in(line);
    std::size_t n = 0;
    in >> n;
    std::vector<double> weights(n);
    for (double& w : weights) {
      std::string text;
      in >> text;
      w = std::strtod(text.c_str(), nullptr);
    }
    std::int64_t samples = 0;
    std::uint64_t expected = 0, value = 0;
    in >> samples >> expected;
    CAPTURE(lines, n, samples);
    const tio::blend order(weights, samples);
    std::vector<std::int64_t> taken(n);
    bool near = true;
    order.each(0, samples, [&](std::int64_t s, tio::blend::place p) {
      value = value * 1000003 + static_cast<std::uint64_t>(p.corpus) + 1;
      value = value * 1000003 + static_cast<std::uint64_t>(p.sample) + 1;
      near = near && p.sample == taken[static_cast<std::size_t>(p.corpus)]++;
      for (std::size_t d = 0; d < n && n <= 8; ++d)
        near = near && std::abs(static_cast<double>(taken[d]) - order.weights()[d] * static_cast<double>(s + 1)) < 1.5;
    });
    REQUIRE(value == expected);
    REQUIRE(near);
    for (std::size_t d = 0; d < n; ++d) REQUIRE(order.samples_of(d) == taken[d]);
  }
  CHECK(lines == 200);

  // Nothing of a corpus of weight 0, wherever it stands; the others as if it were not there.
  const tio::blend with(std::array{0., .5, 0., .3, .2, 0.}, 1000), without(std::array{.5, .3, .2}, 1000);
  constexpr std::array<std::int64_t, 3> at{1, 3, 4};
  with.each(0, 1000, [&](std::int64_t s, tio::blend::place p) {
    const tio::blend::place q = without(s);
    REQUIRE((p.corpus == at[static_cast<std::size_t>(q.corpus)] && p.sample == q.sample));
  });
  CHECK(tio::blend(std::array{0., 1.}, 8).samples_of(0) == 0);

  // As published; and any sample alone.
  const tio::blend three(std::array{.5, .3, .2}, 10000);
  const std::array expected{0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
  for (std::size_t s = 0; s < expected.size(); ++s) CHECK(three(static_cast<std::int64_t>(s)).corpus == expected[s]);
  three.each(4090, 20, [&](std::int64_t s, tio::blend::place p) { CHECK(three(s) == p); });
  const auto refused = [](std::vector<double> w, std::int64_t samples = 1) {
    return message_of<heddle::config_error>([&] { tio::blend(w, samples); });
  };
  CHECK_THAT(refused({1, -0.5}), Contains("weight 1 of a blend is -0.5; expected 0 or more"));
  CHECK_THAT(refused({0, 0, 0}), Contains("all 3 weights of a blend are 0"));
  CHECK_THAT(refused({std::nan("")}), Contains("weight 0"));
  CHECK_THAT(refused({1e308, 1e308}), Contains("the sum of the 2 weights of a blend is no finite number"));
  CHECK_THAT(refused({}), Contains("a blend of 0 corpora"));
  CHECK_THROWS_WITH(three(10000), Contains("samples 10000 to 10001 of a blend of 10000"));
}

TEST_CASE("a blend of sources gives the samples of each, again and again", "[io][tokens]") {
  const numbered_store first{{9, 12}}, second{{30}};
  const auto source_of = [](const numbered_store& store, std::int64_t samples) {
    return gpt_source(store, tio::gpt_order(store, {.context = 4, .samples = samples}), 3000,
                      tio::gpt_order(store, {.context = 4, .samples = 2}));
  };
  const gpt_source a = source_of(first, 5), b = source_of(second, 7);
  const tio::blended_source<gpt_source> both({&a, &b}, tio::blend(std::array{1., 2.}, 60));
  CHECK((both.context() == 4 && both.validation_samples() == 4));
  std::vector<std::int32_t> in(240), out(240), one(4), other(4);
  both.fill_train({0, 60}, std::span(in), std::span(out));
  for (std::int64_t s = 0; s < 60; ++s) {
    const auto [corpus, sample] = both.order()(s);
    const gpt_source& from = corpus == 0 ? a : b;
    from.fill_train({sample % from.order().samples(), 1}, std::span(one), std::span(other));
    const auto row = in.begin() + 4 * s;
    REQUIRE(std::equal(one.begin(), one.end(), row));
    both.fill_train({s, 1}, std::span(one), std::span(other));
    REQUIRE(std::equal(one.begin(), one.end(), row));
    REQUIRE(std::equal(other.begin(), other.end(), out.begin() + 4 * s));
  }
  both.fill_validation({0, 4}, std::span(in), std::span(out));
  a.fill_validation({1, 1}, std::span(one), std::span(other));
  CHECK(std::equal(one.begin(), one.end(), in.begin() + 4));
  b.fill_validation({0, 1}, std::span(one), std::span(other));
  CHECK(std::equal(one.begin(), one.end(), in.begin() + 8));
  CHECK_THROWS_AS(both.fill_validation({3, 2}, std::span(in), std::span(out)), heddle::config_error);
  CHECK_THROWS_AS(tio::blended_source<gpt_source>({&a}, tio::blend(std::array{1., 2.}, 60)), heddle::config_error);
}

TEST_CASE("documents are packed by best fit: none is lost, and few bins are needed", "[io][tokens][law]") {
  CHECK(bins_of({8, 6, 7, 5, 2, 3}, 8) == 4);  // as published
  CHECK(bins_of({}, 8) == 0);
  const auto seed = std::uint64_t{45};
  CAPTURE(seed);
  // Small ones, against the fewest bins.
  int optimal = 0;
  constexpr int cases = 1000;
  for (std::uint64_t c = 0; c < cases; ++c) {
    const heddle::counter_random random(seed, c);
    std::vector<std::int32_t> items;
    for (std::uint64_t i = 0; i < 1 + random.integer(100) % 10; ++i)
      items.push_back(1 + static_cast<std::int32_t>(random.integer(i) % 64));
    std::vector<std::int32_t> rooms;
    const std::size_t fewest = fewest_bins(items, rooms, 64, items.size() + 1), here = bins_of(items, 64);
    REQUIRE(here >= fewest);
    optimal += here == fewest;
  }
  CHECK(optimal >= cases * 99 / 100);
  // Bins that can be filled wholly, cut at random.
  for (std::uint64_t c = 0; c < 20; ++c) {
    const heddle::counter_random random(seed, 1000000 + c);
    constexpr std::int32_t room = 5000;
    std::vector<std::int32_t> items;
    std::uint64_t drawn = 0;
    for (int b = 0; b < 300; ++b)
      for (std::int32_t left = room; left > 0;) {
        const auto n = std::min(left, 1 + static_cast<std::int32_t>(random.integer(drawn++) % 2500));
        items.push_back(n);
        left -= n;
      }
    CHECK(static_cast<double>(bins_of(items, room)) <= 11.0 / 9 * 300 + 1);
  }
  // Best fit by the definition gives as many.
  const heddle::counter_random random(seed, 2);
  std::vector<std::int32_t> items;
  for (std::uint64_t i = 0; i < 2000; ++i) items.push_back(1 + static_cast<std::int32_t>(random.integer(i) % 700));
  std::vector<std::int32_t> sorted = items, rooms;
  std::sort(sorted.rbegin(), sorted.rend());
  for (const std::int32_t n : sorted) {
    auto best = rooms.end();
    for (auto r = rooms.begin(); r != rooms.end(); ++r)
      if (*r >= n && (best == rooms.end() || *r < *best)) best = r;
    if (best == rooms.end()) best = rooms.insert(rooms.end(), 1000);
    *best -= n;
  }
  CHECK(bins_of(items, 1000) == rooms.size());
  CHECK_THROWS_WITH(tio::best_fit_bins(std::array{3, 0}, 4), Contains("item 1 is of 0; expected 1 to 4"));
  CHECK_THROWS_WITH(tio::best_fit_bins(std::array{5}, 4), Contains("item 0 is of 5; expected 1 to 4"));
  CHECK_THROWS_AS(tio::best_fit_bins({}, 0), heddle::config_error);
}

TEST_CASE("packs have every token once, and what is behind it as its target", "[io][tokens][law]") {
  const numbered_store store{{14, 7, 0, 5, 2, 3, 21, 1, 6, 6}};
  const tio::packed_documents packed(store, {.context = 8, .seed = 5, .held_out = 2}, 10000);
  const tio::packing& order = packed.order();
  CHECK((packed.validation_samples() == 2 && order.packs() == 7));
  std::set<std::pair<std::int64_t, std::int64_t>> seen;  // inputs by document and place
  const auto look = [&](tio::packing::range pack) {
    std::int64_t tokens = 0;
    for (std::int64_t i = pack.first; i < pack.first + pack.count; ++i) {
      const auto n = static_cast<std::size_t>(packed.length(i));
      std::vector<std::int32_t> in(n), out(n);
      packed.fill(i, 0, std::span(in), std::span(out));
      tokens += packed.length(i);
      for (std::size_t t = 0; t < n; ++t) {
        const std::int64_t d = in[t] / 1000, at = in[t] % 1000;
        REQUIRE(seen.insert({d, at}).second);
        REQUIRE(out[t] == (at + 1 < store.length(d) ? in[t] + 1 : -100));
      }
      if (n > 2) {
        std::vector<std::int32_t> part(2), target(2);
        packed.fill(i, 1, std::span(part), std::span(target));
        REQUIRE((part[0] == in[1] && part[1] == in[2] && target[0] == in[2] && target[1] == out[2]));
      }
    }
    REQUIRE(tokens <= 8);
  };
  std::set<std::int64_t> epoch;
  for (std::int64_t i = 0; i < order.packs(); ++i) {
    epoch.insert(order.train_pack(i));
    look(packed.train_pack(i));
  }
  CHECK(static_cast<std::int64_t>(epoch.size()) == order.packs());
  CHECK(seen.size() == 53);
  for (std::int64_t i = 0; i < 2; ++i) look(packed.validation_pack(i));
  CHECK(seen.size() == 65);
  CHECK(order.filled() == 65.0 / 72);
  CHECK(to_string(order) == "packing seed 5, context 8, documents 0 to 10, held out 2");
  const auto refused = [&](tio::best_fit_options o) {
    return message_of<heddle::error>([&] { tio::packing(store, o); });
  };
  CHECK_THAT(refused({.context = 0}), Contains("the context is 1 token or more"));
  CHECK_THAT(refused({.first = 3, .end = 3}), Contains("documents 3 to 3 of 10"));
  CHECK_THAT(refused({.held_out = 10}), Contains("10 documents of 10 held out"));
  CHECK_THAT(refused({.first = 2, .end = 3}), Contains("have no tokens"));
  std::vector<std::int32_t> room(8), targets(8);
  CHECK_THROWS_AS(packed.fill(0, 1, std::span(room), std::span(targets)), heddle::config_error);
  const tio::packed_documents narrow(store, {.context = 8}, 6000);
  CHECK_THROWS_WITH(
      [&] {
        for (std::int64_t i = 0; i < narrow.documents(); ++i)
          narrow.fill(i, 0, std::span(room).first(static_cast<std::size_t>(narrow.length(i))),
                      std::span(targets).first(static_cast<std::size_t>(narrow.length(i))));
      }(),
      Contains("of document 6 is 60") && Contains("; the model's vocabulary has 6000"));
}

TEST_CASE("streams of shards give every sample once an epoch, and a rank whole streams", "[io][tokens][law]") {
  const auto seed = std::uint64_t{45};
  CAPTURE(seed);
  const numbered_store store{random_lengths(heddle::counter_random(seed, 3), 61, 200)};
  std::vector<std::int64_t> shards;  // of five documents
  for (std::int64_t d = 0; d < 61; d += 5) shards.push_back(d);
  const tio::shard_order order(store, {.context = 7, .batch = 24, .streams = 12, .window = 9, .seed = seed}, shards);
  REQUIRE(order.shards() == 13);
  std::int64_t all = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto from = store.lengths.begin() + shards[s],
               to = s + 1 < shards.size() ? store.lengths.begin() + shards[s + 1] : store.lengths.end();
    all += (std::accumulate(from, to, std::int64_t{0}) - 1) / 7;
  }
  const std::int64_t of_epoch = order.samples_of_epoch();
  CHECK((of_epoch <= all && of_epoch > all - 12));
  // Streams begin their epochs together, at a sample of each.
  std::vector<std::set<std::pair<std::int64_t, std::int64_t>>> epochs(2);
  const std::int64_t of_stream = of_epoch / 12;
  for (std::int64_t position = 0; position < 2 * of_stream; ++position)
    for (std::int64_t stream = 0; stream < 12; ++stream) {
      const auto at = order(position / 2 * 24 + stream * 2 + position % 2);
      REQUIRE(epochs[static_cast<std::size_t>(position / of_stream)].insert({at.shard, at.sample}).second);
    }
  CHECK((std::ssize(epochs[0]) == of_epoch && std::ssize(epochs[1]) == of_epoch));
  // A sample is 8 tokens of its shard behind each other, at a multiple of 7.
  for (std::int64_t k = 0; k < 200; ++k) {
    const auto at = order(k);
    std::int64_t token = 7 * at.sample;
    for (std::int64_t d = 0; d < shards[static_cast<std::size_t>(at.shard)]; ++d) token += store.length(d);
    std::int64_t count = 0;
    order.each_piece(k, [&](std::int64_t d, std::int64_t first, std::int64_t n) {
      std::int64_t begin = 0;
      for (std::int64_t i = 0; i < d; ++i) begin += store.length(i);
      REQUIRE((n > 0 && first + n <= store.length(d) && begin + first == token + count));
      count += n;
    });
    REQUIRE(count == 8);
  }
  // In an epoch, one of 4 ranks reads about a quarter of the shards, not all of them.
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    std::set<std::int64_t> read;
    for (std::int64_t step = 0; step < of_stream / 2; ++step)
      for (std::int64_t k = 0; k < 6; ++k) read.insert(order(24 * step + 6 * rank + k).shard);
    CHECK(read.size() <= 8);
  }
  CHECK_THROWS_WITH(tio::shard_order(store, {.context = 7, .batch = 25, .streams = 12}),
                    Contains("a batch of 25 samples does not divide over 12 streams"));
  CHECK_THROWS_AS(tio::shard_order(store, {.context = 0}), heddle::config_error);
  CHECK_THROWS_AS(tio::shard_order(numbered_store{{5, 6}}, {.context = 7}), heddle::io_error);
  CHECK_THROWS_AS(tio::shard_order(store, {}, std::array<std::int64_t, 2>{0, 62}), heddle::config_error);
}

// Ids and digests of the global batch of a step as so many ranks read it, each its block.
std::pair<std::multiset<std::int64_t>, std::uint64_t> batch_of(const auto& order, std::int64_t consumed,
                                                               std::int64_t batch, std::int64_t ranks) {
  std::pair<std::multiset<std::int64_t>, std::uint64_t> all;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const tio::sample_block block = tio::part_of({consumed, batch}, r, ranks);
    for (std::int64_t i = 0; i < block.count; ++i)
      order.each_piece(block.first + i, [&](auto... numbers) { all.first.insert({std::int64_t{numbers}...}); });
    all.second += tio::digest_of(order, 77, block);
  }
  return all;
}
void holds_for_ranks(const auto& order) {
  constexpr std::int64_t batch = 24, steps = 21;
  std::vector<decltype(batch_of(order, 0, batch, 1))> alone;
  std::set<std::uint64_t> digests;
  for (std::int64_t s = 0; s < steps; ++s) {
    alone.push_back(batch_of(order, s * batch, batch, 1));
    digests.insert(alone.back().second);
  }
  CHECK(digests.size() == steps);
  // With other ranks from each step on.
  constexpr std::array ranks{1, 2, 3, 4, 6, 8};
  for (std::int64_t changed = 0; changed < steps; ++changed)
    for (const int before : ranks) {
      const int after = ranks[static_cast<std::size_t>(changed + before) % ranks.size()];
      std::int64_t consumed = 0;
      for (std::int64_t s = 0; s < steps; ++s, consumed += batch)
        if (s == changed || s == changed - 1)
          REQUIRE(batch_of(order, consumed, batch, s < changed ? before : after) == alone[static_cast<std::size_t>(s)]);
    }
  // A sample left out, repeated, or taken from elsewhere changes the digest.
  const std::uint64_t whole = tio::digest_of(order, 77, {0, batch});
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::uint64_t one = tio::sample_digest(order, 77, i), other = tio::sample_digest(order, 77, batch + i);
    CHECK((one != 0 && one != other && whole - one + other != whole));
  }
  CHECK(tio::digest_of(order, 78, {0, batch}) != whole);
}

TEST_CASE("a global batch has the same samples and the same digest on any number of ranks, from any step on",
          "[io][tokens][law]") {
  const numbered_store store{random_lengths(heddle::counter_random(12, 0), 90, 200)};
  const tio::gpt_order gpt(store, {.context = 8, .samples = 24 * 22});
  holds_for_ranks(gpt);
  holds_for_ranks(tio::shard_order(store, {.context = 8, .batch = 24, .streams = 8, .window = 30}));
  holds_for_ranks(tio::packing(store, {.context = 150}));
  const gpt_source half(store, gpt, 100000);
  holds_for_ranks(tio::blended_source<gpt_source>({&half, &half}, tio::blend(std::array{.7, .3}, 24 * 22)));
}

TEST_CASE("a step is explained: file and bytes of every sample", "[io][tokens]") {
  const scratch_folder folder("orders");
  tio::megatron_writer writer(folder / "c", 70000);
  writer.add(std::vector<std::int32_t>{1, 2, 3, 4, 5});
  writer.add(std::vector<std::int32_t>{6, 7, 8, 9});
  writer.finish();
  const tio::megatron_corpus corpus(folder / "c");
  const tio::gpt_order order(corpus, {.context = 3, .samples = 2, .seed = 1});
  const std::string text = tio::explain(corpus, order, {0, 2});
  // What it names is what a sample has.
  const tio::token_source source(corpus, order, 70000);
  std::vector<std::int32_t> in(6), out(6), named;
  source.fill_train({0, 2}, std::span(in), std::span(out));
  const std::string bytes = get(folder / "c.bin");
  std::istringstream lines(text);
  int samples = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string sample, number, file, skip;
    std::size_t first = 0, end = 0;
    words >> sample >> number >> file >> skip >> first >> skip >> end;
    CHECK(file == (folder / "c.bin").string());
    if (number == "1:" && samples++ == 0) CHECK(named.size() == 4);
    for (; first < end; first += 4) named.push_back(static_cast<std::uint8_t>(bytes[first]));
  }
  REQUIRE(named.size() == 8);
  CHECK(samples > 0);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(std::equal(named.begin() + 4 * static_cast<int>(i), named.begin() + 4 * static_cast<int>(i) + 3,
                     in.begin() + 3 * static_cast<int>(i)));
    CHECK(named[4 * i + 3] == out[3 * i + 2]);
  }
}

}  // namespace
}  // namespace token_orders_test
