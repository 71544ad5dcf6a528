#include <heddle/layout/transfer.hpp>

#include "catch.hpp"
#include "layout/oracles/oneflow.hpp"

#include <cstdint>
#include <string>
#include <type_traits>

namespace hd = heddle;

namespace {
using line = hd::mesh<hd::axis<hd::tp>>;
template <class... Ps>
using on_line = hd::layout<line, Ps...>;
using S0 = on_line<hd::shard<0, hd::tp>>;
using S1 = on_line<hd::shard<1, hd::tp>>;
using B = on_line<>;
using P = on_line<hd::partial<hd::plus, hd::tp>>;

constexpr std::int64_t n = 840;  // every count up to 8 divides it

// What a transfer sends, in tensors.
template <class From, class To>
void check_row(oneflow::sbp from, oneflow::sbp to, std::string& wrong) {
  for (int p1 = 1; p1 <= 8; ++p1)
    for (int p2 = 1; p2 <= 8; ++p2) {
      const From f{line{p1}};
      const To t{line{p2}};
      const auto apart = hd::plan_transfer(f, hd::rank_range{0, p1}, t, hd::rank_range{p1, p2});
      const double sent =
          static_cast<double>(apart.bytes_sent_in_total(hd::shape{n, n}, 1)) / static_cast<double>(n * n);
      const double table = oneflow::disjoint_devices(from, to, p1, p2);
      if (sent > table + 1e-9 || sent < table - 1e-9)
        wrong += oneflow::text(from) + " -> " + oneflow::text(to) + " " + std::to_string(p1) + " to " +
                 std::to_string(p2) + " others: " + std::to_string(sent) + ", table " + std::to_string(table) + "\n";
    }
}
}  // namespace

TEST_CASE("between disjoint ranks every transfer sends what OneFlow's table says", "[layout][oneflow][law]") {
  std::string wrong;
  check_row<S0, S0>(oneflow::S(0), oneflow::S(0), wrong);
  check_row<S0, S1>(oneflow::S(0), oneflow::S(1), wrong);
  check_row<S0, B>(oneflow::S(0), oneflow::B, wrong);
  check_row<S0, P>(oneflow::S(0), oneflow::P, wrong);
  check_row<B, S0>(oneflow::B, oneflow::S(0), wrong);
  check_row<B, B>(oneflow::B, oneflow::B, wrong);
  check_row<B, P>(oneflow::B, oneflow::P, wrong);
  check_row<P, S0>(oneflow::P, oneflow::S(0), wrong);
  check_row<P, B>(oneflow::P, oneflow::B, wrong);
  check_row<P, P>(oneflow::P, oneflow::P, wrong);
  CHECK(wrong == "");
}

TEST_CASE("between ranks that overlap each receiver gets exactly what it does not hold", "[layout][oneflow][law]") {
  const auto check = [](const auto& from_of, const auto& to_of) {
    const hd::shape s{7, 5};
    for (int p1 = 1; p1 <= 8; ++p1)
      for (int p2 = 1; p2 <= 8; ++p2)
        for (int shift = 0; shift <= p1; ++shift) {
          CAPTURE(p1, p2, shift);
          const auto f = from_of(line{p1});
          const auto t = to_of(line{p2});
          const auto plan = hd::plan_transfer(f, hd::rank_range{0, p1}, t, hd::rank_range{shift, p2});
          std::int64_t missing = 0;  // element by element
          for (int target = 0; target < p2; ++target)
            for (std::int64_t i = 0; i < 7; ++i)
              for (std::int64_t j = 0; j < 5; ++j) {
                const int self = target + shift;
                const bool has = self < p1 && f.part(s, self).holds({i, j});
                missing += t.part(s, target).holds({i, j}) && !has;
              }
          CHECK(plan.bytes_sent_in_total(s, 1) == missing);
        }
  };
  const auto s0 = [](line m) { return S0{m}; };
  const auto s1 = [](line m) { return S1{m}; };
  const auto b = [](line m) { return B{m}; };
  check(s0, s0);
  check(s0, s1);
  check(s0, b);
  check(b, s0);
  check(b, b);
}
