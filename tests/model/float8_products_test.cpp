// Products of linear layers in 8 bits: one product against its definition, and a stage whose tensors are split, which has the scales of
// whole tensors and sends two floats for each.
#include "parallel_training.hpp"

#include <heddle/compute/float8_products.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/strategy.hpp>

#include <cmath>
#include <fstream>
#include <limits>

using namespace model_test;

namespace {

using float8_backend = hd::compute::float8_products<hd::compute::host<>>;
using rows_backend = hd::compute::float8_products<hd::compute::host<>, hd::float8_rows>;
using gpt2 = md::gpt2<float>;
using hd::compute::float8_operand, hd::compute::transpose;

std::vector<float> numbers(std::int64_t n, std::uint64_t seed, double size) {
  std::vector<float> x;
  for (const double v : random_vector(n, seed, size)) x.push_back(static_cast<float>(v));
  return x;
}
template <class Format>
double rounded(float x, float greatest) {
  const auto scale = static_cast<float>(static_cast<double>(Format::largest) / static_cast<double>(greatest));
  return static_cast<double>(static_cast<float>(Format(x * scale))) / static_cast<double>(scale);
}

template <transpose TA, transpose TB>
void check_product() {
  constexpr std::int64_t m = 5, k = 7, n = 3;
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  const auto a = numbers(m * k, 1, 3.0), b = numbers(k * n, 2, 0.01);
  const hd::matrix_view<const float> left(a.data(), {ta ? k : m, ta ? m : k}),
      right(b.data(), {tb ? n : k, tb ? k : n});
  const float beyond = 1.5f * float8_backend::greatest(left),
              of_b = float8_backend::greatest(right);  // as of other ranks
  auto c = numbers(m * n, 3, 1.0);
  const auto before = c;
  float8_backend backend{1};
  backend.scaled_matmul<TA, TB, float8_operand::gradient, float8_operand::value>(
      left, right, hd::matrix_view<float>(c.data(), {m, n}), beyond, of_b, 1.0f);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = static_cast<double>(before[static_cast<std::size_t>(i * n + j)]);
      for (std::int64_t l = 0; l < k; ++l)
        sum += rounded<hd::float8_e5m2>(a[static_cast<std::size_t>(ta ? l * m + i : i * k + l)], beyond) *
               rounded<hd::float8_e4m3>(b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)], of_b);
      CHECK(static_cast<double>(c[static_cast<std::size_t>(i * n + j)]) == Approx(sum).epsilon(1e-6).margin(1e-6));
    }
}

// The same where each row of op(a) and each column of op(b) has a scale.
template <transpose TA, transpose TB>
void check_rows() {
  constexpr std::int64_t m = 5, k = 7, n = 3;
  constexpr bool ta = TA == transpose::yes, tb = TB == transpose::yes;
  auto a = numbers(m * k, 4, 3.0);
  const auto b = numbers(k * n, 5, 0.01);
  const auto of_a = [&](std::int64_t i, std::int64_t l) -> float& {
    return a[static_cast<std::size_t>(ta ? l * m + i : i * k + l)];
  };
  const auto of_b = [&](std::int64_t l, std::int64_t j) {
    return b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)];
  };
  for (std::int64_t l = 0; l < k; ++l) of_a(1, l) *= 1000, of_a(3, l) = 0;  // rows of other sizes
  const hd::matrix_view<const float> left(a.data(), {ta ? k : m, ta ? m : k}),
      right(b.data(), {tb ? n : k, tb ? k : n});
  rows_backend backend{1};
  std::vector<float> greatest(m + n);
  const std::span<float> rows(greatest.data(), m), columns(greatest.data() + m, n);
  backend.greatest_of_rows<TA>(left, rows);
  backend.greatest_of_rows<tb ? transpose::no : transpose::yes>(right, columns);
  auto c = numbers(m * n, 6, 1.0);
  const auto before = c;
  backend.scaled_matmul<TA, TB, float8_operand::gradient, float8_operand::value>(
      left, right, hd::matrix_view<float>(c.data(), {m, n}), rows, columns, 1.0f);
  const auto scale_of = [](double most) { return std::exp2(std::floor(std::log2(448.0 / std::max(most, 1e-12)))); };
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double most_a = 0, most_b = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        most_a = std::max(most_a, std::abs(static_cast<double>(of_a(i, l))));
        most_b = std::max(most_b, std::abs(static_cast<double>(of_b(l, j))));
      }
      CHECK(static_cast<double>(rows[static_cast<std::size_t>(i)]) == most_a);
      CHECK(static_cast<double>(columns[static_cast<std::size_t>(j)]) == most_b);
      double sum = static_cast<double>(before[static_cast<std::size_t>(i * n + j)]), size = std::abs(sum);
      for (std::int64_t l = 0; l < k; ++l) {
        const double sa = scale_of(most_a), sb = scale_of(most_b);
        const auto x = static_cast<float>(hd::float8_e4m3(static_cast<float>(of_a(i, l) * sa)));
        const auto y = static_cast<float>(hd::float8_e4m3(static_cast<float>(of_b(l, j) * sb)));
        const double product = static_cast<double>(x) / sa * static_cast<double>(y) / sb;
        sum += product;
        size += std::abs(product);
      }
      CHECK(std::abs(static_cast<double>(c[static_cast<std::size_t>(i * n + j)]) - sum) <= 1e-6 * size);
    }
}

std::vector<float> golden(const std::string& section) {
  std::ifstream in(HEDDLE_SOURCE_DIR "/tests/golden/float8_golden.txt");
  std::string name;
  std::size_t lines = 0;
  while (in >> name && name != section) {
  }
  in >> lines >> std::hex;
  std::vector<float> all(lines);
  for (float& x : all) {
    std::uint32_t bits = 0;
    in >> bits;
    x = __builtin_bit_cast(float, bits);
  }
  REQUIRE(in);
  return all;
}

struct found {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
  std::array<std::int64_t, 3> reduced{};  // all_reduces of forward, backward_input and backward_weight
  [[maybe_unused]] friend auto members(found& f) { return std::tie(f.loss, f.gradients, f.reduced); }
};
template <class Backend>
found step(int parts) {
  const md::gpt2_config c{
      .layers = 2, .heads = 4, .width = 12, .context = 5, .vocabulary = 17, .initial_deviation = 0.3};
  const auto tokens = random_ids(15, 17, 1), targets = random_ids(15, 17, 2);
  const md::batch<float> batch{tokens, targets, 3, 1.0f / 15};
  found all;
  std::mutex guard;
  hd::launch<hd::threads>(any_mesh(1, 1, parts), [&](auto& world) {
    Backend kernels{1};
    typename gpt2::template stage<std::remove_cvref_t<decltype(world)>, Backend> s(c, world, kernels,
                                                                                   md::split_layers(2, 0, 1), 1, 3, 1);
    s.initialize(11);
    auto& group = world.template along<tp>();
    std::array<std::int64_t, 4> calls{};
    const auto count = [&](std::size_t at) { calls[at] = group.counters()[hd::comm_operation::all_reduce].calls; };
    count(0);
    s.forward(0, batch, {}, {});
    count(1);
    s.backward_input(0, batch, {}, {});
    count(2);
    s.backward_weight(0, batch);
    count(3);
    const std::lock_guard lock(guard);
    if (world.rank() == 0) {
      all.loss = s.loss_sum(0);
      for (std::size_t i = 0; i < 3; ++i) all.reduced[i] = calls[i + 1] - calls[i];
    }
    const std::vector<double> gradients(s.gradients().begin(), s.gradients().end());
    for (const md::parameter& p : s.parameters())
      if (p.counted) scatter_into(all.gradients.try_emplace(p.name, whole_of(p)).first->second, p, gradients);
  });
  return all;
}

}  // namespace

TEST_CASE("a product in 8 bits is that of its scaled and rounded operands", "[compute][float8]") {
  check_product<transpose::no, transpose::no>();
  check_product<transpose::no, transpose::yes>();
  check_product<transpose::yes, transpose::no>();
  const std::vector<float> x{0.5f, -3.0f, std::numeric_limits<float>::quiet_NaN()}, zero(2);
  CHECK(float8_backend::greatest({x.data(), {1, 3}}) == 3.0f);
  CHECK(float8_backend::greatest({x.data(), {0, 3}}) == 0.0f);
  CHECK(hd::compute::float8_scale<hd::float8_e4m3>(2.0f) == 224.0f);
  CHECK(hd::compute::float8_scale<hd::float8_e5m2>(0.0f) == static_cast<float>(57344e12));  // not by zero
  // A NaN is one behind the product, and zeros are zeros.
  float8_backend backend{1};
  const std::vector<float> ones(3, 1.0f);
  float c = 0;
  backend.scaled_matmul<transpose::no, transpose::no, float8_operand::value, float8_operand::value>(
      {x.data(), {1, 3}}, {ones.data(), {3, 1}}, hd::matrix_view<float>(&c, {1, 1}), 3.0f, 1.0f);
  CHECK(std::isnan(c));
  backend.scaled_matmul<transpose::no, transpose::no, float8_operand::value, float8_operand::value>(
      {zero.data(), {1, 2}}, {ones.data(), {2, 1}}, hd::matrix_view<float>(&c, {1, 1}), 0.0f, 1.0f);
  CHECK(c == 0.0f);
}

TEST_CASE("a product in 8 bits with a scale for each row is that of its rounded operands", "[compute][float8]") {
  check_rows<transpose::no, transpose::no>();
  check_rows<transpose::no, transpose::yes>();
  check_rows<transpose::yes, transpose::no>();
  CHECK(hd::compute::float8_power_of_two<hd::float8_e4m3>(2.0f) == 128.0f);
  CHECK(hd::compute::float8_power_of_two<hd::float8_e4m3>(448.0f) == 1.0f);
  CHECK(hd::compute::float8_power_of_two<hd::float8_e4m3>(449.0f) == 0.5f);
  using rows_strategy = hd::strategy<hd::mesh<>, hd::precision<hd::products_in<hd::float8_rows>>>;
  STATIC_REQUIRE(std::is_same_v<rows_strategy::backend, rows_backend>);
}
// Sums in another order: 1e-6 of the greatest element of a row.
TEST_CASE("products in 8 bits are those of PyTorch", "[compute][float8][golden]") {
  const auto a = golden("a"), b = golden("b"), tensor = golden("tensor"), row = golden("row");
  REQUIRE((a.size() == 80 && b.size() == 48 && tensor.size() == 15 && row.size() == 15));
  const hd::matrix_view<const float> left(a.data(), {5, 16}), right(b.data(), {3, 16});
  std::vector<float> c(15), most(8);
  const auto check = [&](const std::vector<float>& expected) {
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t j = 0; j < 3; ++j) {
        float size = 0;
        for (std::size_t l = 0; l < 16; ++l) size += std::abs(a[i * 16 + l] * b[j * 16 + l]);
        CHECK(std::abs(c[i * 3 + j] - expected[i * 3 + j]) <= 1e-6f * size);
      }
  };
  float8_backend whole{1};
  whole.scaled_matmul<transpose::no, transpose::yes, float8_operand::value, float8_operand::value>(
      left, right, hd::matrix_view<float>(c.data(), {5, 3}), whole.greatest(left), whole.greatest(right));
  check(tensor);
  rows_backend by_rows{1};
  const std::span<float> rows(most.data(), 5), columns(most.data() + 5, 3);
  by_rows.greatest_of_rows<transpose::no>(left, rows);
  by_rows.greatest_of_rows<transpose::no>(right, columns);
  by_rows.scaled_matmul<transpose::no, transpose::yes, float8_operand::value, float8_operand::value>(
      left, right, hd::matrix_view<float>(c.data(), {5, 3}), rows, columns);
  check(row);
}
TEST_CASE("a stage in 8 bits with scales of rows has the same whether its tensors are split", "[model][float8]") {
  const found alone = step<rows_backend>(1);
  for (const int parts : {2, 3}) {
    CAPTURE(parts);
    const found split = step<rows_backend>(parts);
    CHECK(split.loss == Approx(alone.loss).epsilon(1e-4));
    for (const auto& [name, expected] : alone.gradients) {
      CAPTURE(name);
      auto wanted = expected, got = split.gradients.at(name);
      wanted.push_back(1e-2), got.push_back(1e-2);
      CHECK(relative_error(got, wanted) < 0.05);
    }
    // Less than with scales of tensors: of each block only the two products whose sums are split, forward; backward the two whose outputs were.
    CHECK(split.reduced == std::array<std::int64_t, 3>{2 * 4 + 1 + 3, 2 * 4 + 1, 0});
  }
}

TEST_CASE("a stage in 8 bits whose tensors are split has the scales of one rank", "[model][float8]") {
  const found alone = step<float8_backend>(1);
  CHECK(alone.reduced == std::array<std::int64_t, 3>{0, 0, 0});
  for (const int parts : {2, 3}) {  // 4 heads over 3 ranks: uneven
    CAPTURE(parts);
    const found split = step<float8_backend>(parts);
    CHECK(split.loss == Approx(alone.loss).epsilon(1e-4));
    REQUIRE(split.gradients.size() == alone.gradients.size());
    for (const auto& [name, expected] : alone.gradients) {
      CAPTURE(name);
      // A sum in another order may round to the next number of 8 bits.
      auto wanted = expected, got = split.gradients.at(name);
      wanted.push_back(1e-2), got.push_back(1e-2);
      CHECK(relative_error(got, wanted) < 0.03);
    }
    // Two blocks: two sums and four products each, forward and backward; four products more for the weights. The embedding's sum, the
    // three of the loss, the head's.
    CHECK(split.reduced == std::array<std::int64_t, 3>{2 * 6 + 1 + 3, 2 * 6 + 1, 2 * 4});
  }
}
