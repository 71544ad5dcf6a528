#include <heddle/infer/prefix_shared.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace inf = heddle::infer;
using tokens = std::vector<std::int32_t>;
using std::int64_t;

namespace {
constexpr inf::step_limits limits{.vocabulary = 3, .context = 20, .block_rows = 3, .blocks = 12, .max_rows = 8};
}

TEST_CASE("a beginning in the cache is shared, its last part copied", "[infer][cache]") {
  inf::shared_blocks cache(limits);
  inf::sequence_blocks a, b, c;
  const tokens text = {0, 1, 2, 0, 0, 1, 1};
  REQUIRE(cache.start(a, text, 0));
  CHECK(a.cached == 0);
  REQUIRE(cache.start(b, text, 1));  // nothing is computed yet
  CHECK(b.cached == 0);
  cache.computed(a, text);
  cache.computed(b, text);  // the same blocks: one of each pair is kept
  CHECK(b.blocks[0] == a.blocks[0]);
  CHECK(b.blocks[1] == a.blocks[1]);
  CHECK(b.blocks[2] != a.blocks[2]);
  CHECK(cache.holders(a.blocks[0]) == 2);
  CHECK(cache.counts().used == 4);
  REQUIRE(cache.start(c, tokens{0, 1, 2, 0, 0, 2, 2}, 2));
  CHECK(c.cached == 5);
  CHECK(c.copy == inf::block_copy{.from = a.blocks[1], .to = c.blocks[1]});
  cache.release(a);
  cache.release(b);
  CHECK(cache.holders(c.copy.from) == 1);  // until the copy was made
  cache.copied(c);
  CHECK(cache.counts().kept == 1);
  cache.release(c);
  CHECK(cache.counts() == inf::cache_counts{.blocks = 12, .used = 0, .kept = 2, .looked_up = 21, .found = 5});
}

TEST_CASE("at least one token is left to compute", "[infer][cache]") {
  inf::shared_blocks cache(limits);
  inf::sequence_blocks a, b;
  const tokens text = {1, 1, 1, 2, 2, 2};
  REQUIRE(cache.start(a, text, 0));
  cache.computed(a, text);
  cache.release(a);
  REQUIRE(cache.start(b, text, 0));
  CHECK(b.cached == 5);
  CHECK(b.copy.from != b.copy.to);
}

TEST_CASE("the block that was released first, and those behind others, go first", "[infer][cache]") {
  inf::shared_blocks cache(limits);
  inf::sequence_blocks s;
  const auto used_once = [&](const tokens& text) {
    REQUIRE(cache.start(s, text, 0));
    const int64_t found = s.cached;
    cache.copied(s);
    cache.computed(s, text);
    cache.release(s);
    return found;
  };
  used_once({0, 0, 0, 0, 0, 1, 0});
  used_once({1, 0, 0, 0, 0, 1, 0});
  used_once({2, 0, 0, 0, 0, 1, 0, 2, 1});
  CHECK(cache.counts().kept == 7);
  used_once({0, 0, 0, 0, 0, 1, 0});                                   // again: now the second is the oldest
  used_once({2, 1, 0, 0, 2, 1, 0, 2, 1, 0, 1, 1, 1, 1, 1, 2, 2, 0});  // six blocks, of which five were free
  CHECK(used_once({1, 0, 0, 0, 0, 1, 0}) == 3);                       // its second block went, its first did not
}

TEST_CASE("a cache that a sequence fills alone gives up what it keeps, also what the sequence would copy",
          "[infer][cache]") {
  inf::shared_blocks cache({.vocabulary = 3, .context = 12, .block_rows = 3, .blocks = 4, .max_rows = 8});
  inf::sequence_blocks s;
  tokens text = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
  REQUIRE(cache.start(s, text, 0));
  cache.computed(s, text);
  cache.release(s);
  REQUIRE(cache.start(s, text, 0));
  CHECK(s.cached == 9);  // the copy would need a fifth block
  CHECK(s.copy.from == -1);
  CHECK(s.blocks.size() == 4);
}

TEST_CASE("a cache that forgets is found by none, and lists nothing of what began before", "[infer][cache]") {
  inf::shared_blocks cache(limits);
  inf::sequence_blocks a, b, c, d;
  const tokens text = {0, 1, 2, 0, 0, 1, 1, 2, 2, 1};
  REQUIRE(cache.start(a, text, 0));
  cache.computed(a, tokens(text.begin(), text.begin() + 4));
  REQUIRE(cache.start(b, text, 1));
  CHECK(b.cached == 3);
  REQUIRE(cache.start(c, tokens{0, 1, 1, 2}, 2));
  CHECK(c.copy.from == a.blocks[0]);
  cache.forget();
  CHECK(cache.counts().kept == 0);
  cache.copied(c);
  cache.computed(a, text);  // its first block is of other weights
  cache.computed(b, text);
  REQUIRE(cache.start(d, tokens{0, 1, 2, 0}, 0));
  CHECK(d.cached == 0);
  cache.computed(d, tokens{0, 1, 2, 0});
  cache.release(a);
  cache.release(b);
  cache.release(c);
  CHECK(cache.counts().used == 2);
  cache.release(d);
  CHECK(cache.counts().kept == 1);
  REQUIRE(cache.start(a, text, 0));
  CHECK(a.cached == 3);
  cache.forget();
  cache.forget();
  cache.release(a);
  CHECK(cache.counts() == inf::cache_counts{.blocks = 12, .looked_up = 38, .found = 8});
}

TEST_CASE("random sequences share what was computed, and every block comes back", "[infer][cache][law]") {
  const unsigned seed = 99;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto between = [&](int64_t a, int64_t b) { return std::uniform_int_distribution<int64_t>(a, b)(random); };
  inf::shared_blocks cache(limits);
  struct live {
    inf::sequence_blocks blocks;
    tokens text;
    int64_t computed = 0;
  };
  std::vector<live> all;
  std::map<std::int32_t, tokens> content;  // rows that were written to each block
  int64_t shared = 0;
  const auto write = [&](live& l, int64_t to) {
    if (l.blocks.copy.from >= 0) {
      content[l.blocks.copy.to] = content[l.blocks.copy.from];
      cache.copied(l.blocks);
    }
    for (; l.computed < to; ++l.computed) {
      const std::int32_t block = l.blocks.blocks[static_cast<std::size_t>(l.computed / limits.block_rows)];
      CHECK(cache.holders(block) == 1);  // nobody else sees what is written
      tokens& rows = content[block];
      rows.resize(static_cast<std::size_t>(limits.block_rows), -1);
      rows[static_cast<std::size_t>(l.computed % limits.block_rows)] = l.text[static_cast<std::size_t>(l.computed)];
    }
    cache.computed(l.blocks, std::span<const std::int32_t>(l.text).first(static_cast<std::size_t>(l.computed)));
  };
  for (int i = 0; i < 5000; ++i) {
    if (between(0, 2) > 0 && all.size() < 5) {
      live l;
      for (int64_t n = between(1, 9); n > 0; --n) l.text.push_back(static_cast<std::int32_t>(between(0, 9) / 5));
      if (cache.start(l.blocks, l.text, std::ssize(all))) {
        l.computed = l.blocks.cached;
        shared += l.blocks.cached;
        CHECK(l.blocks.cached < std::ssize(l.text));
        all.push_back(l);
      }
    } else if (!all.empty()) {
      const auto at = all.begin() + between(0, std::ssize(all) - 1);
      switch (between(0, 3)) {
        case 0:
          cache.release(at->blocks);
          all.erase(at);
          break;
        case 1:
          at->text.push_back(static_cast<std::int32_t>(between(0, 1)));
          if (std::ssize(at->text) > limits.context || !cache.grow(at->blocks, std::ssize(at->text)))
            at->text.pop_back();
          break;
        default:
          write(*at, between(at->computed, std::ssize(at->text)));
          break;
      }
    }
    std::map<std::int32_t, int64_t> holders;
    for (const live& l : all) {
      for (const std::int32_t b : l.blocks.blocks) ++holders[b];
      if (l.blocks.copy.from >= 0) ++holders[l.blocks.copy.from];
      if (l.blocks.copy.from >= 0) continue;
      for (int64_t t = 0; t < l.computed; ++t)
        CHECK(content[l.blocks.blocks[static_cast<std::size_t>(t / limits.block_rows)]]
                     [static_cast<std::size_t>(t % limits.block_rows)] == l.text[static_cast<std::size_t>(t)]);
    }
    for (std::int32_t b = 0; b < limits.blocks; ++b)
      REQUIRE(cache.holders(b) == (holders.contains(b) ? holders[b] : 0));
    CHECK(cache.counts().used == std::ssize(holders));
  }
  CHECK(shared > 500);
  for (live& l : all) cache.release(l.blocks);
  CHECK(cache.counts().used == 0);
}
