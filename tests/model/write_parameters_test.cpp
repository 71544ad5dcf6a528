// Weights of a stage written as named tensors: each element once over all ranks, transposed where the sink has it so, from any memory.
#include "catch.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/write_parameters.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;

namespace {

using any_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using backend = hd::compute::host<>;
const md::gpt2_config config{.layers = 3, .heads = 4, .width = 12, .context = 5, .vocabulary = 31};

// Tensors in memory, read and written in parts by many ranks.
struct tensors {
  struct one {
    std::vector<std::int64_t> extents;
    std::vector<double> values{};
    std::vector<int> writes{};
    std::string name{};
    std::mutex* lock = nullptr;

    std::span<const std::int64_t> shape() const { return extents; }
    std::string where() const { return "tensor '" + name + "'"; }
    void read(std::int64_t first, std::span<double> out) const {
      std::copy_n(values.begin() + first, out.size(), out.begin());
    }
    void put(std::int64_t first, std::span<const double> from) {
      const std::scoped_lock hold(*lock);
      for (std::size_t i = 0; i < from.size(); ++i) {
        values.at(static_cast<std::size_t>(first) + i) = from[i];
        ++writes[static_cast<std::size_t>(first) + i];
      }
    }
  };
  struct output {
    one* to;
    std::span<const std::int64_t> shape() const { return to->extents; }
    std::string where() const { return to->where(); }
    void write(std::int64_t first, std::span<const double> from) { to->put(first, from); }
  };

  std::map<std::string, one, std::less<>> all{};
  std::mutex lock{};

  explicit tensors(bool turned) {
    for (const md::parameter_outline& p : md::parameter_outlines(md::describe_gpt2(config))) {
      one t;
      t.extents = p.shape;
      t.name = p.name;
      t.lock = &lock;
      std::int64_t n = 1;
      for (const std::int64_t e : p.shape) n *= e;
      if (turned && p.shape.size() == 2) std::swap(t.extents[0], t.extents[1]);
      t.values.resize(static_cast<std::size_t>(n));
      t.writes.resize(static_cast<std::size_t>(n));
      all.emplace(p.name, std::move(t));
    }
  }
  bool contains(std::string_view name) const { return all.find(name) != all.end(); }
  const one& tensor(std::string_view name) const { return all.find(name)->second; }
  output tensor(std::string_view name) { return {&all.find(name)->second}; }
};

template <class Backend>
void write(const any_mesh& mesh, tensors& to, bool turned) {
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    Backend kernels{1};
    typename md::gpt2<double>::stage<std::remove_cvref_t<decltype(world)>, Backend> s(
        config, world, kernels,
        md::split_layers(config.layers, world.template coordinate<pp>(), mesh.template extent<pp>()), 1, 1);
    s.initialize(5);
    md::write_parameters(s, world, to, [&](std::string_view name) -> md::source_name {
      const bool matrix = to.all.find(name)->second.extents.size() == 2;
      return {std::string(name), turned && matrix ? hd::stored_as::transposed : hd::stored_as::is};
    });
  });
}

}  // namespace

TEST_CASE("over all ranks each element of a model is written once", "[model][write]") {
  tensors serial(false);
  write<backend>(any_mesh(1, 1, 1), serial, false);
  for (const any_mesh& mesh : {any_mesh(1, 1, 1), any_mesh(1, 1, 2), any_mesh(1, 1, 3), any_mesh(3, 1, 1),
                               any_mesh(1, 2, 1), any_mesh(2, 2, 2), any_mesh(1, 1, 5)})
    for (const bool turned : {false, true}) {
      CAPTURE(mesh.extents(), turned);
      tensors got(turned);
      write<backend>(mesh, got, turned);
      for (const auto& [name, t] : got.all) {
        CAPTURE(name);
        CHECK(std::count(t.writes.begin(), t.writes.end(), 1) == static_cast<std::ptrdiff_t>(t.writes.size()));
        const auto& expected = serial.all.at(name);
        std::vector<double> values = t.values;
        if (turned && t.extents.size() == 2)
          for (std::int64_t i = 0; i < t.extents[0]; ++i)
            for (std::int64_t k = 0; k < t.extents[1]; ++k)
              values[static_cast<std::size_t>(k * t.extents[0] + i)] =
                  t.values[static_cast<std::size_t>(i * t.extents[1] + k)];
        CHECK(values == expected.values);
      }
    }
}

TEST_CASE("weights are written from memory that the host may not touch", "[model][write]") {
  tensors serial(false), got(false);
  write<backend>(any_mesh(1, 1, 1), serial, false);
  write<hd::testing::checked_backend<backend>>(any_mesh(2, 1, 2), got, false);
  for (const auto& [name, t] : got.all) CHECK(t.values == serial.all.at(name).values);
}

TEST_CASE("a tensor of another shape is refused by name", "[model][write]") {
  tensors to(false);
  to.all.at("h.1.mlp.c_fc.weight").extents = {48, 12};
  CHECK_THROWS_WITH(write<backend>(any_mesh(1, 1, 1), to, false),
                    Catch::Matchers::Contains("tensor 'h.1.mlp.c_fc.weight'") &&
                        Catch::Matchers::Contains("has the shape [12,48], the tensor [48,12]"));
}

TEST_CASE("rows are read in an order within the part of a tensor that they are", "[model][write]") {
  const md::parameter p{
      .name = "w", .shape = {3, 4}, .logical = {3, 4}, .local = {2, 3}, .start = {1, 1}, .offset = 0, .count = 6};
  tensors::one tensor;
  tensor.extents = {9, 4};
  for (int i = 0; i < 36; ++i) tensor.values.push_back(i);
  md::source_name from{"w", hd::stored_as::is, md::rows_in_tensor::all, {2, 0, 1}};
  for (const auto& [rows, begin] :
       {std::pair(md::rows_in_tensor::first, 0), std::pair(md::rows_in_tensor::before_last, 3),
        std::pair(md::rows_in_tensor::last, 6)}) {
    CAPTURE(begin);
    from.rows = rows;
    std::vector<double> got(6), runs, expected;
    for (const int row : {0, 1})  // of rows 1 and 2 the columns from 1 on
      for (const int column : {1, 2, 3}) expected.push_back(4 * (begin + row) + column);
    md::detail::read_part(tensor, p, from, std::span(got));
    CHECK(got == expected);
    md::for_each_read(tensor, p, from, [&](std::int64_t first, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) runs.push_back(static_cast<double>(first + i));
    });
    CHECK(runs == expected);
  }
  using order = std::vector<std::int64_t>;
  using Catch::Matchers::Contains;
  const auto read = [&](const order& o) {
    from.order = o;
    std::vector<double> got(6);
    md::detail::read_part(tensor, p, from, std::span(got));
  };
  CHECK_THROWS_WITH(read({2, 0, 0}),
                    Contains("'w' is read in an order that names each of its 3 rows once, got row 0 twice"));
  CHECK_THROWS_WITH(read({3, 0, 1}), Contains("each of its 3 rows once, got row 3"));
  CHECK_THROWS_WITH(read({0, -1, 1}), Contains("each of its 3 rows once, got row -1"));
  CHECK_THROWS_WITH(read({0, 1}), Contains("in an order of its 3 rows"));
}
