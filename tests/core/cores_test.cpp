// How processor cores are shared out among ranks.
#include <heddle/core/cores.hpp>

#include <algorithm>
#include <set>
#include <vector>

#include "catch.hpp"

namespace hd = heddle;

namespace {

// Machines of `cores` cores with `ways` processors each: those of a core are `stride` apart, as the system numbers them.
struct machine {
  int cores, ways;
  bool adjacent;
  std::vector<int> cpus() const {
    std::vector<int> all;
    for (int c = 0; c < cores * ways; ++c) all.push_back(c);
    return all;
  }
  int core_of(int cpu) const { return adjacent ? cpu / ways : cpu % cores; }
  int first(int cpu) const { return adjacent ? cpu / ways * ways : cpu % cores; }
};

}  // namespace

TEST_CASE("shares of cores cover all, are balanced and cut no core while there are enough", "[core][cores][law]") {
  for (const int cores : {1, 2, 3, 5, 8})
    for (const int ways : {1, 2, 4})
      for (const bool adjacent : {false, true})
        for (int parts = 1; parts <= cores * ways + 3; ++parts) {
          CAPTURE(cores, ways, adjacent, parts);
          const machine m{cores, ways, adjacent};
          std::multiset<int> seen;
          std::vector<std::set<int>> users(static_cast<std::size_t>(cores));  // the parts that have some of a core
          std::size_t least = 1000, most = 0;
          const hd::detail::cpu_shares shares(m.cpus(), parts, [&](int cpu) { return m.first(cpu); });
          for (int p = 0; p < parts; ++p) {
            const auto share = shares.share(p);
            least = (std::min)(least, share.size());
            most = (std::max)(most, share.size());
            seen.insert(share.begin(), share.end());
            for (const int cpu : share) users[static_cast<std::size_t>(m.core_of(cpu))].insert(p);
          }
          REQUIRE(least >= 1);
          REQUIRE(shares.smallest() == static_cast<int>(least));
          if (parts <= cores * ways) {  // each processor in one share
            REQUIRE(seen.size() == m.cpus().size());
            REQUIRE(std::set<int>(seen.begin(), seen.end()).size() == seen.size());
          }
          if (parts <= cores) {
            for (const auto& u : users) REQUIRE(u.size() == 1);
            REQUIRE(most - least <= static_cast<std::size_t>(ways));
          } else if (parts <= cores * ways) {
            REQUIRE(most - least <= 1);
          } else {
            REQUIRE(most == 1);
          }
        }
}

TEST_CASE("two ranks on three cores of two processors each have two and four", "[core][cores]") {
  const hd::detail::cpu_shares shares({0, 1, 2, 3, 4, 5}, 2, [](int cpu) { return cpu % 3; });
  CHECK(shares.share(0) == std::vector<int>{0, 3});
  CHECK(shares.share(1) == std::vector<int>{1, 4, 2, 5});
  CHECK(shares.smallest() == 2);
}

#if defined(__linux__)
TEST_CASE("the cores of a thread are those it may run on, not those of the machine", "[core][cores]") {
  const auto before = hd::detail::allowed_cpus();
  REQUIRE(!before.empty());
  CHECK(static_cast<int>(before.size()) == hd::detail::available_cores());
  REQUIRE(hd::detail::bind_this_thread({before.back()}));
  CHECK(hd::detail::allowed_cpus() == std::vector<int>{before.back()});
  CHECK(hd::detail::available_cores() == 1);
  CHECK(hd::detail::cores_per_rank(1) == 1);
  CHECK_FALSE(hd::detail::bind_this_thread({}));  // the system refuses none at all
  REQUIRE(hd::detail::bind_this_thread(before));
  CHECK(hd::detail::allowed_cpus() == before);
  CHECK(hd::detail::cores_per_rank(static_cast<int>(before.size())) == 1);
  CHECK(hd::detail::cores_per_rank(100'000) == 1);
}
#endif
