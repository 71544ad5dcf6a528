#include <heddle/layout/propagate.hpp>

#include "catch.hpp"

#include <array>
#include <concepts>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

namespace {
using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
using some = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using part = hd::mesh<hd::axis<dp>, hd::axis<pp, 2>, hd::axis<tp>>;

template <class M>
constexpr bool signatures() {
  using whole = hd::layout<M>;
  using input = hd::layout<M, hd::shard<0, dp>>;
  using column = hd::layout<M, hd::shard<1, tp>>;
  using row = hd::layout<M, hd::shard<0, tp>>;
  using sum = hd::layout<M, hd::partial<hd::plus, tp>>;
  using hidden = hd::propagate<"bi,io->bo", input, column>;
  using out = hd::propagate<"bi,io->bo", hidden, row>;
  return std::same_as<hidden, hd::layout<M, hd::shard<0, dp>, hd::shard<1, tp>>> &&
         std::same_as<out, hd::layout<M, hd::shard<0, dp>, hd::partial<hd::plus, tp>>> &&
         // OneFlow's signatures of a product: (S0,R), (R,S1), (S1,S0), (P,R), (R,P), (R,R)
         std::same_as<hd::propagate<"mk,kn->mn", row, whole>, row> &&
         std::same_as<hd::propagate<"mk,kn->mn", whole, column>, column> &&
         std::same_as<hd::propagate<"mk,kn->mn", column, row>, sum> &&
         std::same_as<hd::propagate<"mk,kn->mn", sum, whole>, sum> &&
         std::same_as<hd::propagate<"mk,kn->mn", whole, sum>, sum> &&
         std::same_as<hd::propagate<"mk,kn->mn", whole, whole>, whole> &&
         // batched product, gradient of a weight, outer product, several summed letters
         std::same_as<hd::propagate<"bmk,bkn->bmn", row, row>, row> &&
         std::same_as<hd::propagate<"bi,bo->io", row, row>, sum> &&
         std::same_as<hd::propagate<"i,j->ij", whole, row>, column> &&
         std::same_as<hd::propagate<"bsi,bso->io", hd::layout<M, hd::shard<0, dp>, hd::shard<1, tp>>,
                                    hd::layout<M, hd::shard<0, dp>, hd::shard<1, tp>>>,
                      hd::layout<M, hd::partial<hd::plus, dp, tp>>> &&
         // one operand: transposes, sums, nothing; three operands
         std::same_as<hd::propagate<"ij->ji", hd::layout<M, hd::shard<0, tp, dp>, hd::shard<1, pp>>>,
                      hd::layout<M, hd::shard<1, tp, dp>, hd::shard<0, pp>>> &&
         std::same_as<hd::propagate<"ij->j", hd::layout<M, hd::shard<0, tp>, hd::shard<1, dp>>>,
                      hd::layout<M, hd::shard<0, dp>, hd::partial<hd::plus, tp>>> &&
         std::same_as<hd::propagate<"ij->", row>, sum> && std::same_as<hd::propagate<"ij -> ij", sum>, sum> &&
         std::same_as<hd::propagate<"ij->ji", hd::layout<M, hd::partial<hd::maximum, tp>>>,
                      hd::layout<M, hd::partial<hd::maximum, tp>>> &&
         std::same_as<hd::propagate<"bi,io,o->bo", input, column, row>, hidden>;
}
}  // namespace

TEST_CASE("products and reductions know the layout of their result", "[layout][propagate][law]") {
  STATIC_REQUIRE(signatures<mesh>());
  STATIC_REQUIRE(signatures<some>());
  STATIC_REQUIRE(signatures<part>());
}

TEST_CASE("propagated layouts carry a dynamic mesh along", "[layout][propagate]") {
  const hd::layout<some, hd::shard<0, dp>> a{some{2, 1, 3}};
  const hd::layout<some, hd::shard<1, tp>> b{some{2, 1, 3}};
  const auto c = hd::propagated<"bi,io->bo">(a, b);
  CHECK(to_string(c) == "shard<0, dp>, shard<1, tp> on dp=2 x pp=1 x tp=3");
  CHECK_THROWS_AS(hd::propagated<"bi,io->bo">(a, hd::layout<some, hd::shard<1, tp>>{some{2, 1, 4}}), hd::layout_error);
}

TEST_CASE("shapes of an einsum must agree letter by letter", "[layout][propagate]") {
  STATIC_REQUIRE(hd::propagate_shape<"bi,io->bo">(hd::shape{8, 4}, hd::shape{4, 2}) == hd::shape{8, 2});
  STATIC_REQUIRE(hd::propagate_shape<"bi,io->bo">(hd::shape<8, 4>{}, hd::shape{4, 2}) == hd::shape{8, 2});
  STATIC_REQUIRE(hd::propagate_shape<"bhsd -> bshd">(hd::shape{1, 2, 3, 4}) == hd::shape{1, 3, 2, 4});
  STATIC_REQUIRE(hd::propagate_shape<"ij->">(hd::shape{3, 4}).rank() == 0);
  CHECK_THROWS_WITH(
      (hd::propagate_shape<"bi,io->bo">(hd::shape{8, 4}, hd::shape{5, 2})),
      "heddle: in \"bi,io->bo\" the letter i is 4 in dimension 1 of operand 0 and 5 in dimension 0 of operand 1");
}

// ---- every combination of placements on two axes, against brute force ----------------------------------------------------
namespace {
using table = hd::detail::axis_table<2>;
using hd::axis_role, hd::detail::axis_use;
constexpr std::array<int, 2> extents{2, 3};
constexpr int world = 6;

std::vector<table> all_tables(int dims) {
  std::vector<table> out;
  const int choices = dims + 2;  // replicated, partial, split along one of the dimensions
  const auto use_of = [&](int c) {
    axis_use u;
    if (c == 1) u = {axis_role::partial, -1, -1, 0, 0};
    if (c >= 2) u = {axis_role::sharded, c - 2, 0, -1, 0};
    return u;
  };
  for (int a = 0; a < choices; ++a)
    for (int b = 0; b < choices; ++b) {
      table t;
      t.use[0] = use_of(a);
      t.use[1] = use_of(b);
      if (a >= 2 && a == b) {
        t.use[1].level = 1;
        out.push_back(t);
        t.use[0].level = 1;
        t.use[1].level = 0;
      }
      out.push_back(t);
    }
  return out;
}

// A dense tensor under letters; missing letters of a map count as index 0.
struct tensor {
  std::string letters;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> values;
};
using assignment = std::map<char, std::int64_t>;
std::size_t flat(const tensor& t, const assignment& at) {
  std::int64_t i = 0;
  for (std::size_t d = 0; d < t.letters.size(); ++d) i = i * t.sizes[d] + at.at(t.letters[d]);
  return static_cast<std::size_t>(i);
}
template <class F>
void for_all(const assignment& sizes, F&& f) {
  assignment at;
  for (const auto& [letter, size] : sizes) {
    if (size == 0) return;
    at[letter] = 0;
  }
  for (;;) {
    f(at);
    auto it = sizes.begin();
    for (; it != sizes.end(); ++it) {
      if (++at[it->first] < it->second) break;
      at[it->first] = 0;
    }
    if (it == sizes.end()) return;
  }
}
std::vector<std::int64_t> sizes_of(const std::string& letters, const assignment& sizes) {
  std::vector<std::int64_t> out;
  for (const char c : letters) out.push_back(sizes.at(c));
  return out;
}
tensor product(const std::vector<tensor>& in, const std::string& out_letters, const assignment& sizes) {
  tensor out{out_letters, sizes_of(out_letters, sizes), {}};
  std::int64_t n = 1;
  for (const auto s : out.sizes) n *= s;
  out.values.assign(static_cast<std::size_t>(n), 0);
  for_all(sizes, [&](const assignment& at) {
    std::int64_t term = 1;
    for (const tensor& t : in) term *= t.values[flat(t, at)];
    out.values[flat(out, at)] += term;
  });
  return out;
}
struct range {
  std::int64_t begin, end;
};
std::map<char, range> box(const table& t, const std::string& letters, const assignment& sizes, int rank) {
  std::map<char, range> out;
  const auto cuts = hd::detail::cuts_of(t);
  std::array<std::int64_t, 3> full{1, 1, 1};
  for (std::size_t d = 0; d < letters.size(); ++d) full[d] = sizes.at(letters[d]);
  const auto b = hd::detail::local_box(cuts, hd::detail::numbers_of(extents), full, rank);
  for (std::size_t d = 0; d < letters.size(); ++d) out[letters[d]] = {b.offset[d], b.offset[d] + b.extent[d]};
  return out;
}

// Local compute on every rank, then the sum of what the ranks hold, must be the global product. False if parts do not match.
bool computes_the_product(const std::vector<std::string>& in_letters, const std::string& out_letters,
                          const assignment& sizes, const std::vector<table>& in, const table& out) {
  std::mt19937_64 random{7};
  // contributions[o][position along the partial axes] sum to the operand
  std::vector<std::vector<tensor>> contributions;
  std::vector<tensor> whole;
  for (std::size_t o = 0; o < in.size(); ++o) {
    int copies = 1;
    for (std::size_t a = 0; a < 2; ++a) copies *= in[o].use[a].role == axis_role::partial ? extents[a] : 1;
    tensor sum{in_letters[o], sizes_of(in_letters[o], sizes), {}};
    std::int64_t n = 1;
    for (const auto s : sum.sizes) n *= s;
    sum.values.assign(static_cast<std::size_t>(n), 0);
    contributions.emplace_back();
    for (int c = 0; c < copies; ++c) {
      tensor t = sum;
      for (auto& v : t.values) v = static_cast<std::int64_t>(random() % 19) - 9;
      contributions.back().push_back(t);
    }
    for (const auto& t : contributions.back())
      for (std::size_t i = 0; i < t.values.size(); ++i) sum.values[i] += t.values[i];
    whole.push_back(sum);
  }
  const tensor want = product(whole, out_letters, sizes);
  tensor got = want;
  for (auto& v : got.values) v = 0;
  for (int r = 0; r < world; ++r) {
    bool primary = true;
    for (std::size_t a = 0; a < 2; ++a)
      primary =
          primary && (out.use[a].role != axis_role::replicated || hd::detail::mesh_coordinate(extents, a, r) == 0);
    std::map<char, range> ranges;
    std::vector<const tensor*> mine;
    for (std::size_t o = 0; o < in.size(); ++o) {
      int c = 0;
      for (std::size_t a = 0; a < 2; ++a)
        if (in[o].use[a].role == axis_role::partial) c = c * extents[a] + hd::detail::mesh_coordinate(extents, a, r);
      mine.push_back(&contributions[o][static_cast<std::size_t>(c)]);
      for (const auto& [letter, b] : box(in[o], in_letters[o], sizes, r)) {
        const auto known = ranges.find(letter);
        if (known != ranges.end() && (known->second.begin != b.begin || known->second.end != b.end)) return false;
        ranges[letter] = b;
      }
    }
    for (const auto& [letter, b] : box(out, out_letters, sizes, r))
      if (ranges[letter].begin != b.begin || ranges[letter].end != b.end) return false;
    if (!primary) continue;
    assignment local;
    for (const auto& [letter, b] : ranges) local[letter] = b.end - b.begin;
    for_all(local, [&](assignment at) {
      for (auto& [letter, i] : at) i += ranges[letter].begin;
      std::int64_t term = 1;
      for (const tensor* t : mine) term *= t->values[flat(*t, at)];
      got.values[flat(got, at)] += term;
    });
  }
  return got.values == want.values;
}

template <hd::fixed_string Text>
hd::detail::rule_outcome<2> outcome_of(const std::vector<table>& in) {
  static constexpr auto rule = hd::detail::einsum_rule(hd::detail::checked_formula<Text>::value);
  constexpr hd::detail::operator_facts sums[]{{true, false, true}};
  return hd::detail::propagate_strictly(rule, in.data(), sums);
}

template <hd::fixed_string Text>
void check_formula(const std::vector<std::string>& in_letters, const std::string& out_letters, int expected_legal) {
  const assignment all{{'b', 5}, {'i', 4}, {'j', 7}};
  assignment sizes;
  for (const auto& letters : in_letters)
    for (const char c : letters) sizes[c] = all.at(c);
  std::vector<std::vector<table>> choices;
  for (const auto& letters : in_letters) choices.push_back(all_tables(static_cast<int>(letters.size())));
  if (choices.size() == 1) choices.push_back({table{}});
  int legal = 0, wrong = 0, refused_but_fine = 0;
  for (const table& a : choices[0])
    for (const table& b : choices[1]) {
      const table operands[]{a, b};
      const std::vector<table> in(operands, operands + in_letters.size());
      const auto outcome = outcome_of<Text>(in);
      if (outcome.legal()) {
        ++legal;
        wrong += computes_the_product(in_letters, out_letters, sizes, in, outcome.results[0]) ? 0 : 1;
      } else {
        for (const table& out : all_tables(static_cast<int>(out_letters.size())))
          refused_but_fine += computes_the_product(in_letters, out_letters, sizes, in, out) ? 1 : 0;
      }
    }
  CHECK(wrong == 0);             // what is accepted is right
  CHECK(refused_but_fine == 0);  // what is refused has no layout that would be right
  CHECK(legal == expected_legal);
}
}  // namespace

TEST_CASE("a product is accepted exactly if local compute gives it, on two axes", "[layout][propagate][law]") {
  // 6 signatures per axis; on two axes, letters split over both come in two orders.
  check_formula<"bi,ij->bj">({"bi", "ij"}, "bj", 36 + 3);
  check_formula<"bi,bj->bij">({"bi", "bj"}, "bij", 36 + 3);
  check_formula<"bi,bi->b">({"bi", "bi"}, "b", 25 + 2);
  check_formula<"bi->ib">({"bi"}, "ib", 16 + 2);
  check_formula<"bij->i">({"bij"}, "i", 25 + 3);
  check_formula<"b,i->">({"b", "i"}, "", 25 + 2);
}
