// refuse: heddle: a law does not hold; the finding in this message says what, where, expected and got
#include <heddle/core/split.hpp>
#include <heddle/testing/split_laws.hpp>

struct forgets : heddle::split::balanced {
  static constexpr std::int64_t to_local(std::int64_t, std::int64_t, std::int64_t) noexcept { return 0; }
};
HEDDLE_STATIC_LAW(heddle::testing::split_policy<forgets>(4, 2));
