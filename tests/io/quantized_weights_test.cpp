// Matrices of 2 to 8 bits read as (number - zero point) x scale, by the definition of each format, in runs of any kind, and what does not fit is
// an error. That models of transformers with the same numbers give the same logits is in examples/evaluate_test.cpp.
#include "catch.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <heddle/core/random.hpp>
#include <heddle/io/safetensors/reader.hpp>
#include <heddle/io/safetensors/writer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "scratch.hpp"

namespace io = heddle::io;

namespace quantized_test {
namespace {

using form = heddle::quantized_weights::form;

// Words of 32 bits, [rows, columns], into which numbers are put bit by bit.
struct words {
  std::int64_t rows, columns;
  std::vector<std::int32_t> all{};
  words(std::int64_t r, std::int64_t c) : rows(r), columns(c), all(static_cast<std::size_t>(r * c), 0) {}
  void put(std::int64_t row, std::int64_t column, std::int64_t bit, bool one) {
    auto& w = all.at(static_cast<std::size_t>(row * columns + column));
    w = static_cast<std::int32_t>(static_cast<std::uint32_t>(w) | static_cast<std::uint32_t>(one) << bit);
  }
  // Number `i` of those that lie one behind the other down a column, or along a row.
  void down(std::int64_t i, std::int64_t column, int bits, int value) {
    for (int b = 0; b < bits; ++b) put((i * bits + b) / 32, column, (i * bits + b) % 32, (value >> b & 1) != 0);
  }
  void along(std::int64_t row, std::int64_t i, int bits, int value) {
    for (int b = 0; b < bits; ++b) put(row, (i * bits + b) / 32, (i * bits + b) % 32, (value >> b & 1) != 0);
  }
};

// A matrix of random numbers as the files of a form have it, and what it is.
struct matrix {
  std::int64_t out, in, groups;
  std::vector<double> values{};
  words codes, zeros;
  std::vector<float> scales{};  // as they lie in the file
  std::vector<std::int32_t> group_of{};
  std::vector<std::int64_t> scales_shape{};
};
matrix random_matrix(const heddle::quantized_weights& how, std::int64_t out, std::int64_t in, bool has_zeros,
                     bool ordered, const heddle::counter_random& random) {
  std::uint64_t at = 0;
  const auto below = [&](int n) { return static_cast<int>(random.integer(at++) % static_cast<std::uint64_t>(n)); };
  const std::int64_t groups = how.group > 0 ? (in + how.group - 1) / how.group : 1;
  const int bits = how.bits;
  const std::int64_t per = 32 / bits;
  const auto up = [](std::int64_t n, std::int64_t each) { return (n + each - 1) / each; };
  const bool packed = how.how == form::packed, gptq = how.how == form::gptq;
  matrix m{out,
           in,
           groups,
           {},
           packed ? words(out, up(in, per))
           : gptq ? words(up(in * bits, 32), out)
                  : words(in, out / 8),
           packed ? words(up(out, per), groups) : words(groups, up(out * bits, 32))};
  constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto place = [&](std::int64_t o) { return o / 8 * 8 + (std::find(order, order + 8, o % 8) - order); };
  m.scales.resize(static_cast<std::size_t>(out * groups));
  m.scales_shape = packed ? std::vector{out, groups} : std::vector{groups, out};
  for (std::int64_t i = 0; i < in; ++i)
    m.group_of.push_back(ordered ? below(static_cast<int>(groups))
                                 : static_cast<int>(how.group > 0 ? i / how.group : 0));
  std::vector<int> zero(static_cast<std::size_t>(out * groups), 1 << (bits - 1));
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t g = 0; g < groups; ++g) {
      auto& z = zero[static_cast<std::size_t>(o * groups + g)];
      if (has_zeros) z = below(1 << bits);
      const int stored = (z - (how.zeros_one_less ? 1 : 0)) & ((1 << bits) - 1);
      if (gptq) m.zeros.along(g, o, bits, stored);
      if (how.how == form::awq) m.zeros.along(g, place(o), 4, stored);
      if (packed && has_zeros) m.zeros.down(o, g, bits, stored);
      m.scales[static_cast<std::size_t>(packed ? o * groups + g : g * out + o)] =
          static_cast<float>((random.uniform(at++) - 0.25) * 1e-2);
    }
  for (std::int64_t o = 0; o < out; ++o)
    for (std::int64_t i = 0; i < in; ++i) {
      const int code = below(1 << bits);
      const std::int64_t g = m.group_of[static_cast<std::size_t>(i)];
      if (gptq) m.codes.down(i, o, bits, code);
      if (how.how == form::awq) m.codes.along(i, place(o), 4, code);
      if (packed) m.codes.along(o, i, bits, code);
      m.values.push_back(
          (code - zero[static_cast<std::size_t>(o * groups + g)]) *
          static_cast<double>(m.scales[static_cast<std::size_t>(packed ? o * groups + g : g * out + o)]));
    }
  return m;
}

std::vector<io::safetensors_output> outputs(const matrix& m, form how, bool has_zeros, bool ordered,
                                            std::vector<std::int64_t>& shape) {
  const io::detail::packed_names names = io::detail::names_of(how);
  const auto words_of = [&](const char* end, const words& w) {
    return io::safetensors_of(std::string("a.b") + end, {w.rows, w.columns}, std::span<const std::int32_t>(w.all));
  };
  std::vector<io::safetensors_output> all{
      words_of(names.codes, m.codes),
      io::safetensors_of(std::string("a.b") + names.scales, m.scales_shape, std::span<const float>(m.scales))};
  if (has_zeros || how != form::packed) all.push_back(words_of(names.zeros, m.zeros));
  if (ordered)
    all.push_back(
        io::safetensors_of(std::string("a.b") + names.groups, {m.in}, std::span<const std::int32_t>(m.group_of)));
  shape = {m.out, m.in};
  if (how == form::packed)
    all.push_back(io::safetensors_of("a.b.weight_shape", {2}, std::span<const std::int64_t>(shape)));
  return all;
}

}  // namespace
}  // namespace quantized_test

TEST_CASE("packed matrices read as their numbers times scales, in any runs, by any number of threads",
          "[io][safetensors][quantized]") {
  using namespace quantized_test;
  const std::uint64_t seed = 4477;
  CAPTURE(seed);
  struct kind {
    form how;
    int bits;
    bool has_zeros, ordered, one_less;
  };
  std::uint64_t stream = 0;
  for (const kind& k : {kind{form::gptq, 4, true, true, true}, kind{form::gptq, 3, true, false, false},
                        kind{form::gptq, 2, true, false, true}, kind{form::gptq, 8, true, false, true},
                        kind{form::awq, 4, true, false, false}, kind{form::packed, 4, true, true, false},
                        kind{form::packed, 8, false, false, false}, kind{form::packed, 4, false, false, false}})
    for (const auto& [out, in, group] : {std::tuple(40, 64, 32), std::tuple(296, 96, 0), std::tuple(8, 32, 9)}) {
      const heddle::counter_random random(seed, ++stream);
      heddle::quantized_weights how(k.how, k.bits, group);
      how.zeros_one_less = k.one_less;
      const std::int64_t columns = k.how == form::packed ? in - 3 : in;
      CAPTURE(static_cast<int>(k.how), k.bits, out, columns, group);
      const matrix m = random_matrix(how, out, columns, k.has_zeros, k.ordered, random);
      const scratch_folder folder("safetensors");
      std::vector<std::int64_t> shape;
      io::write_safetensors_folder(folder / "m", outputs(m, k.how, k.has_zeros, k.ordered, shape), 1);
      const io::safetensors_folder read(folder / "m", how);
      REQUIRE(read.contains("a.b.weight"));
      for (const std::string& name : read.names()) CHECK(read.is_scales(name));
      const auto shared = read.tensor("a.b.weight");
      CHECK(std::vector(shared.shape().begin(), shared.shape().end()) == shape);
      CHECK(shared.is_quantized());
      const std::int64_t count = out * columns;
      std::vector<std::int64_t> wrong(2);
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < wrong.size(); ++t)
        threads.emplace_back([&, t] {
          const heddle::counter_random mine(seed, 1000 + 10 * stream + t);
          for (std::uint64_t r = 0; r < 12; ++r) {
            const auto first = static_cast<std::int64_t>(mine.integer(2 * r) % static_cast<std::uint64_t>(count));
            const auto n =
                static_cast<std::size_t>(mine.integer(2 * r + 1) % static_cast<std::uint64_t>(count - first + 1));
            std::vector<float> numbers(n);
            shared.read(first, std::span(numbers));
            for (std::size_t i = 0; i < n; ++i)
              wrong[t] += numbers[i] != static_cast<float>(m.values[static_cast<std::size_t>(first) + i]);
          }
        });
      for (auto& t : threads) t.join();
      CHECK(wrong == std::vector<std::int64_t>{0, 0});
      // The whole takes each byte once but those of the shape; some columns of all rows and some rows take their own words, and what is
      // planned is what is read.
      const auto planned_and_read = [&](std::int64_t from_row, std::int64_t rows, std::int64_t from,
                                        std::int64_t wide) {
        io::safetensors_reads plan(read.tensor("a.b.weight"));
        const io::safetensors_reader one(read);
        const auto part = one.tensor("a.b.weight");
        std::vector<double> got(static_cast<std::size_t>(wide == columns ? rows * wide : wide));
        for (std::int64_t r = 0; r < (wide == columns ? 1 : rows); ++r) {
          const std::int64_t first = (from_row + r) * columns + from;
          plan.read(first, std::ssize(got));
          part.read(first, std::span(got));
          for (std::size_t i = 0; i < got.size(); ++i)
            wrong[0] += got[i] != m.values[static_cast<std::size_t>(first) + i];
        }
        CHECK(plan.bytes() == one.bytes_read());
        return one.bytes_read();
      };
      const std::int64_t whole = planned_and_read(0, out, 0, columns);
      CHECK(whole >= shared.stored_bytes() - (k.how == form::packed ? 16 : 0));
      if (out <= io::detail::packed_window::tall && !k.ordered) {
        CHECK(whole == shared.stored_bytes() - (k.how == form::packed ? 16 : 0));
        const std::int64_t rows = out >= 16 ? out / 16 * 8 : out;  // of whole words
        CHECK(planned_and_read(0, rows, 0, columns) <= whole * rows / out + 4 * (2 + m.groups));
        CHECK(planned_and_read(0, out, 0, columns / 2) < whole * 3 / 4);
      }
      CHECK(wrong[0] == 0);
    }
}

TEST_CASE("matrices of folders that Python wrote have the sums that it found", "[io][safetensors][quantized][golden]") {
  const std::filesystem::path models = HEDDLE_SOURCE_DIR "/tests/golden/models";
  heddle::quantized_weights gptq(heddle::quantized_weights::form::gptq, 4, 8);
  gptq.zeros_one_less = true;
  constexpr std::int64_t whole = heddle::scale_blocks::whole;
  const heddle::quantized_weights each_row(heddle::scale_blocks{1, whole});
  using form = heddle::quantized_weights::form;
  for (const auto& [name, how] : std::vector<std::pair<std::string, heddle::quantized_weights>>{
           {"phi3_gptq", gptq},
           {"llama_gptq3", {form::gptq, 3, 32}},
           {"qwen2_awq", {form::awq, 4, 8}},
           {"llama_int4", {form::packed, 4, 12}},
           {"qwen3_int8", each_row},
           {"llama_fp8_tensor", heddle::scale_blocks{}},
           {"qwen2_fp8_channel", each_row},
           {"qwen3_mxfp4", {form::mxfp4, 4, 32}},
           {"gpt_oss_mxfp4", {form::stacked_mxfp4, 4, 32}}}) {
    const io::safetensors_folder read(models / name, how);
    const auto expected = io::read_json(models / name / "expected.json");
    const std::int64_t together = how.how == form::stacked_mxfp4 ? 5 : 1;  // experts in a tensor
    CHECK(read.quantized().matrices == together * std::ssize(expected.at("sums")));
    for (const auto& [at, sum] : expected.at("sums").items()) {
      CAPTURE(name, at);
      const auto tensor = read.tensor(at);
      std::vector<float> all(static_cast<std::size_t>(tensor.entry().count()));
      tensor.read(0, std::span(all));
      double found = 0;
      for (std::size_t k = 0; k < all.size(); ++k)
        found += static_cast<double>(all[k]) * static_cast<double>(k % 97 + 1);
      CHECK(found == Approx(sum.get<double>()).epsilon(1e-9).margin(1e-9));
    }
  }
}

TEST_CASE("matrices of MXFP4 read as numbers of E2M1 times powers of two", "[io][safetensors][quantized]") {
  using namespace quantized_test;
  // OCP Microscaling Formats 1.0, section 5.3: all 16 numbers, and exponents that are those of float and below.
  constexpr float numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  std::vector<std::uint8_t> codes, exponents{127, 0, 254, 120, 130, 1};
  std::vector<float> want;
  for (std::size_t row = 0; row < 2; ++row)
    for (std::size_t i = 0; i < 96; i += 2) {
      const std::size_t low = (i * 7 + row) % 16, high = (i + 3 * row + 9) % 16;
      codes.push_back(static_cast<std::uint8_t>(low | high << 4));
      for (const std::size_t code : {low, high})
        want.push_back(std::ldexp(numbers[code], exponents[row * 3 + i / 32] - 127));
    }
  const heddle::quantized_weights how(heddle::quantized_weights::form::mxfp4, 4, 32);
  const scratch_folder folder("safetensors");
  const auto write = [&](const char* name, std::int64_t groups) {
    io::write_safetensors_folder(
        folder / name,
        std::vector<io::safetensors_output>{
            io::safetensors_of("x.weight_packed", {2, 48}, std::span<const std::uint8_t>(codes)),
            io::safetensors_of("x.weight_scale", {6 / groups, groups}, std::span<const std::uint8_t>(exponents))},
        1);
  };
  write("m", 3);
  const io::safetensors_folder read(folder / "m", how);
  const auto tensor = read.tensor("x.weight");
  CHECK(std::vector(tensor.shape().begin(), tensor.shape().end()) == std::vector<std::int64_t>{2, 96});
  for (const std::size_t first : {std::size_t{0}, std::size_t{33}, std::size_t{95}, std::size_t{100}}) {
    std::vector<float> all(192 - first);
    tensor.read(static_cast<std::int64_t>(first), std::span(all));
    CHECK(all == std::vector<float>(want.begin() + static_cast<std::ptrdiff_t>(first), want.end()));
  }
  write("wide", 2);
  CHECK_THROWS_WITH(io::safetensors_folder(folder / "wide", how).tensor("x.weight"),
                    Catch::Contains("needs the shape [2,3], it is [3,2]"));
  exponents[4] = 255;
  write("none", 3);
  std::vector<float> all(192);
  const io::safetensors_folder none(folder / "none", how);
  const auto of_none = none.tensor("x.weight");
  CHECK_THROWS_WITH(of_none.read(0, std::span(all)), Catch::Contains("a scale should be finite"));
}

TEST_CASE("matrices of all experts in MXFP4 read as one tensor, from any element on", "[io][safetensors][quantized]") {
  using namespace quantized_test;
  // Two experts of 3 x 64: six rows of two blocks of 16 bytes.
  std::vector<std::uint8_t> codes(2 * 3 * 2 * 16), exponents(2 * 3 * 2);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(37 * i + i / 11);
  for (std::size_t i = 0; i < exponents.size(); ++i) exponents[i] = static_cast<std::uint8_t>(121 + i);
  constexpr float numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  std::vector<float> want;
  for (std::size_t i = 0; i < 2 * codes.size(); ++i)
    want.push_back(std::ldexp(numbers[codes[i / 2] >> (i % 2 * 4) & 15], exponents[i / 32] - 127));
  const heddle::quantized_weights how(heddle::quantized_weights::form::stacked_mxfp4, 4, 32);
  const scratch_folder folder("safetensors");
  const auto write = [&](const char* name, std::vector<std::int64_t> blocks, std::vector<std::int64_t> scales) {
    io::write_safetensors_folder(
        folder / name,
        std::vector<io::safetensors_output>{
            io::safetensors_of("e.gate_up_proj_blocks", std::move(blocks), std::span<const std::uint8_t>(codes)),
            io::safetensors_of("e.gate_up_proj_scales", std::move(scales), std::span<const std::uint8_t>(exponents))},
        1);
  };
  write("m", {2, 3, 2, 16}, {2, 3, 2});
  const io::safetensors_folder read(folder / "m", how);
  CHECK((read.contains("e.gate_up_proj") && !read.contains("e.down_proj")));
  CHECK((read.is_scales("e.gate_up_proj_blocks") && read.is_scales("e.gate_up_proj_scales")));
  CHECK((read.quantized().matrices == 2 && read.quantized().elements == 384 && read.quantized().stored_bytes == 204));
  const io::safetensors_reader reader(read);  // with a window of its own
  const auto tensor = reader.tensor("e.gate_up_proj");
  CHECK(std::vector(tensor.shape().begin(), tensor.shape().end()) == std::vector<std::int64_t>{2, 3, 64});
  for (const std::size_t first : {0u, 1u, 63u, 64u, 200u, 383u}) {
    std::vector<float> all(384 - first);
    tensor.read(static_cast<std::int64_t>(first), std::span(all));
    CHECK(all == std::vector<float>(want.begin() + static_cast<std::ptrdiff_t>(first), want.end()));
  }
  const auto refused = [&](const char* name, const char* says) {
    const io::safetensors_folder other(folder / name, how);
    CHECK_THROWS_WITH(other.tensor("e.gate_up_proj"), Catch::Contains(says));
  };
  write("flat", {6, 2, 16}, {2, 3, 2});
  refused("flat", "should be blocks of 32 numbers in 4 bits, [experts, out, in / 32, 16], it is [6,2,16]");
  write("wide", {2, 3, 2, 16}, {2, 2, 3});
  refused("wide", "needs the shape [2,3,2], it is [2,2,3]");
}

TEST_CASE("8-bit matrices with one scale, or one for each row, and what goes beside them",
          "[io][safetensors][quantized]") {
  using namespace quantized_test;
  const std::vector<std::int8_t> codes{-128, -3, 0, 1, 5, 127};
  const std::vector<float> rows{0.5f, 3.0f}, one{2.0f}, zeros(2, 0.0f);
  const scratch_folder folder("safetensors");
  io::write_safetensors_folder(
      folder / "m",
      std::vector<io::safetensors_output>{io::safetensors_of("x.weight", {2, 3}, std::span<const std::int8_t>(codes)),
                                          io::safetensors_of("x.weight_scale", {2, 1}, std::span<const float>(rows)),
                                          {"y.weight", "F8_E4M3", {2, 3}, std::as_bytes(std::span(codes))},
                                          io::safetensors_of("y.weight_scale", {}, std::span<const float>(one)),
                                          io::safetensors_of("y.input_scale", {1}, std::span<const float>(one)),
                                          io::safetensors_of("z.input_scale", {1}, std::span<const float>(one)),
                                          io::safetensors_of("counts", {6}, std::span<const std::int8_t>(codes))});
  const io::safetensors_folder read(folder / "m", heddle::scale_blocks{1, heddle::scale_blocks::whole});
  std::vector<float> out(6);
  read.tensor("x.weight").read(0, std::span(out));
  CHECK(out == std::vector<float>{-64, -1.5f, 0, 3, 15, 381});
  for (const char* name : {"x.weight_scale", "y.weight_scale", "y.input_scale"}) CHECK(read.is_scales(name));
  for (const char* name : {"x.weight", "z.input_scale", "counts"}) CHECK_FALSE(read.is_scales(name));
  CHECK_FALSE(read.tensor("counts").is_quantized());
  CHECK(read.quantized().matrices == 2);
  CHECK(read.quantized().stored_bytes == 2 * 6 + 8 + 4);
  CHECK(read.quantized().elements == 12);
  std::vector<std::int8_t> raw(6);
  read.tensor("counts").read(0, std::span(raw));
  CHECK(raw == codes);
  // 0x80 is -0, 0xfd -416, 1 the least above 0, 0x7f NaN.
  CHECK_THROWS_WITH(read.tensor("y.weight").read(0, std::span(out)), Catch::Contains("row 1, column 2 is NaN"));
  read.tensor("y.weight").read(0, std::span(out).first(5));
  CHECK(std::vector(out.begin(), out.begin() + 5) == std::vector<float>{0, -832, 0, 0.00390625f, 0.01953125f});
}

TEST_CASE("packed matrices that do not fit together are errors", "[io][safetensors][quantized]") {
  using namespace quantized_test;
  using Catch::Contains;
  const heddle::counter_random random(4478, 0);
  const auto error_of = [&](form how, int bits, std::int64_t group, auto&& change) {
    heddle::quantized_weights as(how, bits, group);
    matrix m = random_matrix(as, 16, 32, true, true, random);
    std::vector<std::int64_t> shape;
    auto tensors = outputs(m, how, true, how != form::awq, shape);
    change(m, tensors, as);
    const scratch_folder folder("safetensors");
    io::write_safetensors_folder(folder / "m", tensors);
    return message_of<heddle::error>([&] {
      const io::safetensors_folder read(folder / "m", as);
      std::vector<float> out(16 * 32);
      read.tensor("a.b.weight").read(0, std::span(out));
    });
  };
  const auto nothing = [](auto&&...) {};
  for (const form how : {form::gptq, form::packed}) CHECK(error_of(how, 4, 8, nothing).empty());
  CHECK_THAT(
      error_of(form::gptq, 4, 8, [](auto&, auto&, auto& as) { as.group = 16; }),
      Contains("tensor 'a.b.scales': 4 bits and groups of 16 columns of a matrix of shape [16,32] needs the shape "
               "[2,16], it is [4,16]"));
  CHECK_THAT(error_of(form::gptq, 4, 8, [](auto&, auto&, auto& as) { as.bits = 8; }),
             Contains("8 bits and groups of 8 columns of a matrix of shape [16,16] needs the shape"));
  CHECK_THAT(error_of(form::gptq, 4, 8, [](auto&, auto& t, auto&) { t.erase(t.begin() + 2); }),
             Contains("has no tensor 'a.b.qzeros'"));
  CHECK_THAT(error_of(form::gptq, 4, 8, [](auto& m, auto&, auto&) { m.group_of[5] = 4; }),
             Contains("tensor 'a.b.g_idx': column 5 is of group 4, the matrix has 4"));
  CHECK_THAT(error_of(form::gptq, 4, 8, [](auto& m, auto&, auto&) { m.scales[3] = INFINITY; }),
             Contains("tensor 'a.b.scales': a scale should be finite, got inf"));
  CHECK_THAT(error_of(form::packed, 4, 8,
                      [](auto& m, auto& t, auto&) {
                        t[0] =
                            io::safetensors_of("a.b.weight_packed", {8, 8}, std::span<const std::int32_t>(m.codes.all));
                      }),
             Contains("words of the shape [8,8] do not hold 4 bits each of a matrix of shape [16,32], which "
                      "'a.b.weight_shape' says"));
  CHECK_THAT(error_of(form::awq, 4, 8,
                      [](auto& m, auto& t, auto&) {
                        t[0] = io::safetensors_of("a.b.qweight", {32, 2}, std::span<const float>(m.scales).first(64));
                      }),
             Contains("tensor 'a.b.qweight' should be a matrix of I32, it is F32 [32,2]"));
}
#endif
