// The first weights, whatever the mesh and the number of threads that draw them.
#include "catch.hpp"

#include <heddle/core/random.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/parameters.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
using mesh = hd::mesh<hd::axis<hd::tp, 3>>;
using rows = hd::layout<mesh, hd::shard<0, hd::tp>>;
using columns = hd::layout<mesh, hd::shard<1, hd::tp>>;
constexpr std::array<std::int64_t, 2> extents{11, 7};

md::parameter named(int id, double mean, double deviation) {
  md::parameter p;
  p.name = std::to_string(id);
  p.id = id;
  p.shape = {extents[0], extents[1]};
  p.initial_mean = mean;
  p.initial_deviation = deviation;
  return p;
}

template <class T>
md::parameter_store<T> drawn_by(int rank, int threads) {
  md::parameter_store<T> store;
  store.add(named(3, 0.5, 2), extents, rows{}, rank);
  store.add(named(4, 1, 0), extents, columns{}, rank);
  store.add(named(9, 0, 0.02), extents, columns{}, rank);
  store.allocate();
  std::fill(store.weights().begin(), store.weights().end(), T{7});
  store.initialize(5, threads);
  return store;
}

}  // namespace

TEMPLATE_TEST_CASE("first weights are those of their place in the whole, by any number of threads", "[model]", double,
                   float) {
  for (int rank = 0; rank < 3; ++rank)
    for (const int threads : {0, 1, 2, 3, 7, 64, 500}) {
      CAPTURE(rank, threads);
      auto store = drawn_by<TestType>(rank, threads);
      std::vector<bool> drawn(static_cast<std::size_t>(store.size()));
      for (const md::parameter& p : store.table()) {
        const hd::counter_random random(5, static_cast<std::uint64_t>(p.id));
        REQUIRE(p.count == p.local[0] * p.local[1]);
        for (std::int64_t i = 0; i < p.local[0]; ++i)
          for (std::int64_t j = 0; j < p.local[1]; ++j) {
            const std::int64_t whole = (p.start[0] + i) * extents[1] + p.start[1] + j;
            const auto at = static_cast<std::size_t>(p.offset + i * p.local[1] + j);
            const double normal = p.initial_deviation > 0 ? random.normal(static_cast<std::uint64_t>(whole)) : 0.0;
            REQUIRE(store.weights()[at] == static_cast<TestType>(p.initial_mean + p.initial_deviation * normal));
            drawn[at] = true;
          }
      }
      for (std::size_t k = 0; k < drawn.size(); ++k)
        if (!drawn[k]) REQUIRE(store.weights()[k] == TestType{7});  // between parameters: as it was
    }
}
