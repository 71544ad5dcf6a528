// Attention of bf16 and f16 on the CUDA backend, its bodies on the host, and on the host's backend, against double.
#include "emulated_launcher.hpp"
#include "emulated_warp.hpp"
#include "group_of_threads.hpp"
#include "half_attention_trials.hpp"
#include "warp_accesses.hpp"

#include <heddle/compute/cuda/cuda.hpp>
#include <heddle/compute/group/warps.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace {
using namespace half_attention_trials;
template <int Threads>
using emulated = co::basic_cuda<cuda_double::emulated_launcher<Threads>>;
}  // namespace

TEST_CASE("attention takes bf16 and f16, with statistics of float", "[cuda][law]") {
  STATIC_REQUIRE(co::sliced_attention_facet::offered<emulated<2>, hd::bf16>);
  STATIC_REQUIRE(co::attention_facet::offered<emulated<2>, hd::f16>);
  STATIC_REQUIRE(co::sliced_attention_facet::offered<co::host<>, hd::f16>);
  STATIC_REQUIRE(co::attention_facet::offered<co::host<>, hd::bf16>);
  STATIC_REQUIRE(co::capped_attention_facet::offered<emulated<2>, hd::bf16>);
  STATIC_REQUIRE(co::capped_attention_facet::offered<co::host<>, hd::f16>);
}

TEST_CASE("attention of 16-bit elements on the host is that of double", "[cuda]") {
  compare<co::host<>, hd::bf16>(problems(64));
  compare<co::host<>, hd::f16>(odd_problems());
}

TEST_CASE("attention of 16-bit elements that tensor cores do not take goes by float", "[cuda]") {
  compare<emulated<1>, hd::bf16>(odd_problems());
  compare<emulated<4>, hd::f16>(odd_problems());
}

TEST_CASE("attention of 16-bit elements with scores below a cap goes by float", "[cuda]") {
  std::vector<problem> capped{{"a cap", 20, 20, 4, 2, 64, co::causal_sequences(1, 20)}};
  for (const problem& p : odd_problems()) capped.push_back(p);
  for (problem& p : capped) p.cap = 0.7;
  compare<co::host<>, hd::bf16>(capped);
  compare<emulated<4>, hd::bf16>(capped);
}

namespace {
/// What the kernels do, key by key: shares are rounded to `Half`, and their sum is not, in units of the largest score so far, or of one that is less by a factor of up to 2^8.
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
        if (best * factor - top * factor <= 8) best = top;
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
void check_rounded_shares(std::int64_t head_dim, std::int64_t tile, float range = 2.0f) {
  problem p{"causal", 130, 130, 2, 2, head_dim, co::causal_sequences(1, 130)};
  p.range = range;
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

namespace {
/// What the warps of a kernel access, of two causal sequences of 200 rows, two heads, and rows of queries, keys and values beside each other.
template <template <class, int> class Body, int Width>
cuda_double::warp_accesses accesses_of(std::int64_t head_dim) {
  namespace ig = co::detail::in_groups;
  using half = hd::bf16;
  constexpr std::int64_t rows = 400, heads = 2;
  struct alignas(128) line {
    half values[64];
  };
  const auto lines = [](std::int64_t n) { return std::vector<line>(static_cast<std::size_t>((n + 63) / 64)); };
  const std::int64_t width = heads * head_dim;
  auto qkv = lines(3 * rows * width), out = lines(rows * width), gradients = lines(3 * rows * width);
  std::vector<float> statistics(static_cast<std::size_t>(2 * heads * rows));
  const auto third = [&](std::vector<line>& of, std::int64_t i) {
    return ig::heads_at<half>{of.data()->values + i * width, 3 * width, head_dim};
  };
  const auto in = [&](const ig::heads_at<half>& x) { return ig::heads_at<const half>{x.data, x.stride, x.head_dim}; };
  const ig::attention_inputs<half, ig::causal_batch> inputs{in(third(qkv, 0)),
                                                            in(third(qkv, 1)),
                                                            in(third(qkv, 2)),
                                                            rows,
                                                            heads,
                                                            1,
                                                            {200},
                                                            {nullptr, 0, 0},
                                                            0.125f,
                                                            -HUGE_VALF,
                                                            rows};
  const ig::heads_at<half> of_out{out.data()->values, width, head_dim};
  const auto body = [&] {
    const auto matrices = ig::matrix_inputs(inputs);
    float* const levels = statistics.data();
    using body_type = Body<half, Width>;
    if constexpr (requires { body_type{matrices, of_out, levels}; })
      return body_type{matrices, of_out, levels};
    else if constexpr (requires { body_type{matrices, in(of_out), levels, levels, third(gradients, 0)}; })
      return body_type{matrices, in(of_out), levels, levels + heads * rows, third(gradients, 0)};
    else
      return body_type{matrices, in(of_out), levels, levels + heads * rows, third(gradients, 1), third(gradients, 2),
                       200,      heads};
  }();
  auto memory = lines(body.elements);
  cuda_double::group_of_threads block(body.warps);
  std::vector<cuda_double::warp_accesses> counted(static_cast<std::size_t>(body.warps));
  block.run([&](int index) {
    cuda_double::emulated_warp w(block, index, &counted[static_cast<std::size_t>(index)]);
    for (std::int64_t i = 0; i < body.items(); ++i) body(w, i, memory.data()->values);
  });
  cuda_double::warp_accesses all;
  for (const auto& of_warp : counted) all = all + of_warp;
  return all;
}
template <template <class, int> class Body, int Width>
void check_accesses(bool copies_numbers) {
  CAPTURE(Width, copies_numbers);
  const cuda_double::warp_accesses all = accesses_of<Body, Width>(Width);
  const auto check = [](const char* name, const cuda_double::access_count& of, bool some = true) {
    CAPTURE(name, of.accesses);
    CHECK((of.accesses > 0) == some);
    CHECK(of.taken == of.least);
  };
  check("ldmatrix", all.matrices), check("loads of 16 bytes", all.loads), check("stores of 4 bytes", all.pairs);
  check("copies of 16 bytes", all.copies), check("copies of 4 bytes", all.numbers, copies_numbers);
  check("sectors of copies", all.copied), check("sectors of stores", all.stored);
}
}  // namespace

TEST_CASE("accesses that are counted: phases of banks, and sectors", "[cuda]") {
  using cuda_double::warp_access;
  const auto lanes = [](std::size_t bytes, std::uintptr_t step, int count = 32) {
    warp_access a{{}, bytes};
    for (int l = 0; l < count; ++l) a.at.push_back(4096 + static_cast<std::uintptr_t>(l) * step);
    return a;
  };
  CHECK((lanes(4, 4).phases() == 1 && lanes(4, 8).phases() == 2 && lanes(4, 128).phases() == 32));
  CHECK(lanes(4, 0).phases() == 1);  // one word for all
  CHECK((lanes(16, 16).phases() == 4 && lanes(16, 128).phases() == 32 && lanes(16, 144).phases() == 4));
  CHECK((lanes(16, 16).sectors() == 16 && lanes(16, 32).sectors() == 32 && lanes(16, 48, 3).sectors() == 3));
  CHECK((lanes(16, 16).least_sectors() == 16 && lanes(16, 16, 3).least_sectors() == 2));
}

TEST_CASE("attention by matrix instructions has no bank conflicts, and reads and writes whole sectors", "[cuda]") {
  namespace ig = co::detail::in_groups;
  check_accesses<ig::matrix_attention_of, 64>(false);
  check_accesses<ig::matrix_attention_of, 128>(false);
  check_accesses<ig::matrix_query_gradients_of, 64>(false);
  check_accesses<ig::matrix_query_gradients_of, 128>(false);
  check_accesses<ig::matrix_key_gradients_of, 64>(true);
  check_accesses<ig::matrix_key_gradients_of, 128>(true);
}

TEST_CASE("items of attention are all blocks of rows, of every 32 heads those that see most first", "[cuda]") {
  using co::detail::in_groups::rows_of_item;
  constexpr int size = 64;
  for (const int rows : {1, 64, 65, 300})
    for (const auto& [sequences, heads] : {std::pair{1, 1}, {1, 31}, {3, 12}, {8, 12}, {1, 32}, {5, 13}})
      for (const bool from_last : {false, true}) {
        CAPTURE(rows, sequences, heads, from_last);
        const int tiles = (rows + size - 1) / size, all = sequences * heads;
        std::set<std::pair<int, int>> found;
        std::size_t wrong = 0;
        for (int item = 0; item < tiles * all; ++item) {
          const rows_of_item own(item, rows, sequences, heads, size, from_last);
          const int sequence = own.first / rows, block = (own.begin - own.first) / size;
          const int together = (std::min)(32, all - item / (tiles * 32) * 32), place = item % (tiles * 32) / together;
          wrong += own.head < 0 || own.head >= heads || own.first % rows != 0 || sequence >= sequences;
          wrong += block != (from_last ? tiles - 1 - place : place) || own.begin != own.first + block * size;
          wrong += own.end != (std::min)(own.begin + size, own.first + rows);
          wrong += (sequence * heads + own.head) / 32 != item / (tiles * 32);
          found.emplace(own.begin, own.head);
        }
        CHECK(wrong == 0);
        CHECK(static_cast<int>(found.size()) == tiles * all);
      }
}

TEST_CASE("attention by matrix instructions rounds shares of keys, and nothing else before the end", "[cuda]") {
  check_rounded_shares<hd::bf16>(64, 64);
  check_rounded_shares<hd::bf16>(64, 64, 30.0f);  // sums of some rows are scaled again
  check_rounded_shares<hd::f16>(96, 64);
  check_rounded_shares<hd::bf16>(128, 64);
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

TEST_CASE("attention by matrix instructions gives the same bits whenever its asynchronous copies are done", "[cuda]") {
  const auto both = [](const problem& p, bool backward) {
    CAPTURE(p.name, p.head_dim);
    using warp = cuda_double::emulated_warp;
    const operands x = operands_of<hd::bf16>(p);
    const int before = cuda_double::matrix_kernels();
    const outcome late = computed<emulated<1>, hd::bf16>(p, x, {}, false);
    outcome late_gradients, early_gradients;
    if (backward) late_gradients = computed<emulated<1>, hd::bf16>(p, x, late);
    warp::copies_at_once() = true;
    const outcome early = computed<emulated<1>, hd::bf16>(p, x, {}, false);
    if (backward) early_gradients = computed<emulated<1>, hd::bf16>(p, x, late);
    warp::copies_at_once() = false;
    CHECK(cuda_double::matrix_kernels() > before);
    CHECK(early.out == late.out);
    CHECK(early.lse == late.lse);
    CHECK(early_gradients.dq == late_gradients.dq);
    CHECK(early_gradients.dk == late_gradients.dk);
    CHECK(early_gradients.dv == late_gradients.dv);
  };
  for (const std::int64_t head_dim : {64, 128}) {
    problem long_one{"causal 300", 300, 300, 2, 1, head_dim, co::causal_sequences(1, 300)};
    long_one.value_dim = head_dim;
    both(long_one, true);
  }
  both(wide_problems()[1], false);
  both(decoding_problems(64)[0], false);
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
  problem wrong = decoding_problems(64)[4];
  wrong.few_slices = 5;
  CHECK_THROWS_WITH((computed<emulated<1>, hd::bf16>(wrong, operands_of<hd::bf16>(wrong), {}, false)),
                    Catch::Contains("the slices of few queries should be some of 4, got 5"));
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
