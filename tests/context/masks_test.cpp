#include <heddle/context/masks.hpp>
#include <heddle/context/pieces.hpp>

#include "catch.hpp"

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace hd = heddle;
namespace hc = heddle::compute;
namespace masks = heddle::masks;

namespace {

using slices = std::vector<hc::attention_slice>;

// How many slices name each pair.
std::vector<int> matrix_of(const slices& mask, std::int64_t queries, std::int64_t keys) {
  std::vector<int> m(static_cast<std::size_t>(queries * keys), 0);
  for (const hc::attention_slice& s : mask)
    for (std::int64_t q = s.q_begin; q < s.q_end; ++q)
      for (std::int64_t k = s.first_key(q); k < s.last_key(q); ++k) ++m[static_cast<std::size_t>(q * keys + k)];
  return m;
}

struct golden_mask {
  std::string name, hash;
  std::int64_t length = 0, parameter = 0, area = 0;
  std::vector<std::int64_t> lengths;

  slices made() const {
    const std::int64_t w = parameter;
    if (name == "full") return masks::full{}.slices(length);
    if (name == "causal") return masks::causal{}.slices(length);
    if (name == "window") return masks::window<>{w}.slices(length);
    if (name == "window-both-sides") return masks::window_both_sides<>{w}.slices(length);
    if (name == "global-window") return masks::global_window<>{w}.slices(length);
    if (name == "prefix") return masks::prefix<>{w}.slices(length);
    if (name == "full-documents") return masks::documents<masks::full>{lengths}.slices(length);
    if (name == "causal-documents") return masks::documents<>{lengths}.slices(length);
    if (name == "prefix-documents") return masks::documents<masks::prefix<>>{lengths, {w}}.slices(length);
    if (name == "share-question") return masks::share_question{lengths}.slices(length);
    if (name == "causal-blockwise") return masks::causal_blockwise{lengths}.slices(length);
    if (name == "block-causal") return masks::block_causal<>{w, lengths}.slices(length);
    FAIL("unknown mask " << name);
    return {};
  }
};

std::vector<golden_mask> golden_masks() {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/context_golden.txt");
  std::vector<golden_mask> all;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    std::string kind, inner;
    golden_mask m;
    words >> kind >> m.name >> m.length >> m.parameter >> inner >> m.area >> m.hash;
    if (kind != "mask") continue;
    std::istringstream numbers(inner == "-" ? "" : inner);
    for (std::string n; std::getline(numbers, n, ',');) m.lengths.push_back(std::stoll(n));
    all.push_back(m);
  }
  return all;
}

}  // namespace

TEST_CASE("masks are those of numpy's predicates, and no pair is in two slices", "[context][golden]") {
  const std::vector<golden_mask> all = golden_masks();
  REQUIRE(all.size() == 12 * 8);
  for (const golden_mask& g : all) {
    INFO(g.name << " of " << g.length << " tokens, parameter " << g.parameter);
    const slices mask = g.made();
    CHECK(hd::area_of(mask) == g.area);
    std::uint64_t hash = 0xcbf29ce484222325u;
    bool once = true;
    for (const int pairs : matrix_of(mask, g.length, g.length)) {
      once = once && pairs <= 1;
      hash = (hash ^ static_cast<std::uint64_t>(pairs)) * 0x100000001b3u;
    }
    CHECK(once);
    std::ostringstream shown;
    shown << std::hex;
    shown.width(16);
    shown.fill('0');
    shown << hash;
    CHECK(shown.str() == g.hash);
  }
}

TEST_CASE("masks clipped to the pieces of any order keep their matrix", "[context][law]") {
  int pieces = 0;
  for (const golden_mask& g : golden_masks()) {
    if (g.length > 48) continue;
    const slices mask = g.made();
    const std::vector<int> whole = matrix_of(mask, g.length, g.length);
    for (const int ranks : {1, 3, 4, 7})
      for (const bool refine : {false, true})
        for (std::size_t o = 0; o < 4; ++o) {
          hd::context_document document{g.length, {}, mask};
          for (int r = 0; r < ranks; ++r) document.ranks.push_back(r);
          hd::context_cut cut = o < 3 ? hd::context_orders()[o].cut({document}, ranks)
                                      : hd::cut_documents<hd::split::block_cyclic<3>>({document}, ranks);
          if (refine) cut = hd::refined(cut);
          std::vector<int> again(whole.size(), 0);
          bool few = true, same_area = true;
          for (const hd::context_piece& q : cut.pieces)
            for (const hd::context_piece& k : cut.pieces) {
              slices part;
              hd::slices_between(mask, q, k, 5, 7, part);
              few = few && part.size() <= 3 * mask.size() && part.empty() == !hd::sees(mask, q, k);
              for (hc::attention_slice& s : part) {
                s.q_begin -= 5;
                s.q_end -= 5;
                s.k_begin -= 7;
                s.k_end -= 7;
              }
              same_area = same_area && hd::area_of(part) == hd::area_between(mask, q, k);
              const std::vector<int> local = matrix_of(part, q.count, k.count);
              for (std::int64_t i = 0; i < q.count; ++i)
                for (std::int64_t j = 0; j < k.count; ++j)
                  again[static_cast<std::size_t>((q.first + i * q.stride) * g.length + k.first + j * k.stride)] +=
                      local[static_cast<std::size_t>(i * k.count + j)];
            }
          pieces += static_cast<int>(cut.pieces.size());
          INFO(g.name << " of " << g.length << " tokens on " << ranks << " ranks, order " << o << ", refined "
                      << refine);
          CHECK(again == whole);
          CHECK(few);
          CHECK(same_area);
        }
  }
  CHECK(pieces > 1000);
}

TEST_CASE("areas of masks are the published formulas", "[context]") {
  STATIC_REQUIRE(hd::area_of(masks::causal{}.slices(8)) == 36);
  STATIC_REQUIRE(hd::area_of(masks::window<4>{}.slices(10)) ==
                 3 * 4 / 2 + 7 * 4);  // of w keys back: w (w + 1) / 2 + (S - w) (w + 1)
  STATIC_REQUIRE(hd::area_of(masks::block_causal<5>{}.slices(20)) == 25 * 4 * 5 / 2);
  STATIC_REQUIRE(hd::area_of(masks::full{}.slices(0)) == 0);
  STATIC_REQUIRE(masks::window<>{3}.slices(9) == masks::window<3>{}.slices(9));
  STATIC_REQUIRE(hd::document_mask<masks::documents<masks::prefix<>>>);
}

TEST_CASE("the fourteen masks have names, and are drawn the same by whoever asks", "[context]") {
  REQUIRE(hd::context_mask_names().size() == 14);
  for (const std::string_view name : hd::context_mask_names())
    for (const std::int64_t length : {1, 2, 5, 64, 200}) {
      const slices mask = hd::named_context_mask(name, length, 3);
      CHECK(mask == hd::named_context_mask(name, length, 3));
      bool sees_itself = true, once = true;
      const std::vector<int> m = matrix_of(mask, length, length);
      for (std::int64_t i = 0; i < length; ++i)
        sees_itself = sees_itself && m[static_cast<std::size_t>(i * length + i)] == 1;
      for (const int pairs : m) once = once && pairs <= 1;
      INFO(name << " of " << length);
      CHECK(sees_itself);
      CHECK(once);
    }
  CHECK_THROWS_WITH(hd::named_context_mask("casual", 8), Catch::Matchers::Contains("no mask is named \"casual\"") &&
                                                             Catch::Matchers::Contains("causal-blockwise"));
}

TEST_CASE("lengths of documents are drawn by weight and add up", "[context]") {
  const std::vector<hd::length_interval> intervals{{1, 10, 3}, {100, 200, 1}, {500, 600, 0}};
  const std::vector<std::int64_t> lengths = hd::draw_lengths(20'000, intervals, 5);
  std::int64_t sum = 0, few = 0, many = 0;
  for (const std::int64_t n : lengths) {
    sum += n;
    few += n <= 10;
    many += n >= 100;
    CHECK(n <= 200);
  }
  CHECK(sum == 20'000);
  CHECK(static_cast<double>(few) / static_cast<double>(many) == Approx(3).epsilon(0.4));
  std::int64_t of_long = 0;
  sum = 0;
  for (const std::int64_t n : hd::draw_long_lengths(100'000, intervals, {1000, 2000, 1}, 5)) {
    sum += n;
    of_long += n > 600 ? n : 0;
  }
  CHECK(sum == 100'000);
  CHECK(static_cast<double>(of_long) / static_cast<double>(sum) == Approx(0.6).epsilon(0.03));
  CHECK_THROWS_AS(hd::draw_lengths(10, {}, 0), hd::config_error);
  CHECK_THROWS_AS(hd::draw_lengths(10, std::vector<hd::length_interval>{{0, 3, 1}}, 0), hd::config_error);
  CHECK_THROWS_AS(hd::draw_lengths(10, std::vector<hd::length_interval>{{4, 3, 1}}, 0), hd::config_error);
  CHECK_THROWS_AS(hd::draw_lengths(10, std::vector<hd::length_interval>{{1, 3, -1}}, 0), hd::config_error);
}

TEST_CASE("documents are cut into pieces whose rows follow each other, first ones first", "[context]") {
  const hd::context_cut cut = hd::cut_documents<hd::split::zigzag>(
      {{10, {1, 0}, masks::causal{}.slices(10)}, {0, {}, {}}, {3, {1}, masks::full{}.slices(3)}}, 2);
  REQUIRE(cut.pieces.size() == 4);
  CHECK(cut.pieces[0] == hd::context_piece{0, 0, 1, 3, 1, 0});
  CHECK(cut.pieces[1] == hd::context_piece{0, 8, 1, 2, 1, 6});  // behind the first pieces of both documents
  CHECK(cut.pieces[2] == hd::context_piece{0, 3, 1, 5, 0, 0});  // the two middle chunks are neighbours
  CHECK(cut.pieces[3] == hd::context_piece{2, 0, 1, 3, 1, 3});
  CHECK(cut.rows == std::vector<std::int64_t>{5, 8});
  CHECK(cut.first_piece == std::vector<int>{0, 3, 3, 4});
  const hd::context_cut striped = hd::named_context_order("striped").cut({{7, {0, 1, 2}, {}}}, 3);
  REQUIRE(striped.pieces.size() == 3);
  CHECK(striped.pieces[0] == hd::context_piece{0, 0, 3, 3, 0, 0});
  CHECK(striped.pieces[2] == hd::context_piece{0, 2, 3, 2, 2, 0});
  const auto refused = [](hd::context_document d) { return hd::cut_documents<hd::split::balanced>({d}, 2); };
  CHECK_THROWS_WITH(refused({4, {0, 2}, {}}), "heddle: document 0 names a rank outside of the context axis: 2");
  CHECK_THROWS_WITH(refused({4, {1, 1}, {}}), "heddle: document 0 names a rank twice: 1");
  CHECK_THROWS_WITH(refused({-1, {1}, {}}), "heddle: document 0 has a negative length: -1");
  CHECK_THROWS_WITH(refused({4, {}, {}}), "heddle: document 0 lies on no rank; its tokens: 4");
  CHECK_THROWS_AS(refused({4, {0}, masks::full{}.slices(5)}), hd::config_error);
  CHECK_THROWS_WITH(hd::named_context_order("zagzig"),
                    "heddle: no token order is named \"zagzig\"; the orders are contiguous, zigzag, striped");
}
