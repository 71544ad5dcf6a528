#include <heddle/layout/operations.hpp>
#include <heddle/testing/propagation_laws.hpp>

#include "catch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace ht = hd::testing;

namespace {
// Prefix sums along dimension 1, under a rule that says something about it.
template <hd::factor_kind Kind, unsigned char Partials = hd::no_partials, class Monoid = hd::plus>
struct prefixes {
  using kind = hd::operation_kind;
  using monoid = Monoid;
  static constexpr int least = 1, most = 1;
  template <std::size_t K>
  static constexpr auto rule(const std::array<int, K>&) {
    hd::factor_rule<> made;
    auto& x = made.operand(Partials == hd::no_partials ? 0 : 1, Partials);
    auto& y = made.result();
    x.letters[x.count++] = made.factor();
    x.letters[x.count++] = made.factor(Kind);
    y.letters[y.count++] = x.letters[0];
    y.letters[y.count++] = x.letters[1];
    return made;
  }
};
std::vector<ht::law_tensor> scanned(const ht::law_call& c) {
  ht::law_tensor out = c.operands[0].tensor;
  ht::for_each_index(out.extents, [&](const ht::law_index& at) {
    if (at[1] > 0) out(at) += out({at[0], at[1] - 1});
  });
  return {out};
}
bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("a rule that holds for its kernel passes", "[testing][law]") {
  const auto r = ht::propagation_law<prefixes<hd::factor_kind::whole, hd::sums>>(scanned, {.shapes = {{5, 4}}});
  INFO(r.what);
  CHECK(r.ok());
  CHECK(r.cases == 29);
  CHECK(r.combinations == 70);
  CHECK(ht::propagation_law<prefixes<hd::factor_kind::whole>>(scanned, {.shapes = {{0, 4}}}).ok());
}

TEST_CASE("a rule that promises too much is found, and where", "[testing][law]") {
  using hd::factor_kind;
  const ht::propagation_case c{.shapes = {{5, 4}}};
  const auto split = ht::propagation_law<prefixes<factor_kind::pass>>(scanned, c);
  CHECK(contains(split.what, "operand 0 replicated over x, dimension 1 split over y (x has 2 ranks, y 3)"));
  CHECK(contains(split.what, ": result 0 on rank 1: element 0: expected 11, got 4"));
  CHECK(contains(split.what, "prefixes<"));
  const auto monotone = ht::propagation_law<prefixes<factor_kind::whole, hd::extrema>>(scanned, c);
  CHECK(contains(monotone.what, "operand 0 replicated over x, partial over y"));
  CHECK(contains(monotone.what, "expected "));
  CHECK_FALSE(ht::propagation_law<prefixes<factor_kind::reduction>>(scanned, c).ok());
  CHECK_FALSE(ht::propagation_law<prefixes<factor_kind::combined>>(scanned, c).ok());
}

TEST_CASE("kernels that compute something else are found", "[testing][law]") {
  using rule = prefixes<hd::factor_kind::whole>;
  const ht::propagation_case c{.shapes = {{5, 4}}};
  const auto sizes = ht::propagation_law<rule>(
      [](const ht::law_call& call) {
        auto out = scanned(call);
        if (out[0].extents[0] < 5) out[0].extents = {out[0].extents[0], 3};
        return out;
      },
      c);
  CHECK(contains(sizes.what, "other extents than its layout says"));
  const auto none = ht::propagation_law<rule>(
      [](const ht::law_call& call) { return call.results.empty() ? scanned(call) : std::vector<ht::law_tensor>{}; }, c);
  CHECK(contains(none.what, "another number of results"));
  CHECK(contains(ht::propagation_law<rule>(scanned, {}).what, "give the shape of every operand"));
  const auto states =
      ht::propagation_law<prefixes<hd::factor_kind::reduction, hd::no_partials, hd::merge_softmax>>(scanned, c);
  CHECK(contains(states.what, "give `merge`"));
}
