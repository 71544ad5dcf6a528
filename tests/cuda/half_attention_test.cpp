// Attention of bf16 and f16 on the CUDA backend, its bodies on the host, and on the host's backend, against double.
#include "emulated_launcher.hpp"
#include "half_attention_trials.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/group/warps.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <type_traits>
#include <vector>

namespace {
using namespace half_attention_trials;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;
}  // namespace

TEST_CASE("attention takes bf16 and f16, with statistics of float", "[cuda][law]") {
  STATIC_REQUIRE(co::sliced_attention_kernels<emulated<2>, hd::bf16>);
  STATIC_REQUIRE(co::attention_kernels<emulated<2>, hd::f16>);
  STATIC_REQUIRE(co::sliced_attention_kernels<co::host<>, hd::f16>);
  STATIC_REQUIRE(co::attention_kernels<co::host<>, hd::bf16>);
}

TEST_CASE("attention of 16-bit elements on the host is that of double", "[cuda]") {
  compare<co::host<>, hd::bf16>(problems(64));
  compare<co::host<>, hd::f16>(odd_problems());
}

TEST_CASE("attention of 16-bit elements that tensor cores do not take goes by float", "[cuda]") {
  compare<emulated<1>, hd::bf16>(odd_problems());
  compare<emulated<4>, hd::f16>(odd_problems());
}

namespace {
/// What the kernels do, key by key: shares are rounded to `Half` in units of the largest score so far, and their sum is not.
template <class Half>
outcome attention_of_rounded_shares(const problem& p, const operands& x, std::int64_t tile) {
  outcome y;
  y.out.assign(x.dout.size(), 0), y.lse.assign(static_cast<std::size_t>(p.heads * p.queries), 0);
  const auto at = [](const numbers& of, std::int64_t i) { return static_cast<float>(of[static_cast<std::size_t>(i)]); };
  const std::int64_t d = p.head_dim;
  const auto scale = static_cast<float>(scale_of(p)), factor = scale * 1.44269504088896340736f;
  for (std::int64_t r = 0; r < p.queries; ++r)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      std::vector<float> sum(static_cast<std::size_t>(d), 0.0f);
      float top = -HUGE_VALF, total = 0;
      for (std::int64_t begin = 0; begin <= r; begin += tile) {  // causal
        std::vector<float> s;
        float best = top;
        for (std::int64_t key = begin; key <= r && key < begin + tile; ++key) {
          float score = 0;
          for (std::int64_t j = 0; j < d; ++j)
            score += at(x.q, (r * p.heads + h) * d + j) * at(x.k, (key * p.heads + h) * d + j);
          s.push_back(score);
          best = std::fmax(best, score);
        }
        const float shrink = std::exp2(top * factor - best * factor);
        top = best;
        total *= shrink;
        for (float& e : sum) e *= shrink;
        for (std::size_t k = 0; k < s.size(); ++k) {
          const float share = std::exp2(s[k] * factor - best * factor), small = static_cast<float>(Half(share));
          total += share;
          for (std::int64_t j = 0; j < d; ++j)
            sum[static_cast<std::size_t>(j)] +=
                small * at(x.v, ((begin + static_cast<std::int64_t>(k)) * p.heads + h) * d + j);
        }
      }
      y.lse[static_cast<std::size_t>(h * p.queries + r)] = static_cast<double>(top * scale + std::log(total));
      for (std::int64_t j = 0; j < d; ++j)
        y.out[static_cast<std::size_t>((r * p.heads + h) * d + j)] =
            static_cast<double>(static_cast<float>(Half(sum[static_cast<std::size_t>(j)] / total)));
    }
  return y;
}
template <class Half>
void check_rounded_shares(std::int64_t head_dim, std::int64_t tile) {
  const problem p{"causal", 130, 130, 2, 2, head_dim, co::causal_sequences(1, 130)};
  const operands x = operands_of<Half>(p);
  const outcome expected = attention_of_rounded_shares<Half>(p, x, tile);
  const outcome got = computed<emulated<1>, Half>(p, x, expected, false);
  CHECK(difference(got.lse, expected.lse, 1, 1.0) <= 1e-6);
  CHECK(difference(got.out, expected.out, 1) <= (std::is_same_v<Half, hd::bf16> ? 0x1p-7 : 0x1p-10));
  std::size_t same = 0;
  for (std::size_t i = 0; i < got.out.size(); ++i) same += got.out[i] == expected.out[i];
  CHECK(static_cast<double>(same) >= 0.995 * static_cast<double>(got.out.size()));
}
template <int Width>
std::size_t places_of_chunks() {
  using tile = co::detail::in_groups::swizzled_tile<hd::bf16, Width>;
  std::set<int> all;
  std::size_t wrong = 0;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < tile::chunks; ++chunk) {
      const int at = tile::at(row, chunk);
      wrong += at % 8 != 0 || at / Width != row || !all.insert(at).second;
      const int first = row / 16 * 16;
      wrong += at != tile::at(first, row - first, chunk / 2 * 2, chunk % 2);
    }
  // Eight rows of a column, which one phase of ldmatrix reads, are in different banks of 16 bytes.
  for (int row = 0; row < 64; row += 8)
    for (int chunk = 0; chunk < tile::chunks; ++chunk) {
      std::set<int> banks;
      for (int r = row; r < row + 8; ++r) banks.insert(tile::at(r, chunk) / 8 % 8);
      wrong += banks.size() != 8;
    }
  return wrong;
}
}  // namespace

TEST_CASE("chunks of swizzled tiles have places of their own, and columns no bank twice", "[cuda]") {
  CHECK(places_of_chunks<32>() == 0);
  CHECK(places_of_chunks<64>() == 0);
  CHECK(places_of_chunks<80>() == 0);
  CHECK(places_of_chunks<96>() == 0);
  CHECK(places_of_chunks<128>() == 0);
  CHECK(places_of_chunks<256>() == 0);
}

TEST_CASE("attention by matrix instructions rounds shares of keys, and nothing else before the end", "[cuda]") {
  check_rounded_shares<hd::bf16>(64, 64);
  check_rounded_shares<hd::f16>(96, 32);
  check_rounded_shares<hd::bf16>(128, 32);
}

TEST_CASE("attention of 16-bit elements by matrix instructions is that of double", "[cuda]") {
  cuda_double::matrix_kernels() = 0;
  compare<emulated<1>, hd::bf16>(problems(64));
  const auto some = [](std::int64_t head_dim) {
    const std::vector<problem> all = problems(head_dim);
    return std::vector<problem>{all[1], all[4], all[7], all[9], all[10]};
  };
  compare<emulated<1>, hd::f16>(some(80));
  compare<emulated<1>, hd::bf16>(some(128));
  compare<emulated<1>, hd::f16>(some(24));
  CHECK(cuda_double::matrix_kernels() > 0);
  for (const std::int64_t sequence : {1, 40, 150}) compare_fused<emulated<1>, hd::f16>(2, sequence, 2, 64);
}

TEST_CASE("attention of 16-bit elements goes by float where a device has no matrix instructions", "[cuda]") {
  const std::vector<problem> some{problems(64)[3], problems(64)[10]};
  cuda_double::matrix_kernels() = 0;
  cuda_double::has_matrix_instructions() = false;
  compare<emulated<1>, hd::bf16>(some);
  cuda_double::has_matrix_instructions() = true;
  CHECK(cuda_double::matrix_kernels() == 0);
}

TEST_CASE("attention of few queries of 16-bit elements in parts of the keys is that of double", "[cuda]") {
  cuda_double::matrix_kernels() = 0;
  compare<emulated<1>, hd::bf16>(decoding_problems(64), false);
  const std::vector<problem> all = decoding_problems(128);
  compare<emulated<1>, hd::f16>({all[0], all[4]}, false);
  compare<emulated<1>, hd::bf16>({decoding_problems(24)[2], decoding_problems(80)[4], decoding_problems(96)[3]}, false);
  compare<emulated<1>, hd::f16>({decoding("long", 2, 1, 16, {{1, 4200}, {1, 30}})}, false);
  CHECK(cuda_double::matrix_kernels() ==
        7 + 2 + 2 + 1 + 1 + 2 + 1);  // two of the mixed ones, whose prompts go by tiles
  // Heads of other sizes, and devices without the instructions.
  cuda_double::matrix_kernels() = 0;
  compare<emulated<1>, hd::bf16>(decoding_problems(20), false);
  cuda_double::has_matrix_instructions() = false;
  cuda_double::offered_to_groups() = 64 << 10;
  compare<emulated<3>, hd::f16>({decoding_problems(8)[0], decoding_problems(8)[6]}, false);
  CHECK(cuda_double::last_edge() == 64);  // keys of a part
  cuda_double::offered_to_groups() = 0;
  compare<emulated<4>, hd::f16>({decoding_problems(64)[4]}, false);  // no room for a part
  cuda_double::has_matrix_instructions() = true;
  CHECK(cuda_double::matrix_kernels() == 0);
}

TEST_CASE("attention of wide heads of 16-bit elements by matrix instructions is that of double", "[cuda]") {
  cuda_double::matrix_kernels() = 0;
  compare<emulated<1>, hd::bf16>(wide_problems(), false);
  CHECK(cuda_double::matrix_kernels() == 4 * (4 + 4));  // one of the three that decode has a prompt beside it
  compare<emulated<1>, hd::f16>({problems(256)[3]});    // gradients by float
  CHECK(cuda_double::matrix_kernels() == 4 * (4 + 4) + 1);
}

namespace {
/// What the rows of one sequence of a problem get without the others.
template <class B, class Half>
void check_companions(const problem& p) {
  CAPTURE(p.name, p.head_dim);
  const operands x = operands_of<Half>(p);
  outcome expected;
  expected_forward(p, x, expected);
  const outcome all = computed<B, Half>(p, x, expected, false);
  for (std::int64_t i = 0; i < (p.few_rows.empty() ? std::ssize(p.slices) : p.few_slices); ++i) {
    const co::attention_slice& s = p.slices[static_cast<std::size_t>(i)];
    problem alone = p;
    alone.queries = s.queries();
    alone.most_keys = s.keys();
    alone.slices = {{0, s.queries(), s.k_begin, s.k_end, s.mask}};
    alone.few_rows.clear();
    const auto rows = [&](const numbers& of) {
      const auto width = std::ssize(of) / p.queries;
      return numbers(of.begin() + s.q_begin * width, of.begin() + s.q_end * width);
    };
    const operands mine{rows(x.q), x.k, x.v, rows(x.dout)};
    const outcome got = computed<B, Half>(alone, mine, expected, false);
    CHECK(got.out == rows(all.out));
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t r = 0; r < s.queries(); ++r)
        CHECK(got.lse[static_cast<std::size_t>(h * s.queries() + r)] ==
              all.lse[static_cast<std::size_t>(h * p.queries + s.q_begin + r)]);
  }
}
}  // namespace

TEST_CASE("attention of few queries has the same bits whatever other queries a call has", "[cuda]") {
  const std::vector<decoding_sequence> few{{1, 30}, {1, 520}, {2, 140}, {1, 1100}}, mixed{{1, 300}, {12, 12}, {3, 90}};
  for (const auto& sequences : {few, mixed}) {
    check_companions<emulated<1>, hd::bf16>(decoding("by matrices", 4, 2, 64, sequences));
    cuda_double::offered_to_groups() = 64 << 10;
    check_companions<emulated<2>, hd::f16>(decoding("not by matrices", 4, 2, 12, sequences));
    cuda_double::offered_to_groups() = 0;
  }
}
