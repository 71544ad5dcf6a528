// The dyadic tree: level by level in pairs equals splitting at a power of two; every node is an aligned block.
#include <heddle/core/dyadic.hpp>

#include "catch.hpp"

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace hd = heddle;

namespace {
using range = std::pair<std::int64_t, std::int64_t>;

// The definition: neighbours in pairs, an odd last element moves up unchanged. Returns every node.
std::set<range> by_levels(std::int64_t n) {
  std::set<range> nodes;
  std::vector<range> level;
  for (std::int64_t i = 0; i < n; ++i) level.emplace_back(i, i + 1);
  nodes.insert(level.begin(), level.end());
  while (level.size() > 1) {
    std::vector<range> up;
    for (std::size_t i = 0; i < level.size(); i += 2)
      up.push_back(i + 1 < level.size() ? range{level[i].first, level[i + 1].second} : level[i]);
    level = up;
    nodes.insert(level.begin(), level.end());
  }
  return nodes;
}

std::int64_t by_splits(std::int64_t begin, std::int64_t end, std::set<range>& nodes) {
  nodes.insert({begin, end});
  if (end - begin == 1) return 0;
  const std::int64_t middle = begin + hd::dyadic_split(end - begin);
  const std::int64_t left = by_splits(begin, middle, nodes), right = by_splits(middle, end, nodes);
  return 1 + (left > right ? left : right);
}
}  // namespace

TEST_CASE("the dyadic tree pairs neighbours level by level", "[core][dyadic]") {
  for (std::int64_t n = 1; n <= 69; ++n) {
    std::set<range> nodes;
    const std::int64_t depth = by_splits(0, n, nodes);
    INFO("n = " << n);
    CHECK(nodes == by_levels(n));
    CHECK(nodes.size() == static_cast<std::size_t>(2 * n - 1));
    CHECK(depth == hd::dyadic_depth(n));
  }
  STATIC_REQUIRE(hd::dyadic_depth(0) == 0);
  STATIC_REQUIRE(hd::dyadic_depth(1) == 0);
  STATIC_REQUIRE(hd::dyadic_depth(INT64_MAX) == 63);
  STATIC_REQUIRE(hd::dyadic_split(5) == 4);
}

TEST_CASE("a range is covered by its maximal nodes", "[core][dyadic]") {
  for (std::int64_t n = 1; n <= 40; ++n) {
    const std::set<range> tree = by_levels(n);
    bool nodes = true, maximal = true, few = true;
    for (std::int64_t begin = 0; begin < n; ++begin)
      for (std::int64_t end = begin + 1; end <= n; ++end) {
        std::int64_t count = 0;
        for (std::int64_t at = begin; at < end; ++count) {
          const std::int64_t to = hd::dyadic_node_end(at, end, n);
          nodes = nodes && tree.count({at, to}) == 1;
          for (const range& other : tree)  // no node within [begin, end) contains it
            maximal = maximal && !(other.first >= begin && other.second <= end && other.first <= at &&
                                   other.second >= to && other != range{at, to});
          at = to;
        }
        few = few && count <= (n == 1 ? 1 : 2 * hd::dyadic_depth(n));
      }
    INFO("n = " << n);
    CHECK(nodes);
    CHECK(maximal);
    CHECK(few);
  }
}
