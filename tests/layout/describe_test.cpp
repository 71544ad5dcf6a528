// tests/layout/describe_test.cpp: what describe says of a layout, compared with the layout itself.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/layout/describe.hpp>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

using namespace heddle;
using Catch::Matchers::Contains;

namespace {

using square = mesh<axis<dp, 2>, axis<tp, 2>>;
using cube = mesh<axis<dp, 2>, axis<pp, 3>, axis<tp, 2>>;

// Every element is in one block, and the ranks that hold the block are those that own the element.
template <class L, std::int64_t... E>
bool agrees(const L& layout, const shape<E...>& s) {
  const auto h = detail::holdings_of(layout, s);
  std::array<std::int64_t, sizeof...(E)> index{};
  for (std::int64_t n = 0; n < s.size(); ++n) {
    std::vector<std::size_t> block;
    std::int64_t rest = n;
    for (std::size_t d = sizeof...(E); d-- > 0; rest /= s[d]) index[d] = rest % s[d];
    for (std::size_t d = 0; d < sizeof...(E); ++d) {
      std::size_t in = 0;
      for (std::size_t b = 0; b < h.blocks[d].size(); ++b)
        if (h.blocks[d][b].begin <= index[d] && index[d] < h.blocks[d][b].end) {
          block.push_back(b);
          ++in;
        }
      if (in != 1) return false;
    }
    std::vector<int> owners;
    for (int r = 0; r < layout.mesh().size(); ++r)
      if (layout.owns(s, r, index)) owners.push_back(r);
    if (h.holders(block) != owners) return false;
  }
  for (int r = 0; r < layout.mesh().size(); ++r)
    for (std::size_t d = 0; d < sizeof...(E); ++d) {
      const auto& held = h.ranks[static_cast<std::size_t>(r)].dims[d];
      std::int64_t sum = 0;
      for (const auto& range : held.ranges) sum += range.end - range.begin;
      if (sum != held.size || held.stored != layout.local_shape(s, r)[d]) return false;
    }
  return true;
}

}  // namespace

TEST_CASE("describe draws the blocks and lists the parts", "[layout][describe]") {
  CHECK(describe(layout<square, shard<0, dp>, shard<1, tp>>{}, shape{9, 64}) ==
        "shard<0, dp>, shard<1, tp> on dp=2 x tp=2, tensor 9 x 64\n"
        "  dp=2 splits dimension 0\n"
        "  tp=2 splits dimension 1\n"
        "         0..31   32..63\n"
        "       +-------+--------+\n"
        "  0..4 | 0     | 1      |\n"
        "  5..8 | 2     | 3      |\n"
        "       +-------+--------+\n"
        "numbers are ranks\n"
        "  rank 0 (dp 0, tp 0): [0..4; 0..31], 5 x 32\n"
        "  rank 1 (dp 0, tp 1): [0..4; 32..63], 5 x 32\n"
        "  rank 2 (dp 1, tp 0): [5..8; 0..31], 4 x 32\n"
        "  rank 3 (dp 1, tp 1): [5..8; 32..63], 4 x 32\n");
  CHECK(describe(layout<square, shard<0, dp>, shard<1, tp>>{}, shape{2, 3, 1, 2}) ==
        "shard<0, dp>, shard<1, tp> on dp=2 x tp=2, tensor 2 x 3 x 1 x 2\n"
        "  dp=2 splits dimension 0\n"
        "  tp=2 splits dimension 1\n"
        "dimension 0: 0, dimension 1: 0..1\n"
        "      0..1\n"
        "    +------+\n"
        "  0 | 0    |\n"
        "    +------+\n"
        "dimension 0: 0, dimension 1: 2\n"
        "      0..1\n"
        "    +------+\n"
        "  0 | 1    |\n"
        "    +------+\n"
        "dimension 0: 1, dimension 1: 0..1\n"
        "      0..1\n"
        "    +------+\n"
        "  0 | 2    |\n"
        "    +------+\n"
        "dimension 0: 1, dimension 1: 2\n"
        "      0..1\n"
        "    +------+\n"
        "  0 | 3    |\n"
        "    +------+\n"
        "numbers are ranks\n"
        "  rank 0 (dp 0, tp 0): [0; 0..1; 0; 0..1], 1 x 2 x 1 x 2\n"
        "  rank 1 (dp 0, tp 1): [0; 2; 0; 0..1], 1 x 1 x 1 x 2\n"
        "  rank 2 (dp 1, tp 0): [1; 0..1; 0; 0..1], 1 x 2 x 1 x 2\n"
        "  rank 3 (dp 1, tp 1): [1; 2; 0; 0..1], 1 x 1 x 1 x 2\n");
  CHECK_THAT(describe(layout<square, shard<1, tp>>{}, shape{2, 0, 3, 4}), Contains("no elements"));
  CHECK(describe(layout<square, shard<0, dp, tp>>{}, shape{3}) ==
        "shard<0, dp, tp> on dp=2 x tp=2, tensor 3\n"
        "  dp=2 splits dimension 0\n"
        "  tp=2 splits each piece of dimension 0\n"
        "     0   1   2\n"
        "   +---+---+---+\n"
        "   | 0 | 1 | 2 |\n"
        "   +---+---+---+\n"
        "numbers are ranks\n"
        "  rank 0 (dp 0, tp 0): [0], 1\n"
        "  rank 1 (dp 0, tp 1): [1], 1\n"
        "  rank 2 (dp 1, tp 0): [2], 1\n"
        "  rank 3 (dp 1, tp 1): nothing, 0\n");
}

TEST_CASE("describe says how copies, contributions and unrelated values differ", "[layout][describe]") {
  const shape s{4};
  CHECK_THAT(describe(layout<square>{}, s), Contains("| 0,1,2,3 |") && Contains("; a,b: copies\n"));
  CHECK_THAT(describe(layout<square, identical<dp, tp>>{}, s), Contains("| 0=1=2=3 |"));
  CHECK_THAT(describe(layout<square, varying<dp, tp>>{}, s), Contains("| 0|1|2|3 |"));
  CHECK_THAT(describe(layout<square, partial<plus, dp, tp>>{}, s), Contains("| 0+1+2+3 |"));
  CHECK_THAT(describe(layout<square, partial<plus, dp>>{}, s), Contains("| (0,1)+(2,3) |"));
  CHECK_THAT(describe(layout<square, partial<plus, tp>>{}, s), Contains("| (0,2)+(1,3) |"));
  CHECK_THAT(describe(layout<square, partial<maximum, tp>, identical<dp>>{}, s), Contains("| (0=2) max (1=3) |"));
  CHECK_THAT(describe(layout<cube, partial<plus, dp>, varying<pp>>{}, s),
             Contains("| ((0,1)+(6,7))|((2,3)+(8,9))|((4,5)+(10,11)) |"));
  CHECK_THAT(describe(layout<mesh<axis<dp, 64>>>{}, s), Contains("| 0..63 |"));
  CHECK_THAT(describe(layout<mesh<axis<dp, 64>>, partial<plus, dp>>{}, s), Contains("| 0+1+..+63 |"));
}

TEST_CASE("parts that are empty, scattered or padded are described as they are", "[layout][describe]") {
  using line = mesh<axis<tp, 3>>;
  CHECK_THAT(describe(layout<line, shard<0, split::zigzag, tp>>{}, shape{13}),
             Contains("tp=3 splits dimension 0 (zigzag)") && Contains("| 0    | 1    | 2    | 1     | 0      |") &&
                 Contains("rank 0 (tp 0): [0..2,11..12], 5") && Contains("rank 2 (tp 2): [5..8], 4"));
  CHECK_THAT(describe(layout<line, shard<0, split::ceil, tp>>{}, shape{4}), Contains("rank 2 (tp 2): nothing, 0"));
  CHECK_THAT(describe(layout<line, shard<0, split::padded<split::ceil>, tp>>{}, shape{5}),
             Contains("rank 2 (tp 2): [4], 1, padded to 2"));
  CHECK_THAT(describe(layout<line, shard<0, split::ragged<1, 0, 4>, tp>>{}, shape{5}),
             Contains("rank 1 (tp 1): nothing, 0") && Contains("rank 2 (tp 2): [1..4], 4"));
  const std::string huge = describe(layout<line, shard<1, split::block_cyclic<1>, tp>>{}, shape{2, 1000000000000});
  CHECK_THAT(huge, Contains("rank 1 (tp 1): [0..1; 1,4,..], 2 x 333333333333"));
  CHECK(huge.size() < 1000);
  CHECK_THAT(describe(layout<line, shard<0, tp>>{}, shape{0, 3}), Contains("no elements"));
}

TEST_CASE("large tensors and meshes stay readable", "[layout][describe]") {
  const std::string text = describe(layout<mesh<axis<dp, 256>>, shard<0, dp>>{}, shape{100000, 4096, 7});
  CHECK_THAT(text,
             Contains("dimension 0: 0..390\n") && Contains("dimension 0: ..\n") && Contains("rank 255 (dp 255): "));
  CHECK(text.size() < 6000);
  CHECK(
      describe(layout<mesh<axis<dp, 16>, axis<tp, 16>>, shard<0, dp>, shard<1, tp>>{}, shape{1000, 1000, 9, 9}).size() <
      8000);
  std::size_t longest = 0, begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin))
    longest = (std::max)(longest, end - begin);
  CHECK(longest < 120);
}

TEST_CASE("the blocks of describe are the layout's, for every policy", "[layout][describe]") {
  const std::uint64_t seed = std::random_device{}();
  CAPTURE(seed);
  const counter_random random(seed, 0);
  bool ok = true;
  for (std::uint64_t i = 0; i < 24; ++i) {
    const auto n = static_cast<std::int64_t>(random.uniform(3 * i) * 40);
    const auto m = static_cast<std::int64_t>(random.uniform(3 * i + 1) * 20);
    const auto k = static_cast<std::int64_t>(random.uniform(3 * i + 2) * 6);
    CAPTURE(n, m, k);
    ok = ok && agrees(layout<cube, shard<0, tp, dp>, partial<plus, pp>>{}, shape{n});
    ok = ok && agrees(layout<cube, shard<0, split::zigzag, pp, split::balanced, tp>>{}, shape{n, k});
    ok = ok &&
         agrees(layout<cube, shard<1, split::block_cyclic<3>, pp, split::zigzag, tp>, identical<dp>>{}, shape{k, n});
    ok = ok &&
         agrees(layout<cube, shard<0, split::ceil, pp>, shard<2, split::padded<>, tp>, varying<dp>>{}, shape{k, m, k});
    ok = ok && agrees(layout<cube, shard<3, dp>, shard<1, split::zigzag, pp>, partial<plus, tp>>{}, shape{2, k, 3, k});
    CHECK(ok);
  }
}

namespace {
// The last element comes first in memory, and the ranks take turns.
struct from_the_end {
  using kind = split_kind;
  using i64 = std::int64_t;
  static constexpr bool contiguous = false;
  static constexpr bool fits(i64, i64) { return true; }
  static constexpr i64 size(i64 n, i64 p, i64 r) { return (n - r + p - 1) / p; }
  static constexpr i64 stored(i64 n, i64 p, i64 r) { return size(n, p, r); }
  static constexpr i64 owner(i64 n, i64 p, i64 g) { return (n - 1 - g) % p; }
  static constexpr i64 to_local(i64 n, i64 p, i64 g) { return (n - 1 - g) / p; }
  static constexpr i64 to_global(i64 n, i64 p, i64 r, i64 l) { return n - 1 - (l * p + r); }
  static constexpr i64 run(i64, i64, i64, i64) { return 1; }
};
}  // namespace

TEST_CASE("a policy whose memory is in another order is drawn where its elements are", "[layout][describe]") {
  using turns = layout<cube, shard<0, from_the_end, tp>>;
  CHECK(agrees(turns{}, shape{7}));
  CHECK(agrees(turns{}, shape{300}));
  // Where there are more ranges than anybody reads, the blocks are the first ones.
  for (const std::int64_t n : {1000, 100000}) {
    CAPTURE(n);
    const auto h = heddle::detail::holdings_of(turns{}, shape{n});
    bool right = h.blocks[0].size() > 200;
    for (std::size_t b = 0; b < h.blocks[0].size(); ++b) {
      std::vector<int> owners;
      for (int r = 0; r < cube::size(); ++r)
        if (turns{}.owns(shape{n}, r, {h.blocks[0][b].begin})) owners.push_back(r);
      right = right && h.holders({b}) == owners;
    }
    CHECK(right);
  }
}

TEST_CASE("without a shape, every rank of the picture holds something", "[layout][describe]") {
  const auto nobody_empty = [](const std::string& text) { return text.find("nothing") == std::string::npos; };
  CHECK(nobody_empty(describe(layout<cube, shard<0, dp, pp, tp>>{})));
  CHECK(nobody_empty(describe(layout<cube, shard<1, split::block_cyclic<64>, pp>, shard<0, split::zigzag, dp, tp>>{})));
  CHECK_THAT(describe(layout<cube, shard<0, split::ragged<5, 0, 7>, pp>>{}), Contains("tensor 12\n"));
  CHECK_THAT(describe(layout<cube>{}), Contains("replicated on dp=2 x pp=3 x tp=2, tensor 4\n"));
  CHECK_THAT(describe(layout<mesh<axis<dp>>, shard<2, dp>>{mesh<axis<dp>>{3}}), Contains("tensor 4 x 4 x 6\n"));
}

TEST_CASE("describe draws 1 to 4 dimensions, and those that the layout splits", "[layout][describe]") {
  const layout<square, shard<1, tp>> l;
  CHECK_THROWS_WITH(describe(l, shape{1, 2, 3, 4, 5}),
                    Contains("heddle: describe draws tensors of 1 to 4 dimensions, got 5"));
  CHECK_THROWS_WITH(describe(layout<square>{}, shape<>{}), Contains("1 to 4 dimensions, got 0"));
  CHECK_THROWS_WITH(describe(l, shape{5}),
                    Contains("got a tensor of 1 dimensions for a layout that splits dimension 1"));
  CHECK_THAT(describe(layout<square, shard<3, tp>>{}), Contains("tensor 4 x 4 x 4 x 4\n"));
  CHECK_THROWS_AS(describe(layout<square, shard<4, tp>>{}), layout_error);
}
