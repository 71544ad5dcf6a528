// Blocks whose receivers do not know of them: all arrive once, in order, with few messages.
#include <heddle/collective/sparse_exchange.hpp>

#include <map>
#include <random>

#include "comm/support.hpp"

using namespace comm_test;

namespace {

struct planned {
  int from, to;
  std::int64_t count;
};

// Which blocks there are, the same on every rank.
std::vector<planned> random_blocks(int p, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<planned> blocks;
  for (int n = below(4 * p); n > 0; --n) {
    const int length = below(4);
    blocks.push_back({below(p), below(p), length == 0 ? 0 : length == 1 ? 1 + below(9) : below(300)});
  }
  return blocks;
}

template <class T>
std::vector<T> content(std::size_t block, std::int64_t count) {
  std::vector<T> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(value<T>(static_cast<int>(block), i));
  return x;
}

int log2_up(int p) {
  int k = 0;
  while ((1 << k) < p) ++k;
  return k;
}

template <class T>
void exchanges(int p, unsigned seed) {
  INFO("seed " << seed << ", p = " << p);
  notes found(p);
  const auto blocks = random_blocks(p, seed);
  launch(line{p}, options_ms(20'000), [&](auto& world) {
    auto& c = world.all();
    const int r = c.rank();
    std::vector<std::vector<T>> own;
    std::vector<hd::block_to<T>> out;
    std::vector<std::vector<T>> expected;
    std::vector<int> from;
    std::int64_t peers = 0;
    for (std::size_t b = 0; b < blocks.size(); ++b)
      if (blocks[b].from == r) {
        own.push_back(content<T>(b, blocks[b].count));
        peers += blocks[b].to != r && blocks[b].count > 0;
      }
    std::size_t next = 0;
    for (const planned& b : blocks)
      if (b.from == r) out.push_back({b.to, own[next++]});
    for (int s = 0; s < p; ++s)
      for (std::size_t b = 0; b < blocks.size(); ++b)
        if (blocks[b].from == s && blocks[b].to == r) {
          from.push_back(s);
          expected.push_back(content<T>(b, blocks[b].count));
        }
    for (int repetition = 0; repetition < 2; ++repetition) {
      const hd::comm_counters before = c.counters();
      const auto came = hd::sparse_exchange(c, out);
      found.expect(r, came.size() == expected.size(), "the number of blocks");
      std::size_t all = 0;
      for (std::size_t i = 0; i < came.size() && i < expected.size(); ++i) {
        found.expect(r, came.from(i) == from[i], "where a block comes from");
        found.expect(r, std::equal(came[i].begin(), came[i].end(), expected[i].begin(), expected[i].end()), "a block");
        all += came[i].size();
      }
      found.expect(r, came.elements.size() == all, "all elements");
      const std::int64_t sent = c.counters().messages_sent() - before.messages_sent();
      found.expect(r, sent >= peers + log2_up(p) && sent <= peers + 2 * log2_up(p), "messages");
    }
  });
  found.report();
}

}  // namespace

TEST_CASE("blocks nobody expects arrive, from any rank at any rank", "[comm][sparse]") {
  for (const int p : rank_counts(9))
    for (unsigned seed = 1; seed <= 6; ++seed) exchanges<int>(p, seed);
  for (const int p : rank_counts({3, 8})) exchanges<word>(p, 70);
}

TEST_CASE("blocks nobody expects arrive on 16 ranks, many times", "[comm][sparse][slow]") {
  for (const int p : rank_counts({13, 16}))
    for (unsigned seed = 1; seed <= 40; ++seed) exchanges<double>(p, 1000 + seed);
}

TEST_CASE("an exchange in which nobody sends, or one to one, takes log2 p rounds of notices", "[comm][sparse]") {
  for (const int p : rank_counts({1, 5, 8})) {
    notes found(p);
    launch(line{p}, options_ms(20'000), [&](auto& world) {
      auto& c = world.all();
      const int r = c.rank();
      std::vector<hd::block_to<float>> out;
      hd::comm_counters before = c.counters();
      found.expect(r, hd::sparse_exchange(c, out).size() == 0, "nothing comes of nothing");
      found.expect(r, c.counters().messages_sent() - before.messages_sent() == log2_up(p), "a count per round");
      found.expect(r, c.counters().bytes_sent() - before.bytes_sent() == 8 * log2_up(p), "of eight bytes");
      // The last rank to rank 0: one hop on the ring of ranks, one more message for the notice and one for the block.
      const std::vector<float> x(1000, 2.5f);
      if (r == p - 1) out.push_back({0, x});
      before = c.counters();
      const auto came = hd::sparse_exchange(c, out);
      found.expect(r, came.size() == (r == 0 ? 1u : 0u), "one block at rank 0");
      if (r == 0)
        found.expect(r, came.from(0) == p - 1 && came[0].size() == 1000 && came[0][999] == 2.5f, "it is whole");
      const int extra = r == p - 1 && p > 1 ? 2 : 0;
      found.expect(r, c.counters().messages_sent() - before.messages_sent() == log2_up(p) + extra, "two messages more");
    });
    found.report();
  }
}

TEST_CASE("a block for a rank that does not exist is refused before anything is sent", "[comm][sparse][threads]") {
  const ending end = run_to_the_end(3, options_ms(5'000), [](auto& world) {
    auto& c = world.all();
    const std::vector<int> x(3);
    const std::vector<hd::block_to<int>> out{{1, x}, {c.rank() == 1 ? 3 : 2, x}};
    hd::sparse_exchange(c, out);
  });
  CHECK(end.ranks[1] == "comm: heddle: sparse_exchange: rank 1 has a block for rank 3, which is not one of 3 ranks");
}
