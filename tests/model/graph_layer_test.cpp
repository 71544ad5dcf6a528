// A layer of a graph network: gradients, the same bits on any number of ranks, and graphs that are refused.
#include <heddle/compute/host/host.hpp>
#include <heddle/model/graph_layer.hpp>
#include <heddle/model/recurrent_fold.hpp>

#include "catch.hpp"
#include "model/support.hpp"
#include "transport.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {
namespace graph {
namespace hd = heddle;
namespace md = heddle::model;
using line = hd::mesh<hd::axis<hd::dp>>;
using host = hd::compute::host<hd::compute::portable>;
using Catch::Matchers::Contains;

// Node 3 and the last one hear of nobody, node 5 of itself, node 6 of node 2 twice.
struct whole_graph {
  std::int64_t nodes = 11;
  std::vector<std::int64_t> row_pointer{0, 3, 4, 9, 9, 11, 13, 17, 18, 25, 26, 26};
  std::vector<std::int64_t> sources{1, 4, 10, 0, 0, 3, 5, 7, 9, 8, 10, 1, 5, 2, 2, 6, 9, 0, 1, 2, 4, 6, 7, 8, 10, 3};
};
constexpr md::graph_layer_config sizes{.inputs = 3, .width = 4, .outputs = 5};

struct outcome {
  std::vector<double> out, d_h, gradients;
};

template <class Layer>
void set_random(Layer& layer) {
  for (std::size_t i = 0; i < layer.parameters().table().size(); ++i) {
    const auto values = model_test::random_vector(layer.parameters().table()[i].count, 300 + i, 0.6);
    std::copy(values.begin(), values.end(), layer.parameters().weight(i).begin());
  }
}

hd::matrix_view<double> rows_of(std::vector<double>& x, std::int64_t first, std::int64_t rows, std::int64_t columns) {
  return {x.data() + first * columns, hd::dynamic_shape<2>(rows, columns)};
}

// Values and gradients with nodes cut at `bounds`.
template <class Layer, class Rows = md::rows_together>
outcome on_ranks(const std::vector<std::int64_t>& bounds, std::vector<double> h, std::vector<double> d_out) {
  const whole_graph g;
  outcome all{std::vector<double>(d_out.size()), std::vector<double>(h.size()), {}};
  transport_test::launch(line{static_cast<int>(bounds.size()) - 1}, [&](auto& world) {
    host compute;
    auto& group = world.all();
    const std::int64_t begin = bounds[static_cast<std::size_t>(world.rank())];
    const std::int64_t end = bounds[static_cast<std::size_t>(world.rank()) + 1], n = end - begin;
    std::vector<std::int64_t> own(g.row_pointer.begin() + begin, g.row_pointer.begin() + end + 1);
    const std::vector<std::int64_t> sources(g.sources.begin() + own.front(), g.sources.begin() + own.back());
    for (std::int64_t i = n; i >= 0; --i) own[static_cast<std::size_t>(i)] -= own[0];
    const md::graph_part part(group, bounds, own, sources);
    Layer layer(sizes);
    set_random(layer);
    typename Layer::saved s(part, sizes);
    layer.template forward<Rows>(compute, group, part, s, rows_of(h, begin, n, 3), rows_of(all.out, begin, n, 5));
    layer.backward(compute, group, part, s, rows_of(d_out, begin, n, 5), rows_of(all.d_h, begin, n, 3));
    group.all_reduce(layer.parameters().gradients(), hd::plus{});
    if (world.rank() == 0)
      all.gradients.assign(layer.parameters().gradients().begin(), layer.parameters().gradients().end());
  });
  const auto add = [](auto& sum, const auto& other) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  };
  transport_test::tell(all.gradients, 0);
  transport_test::merge(all.out, add);
  transport_test::merge(all.d_h, add);
  return all;
}

template <class Layer>
void check_layer() {
  const auto h = model_test::random_vector(33, 310), d_out = model_test::random_vector(55, 311);
  const outcome one = on_ranks<Layer>({0, 11}, h, d_out);
  CHECK(std::ranges::count(one.out, 0.0) < 45);
  for (const std::vector<std::int64_t>& bounds :
       {std::vector<std::int64_t>{0, 4, 11}, {0, 0, 7, 11}, {0, 2, 5, 9, 11}, {0, 11, 11, 11}}) {
    if (static_cast<int>(bounds.size()) - 1 > transport_test::most_ranks()) continue;
    INFO("ranks " << bounds.size() - 1);
    const outcome some = on_ranks<Layer>(bounds, h, d_out);
    CHECK(some.out == one.out);  // to the bit
    CHECK(model_test::relative_error(some.d_h, one.d_h) < 1e-12);
    CHECK(model_test::relative_error(some.gradients, one.gradients) < 1e-12);
    CHECK(on_ranks<Layer, md::rows_alone>(bounds, h, d_out).out == one.out);
  }
}

// Central differences through the whole layer, on one rank.
template <class Layer>
void check_differences() {
  const whole_graph g;
  auto h = model_test::random_vector(33, 310);
  auto d_out = model_test::random_vector(55, 311);
  double worst = 1;
  std::string of = "nothing";
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{1}, [&](auto& world) {
    host compute;
    auto& group = world.all();
    const md::graph_part part(group, {0, 11}, g.row_pointer, g.sources);
    Layer layer(sizes);
    set_random(layer);
    typename Layer::saved s(part, sizes);
    std::vector<double> out(55), d_h(33);
    const auto value = [&] {
      layer.forward(compute, group, part, s, rows_of(h, 0, 11, 3), rows_of(out, 0, 11, 5));
      return model_test::dot(out, d_out);
    };
    value();
    layer.backward(compute, group, part, s, rows_of(d_out, 0, 11, 5), rows_of(d_h, 0, 11, 3));
    worst = model_test::difference_error(h, d_h, value);
    of = "h";
    for (std::size_t i = 0; i < layer.parameters().table().size(); ++i) {
      const double error =
          model_test::difference_error(layer.parameters().weight(i), layer.parameters().gradient(i), value);
      if (error > worst) {
        worst = error;
        of = layer.parameters().table()[i].name;
      }
    }
  });
  INFO(of);
  CHECK(worst < 1e-6);
}

std::string refusal(std::vector<std::int64_t> row_pointer, const std::vector<std::int64_t>& sources,
                    std::vector<std::int64_t> bounds = {0, 3}) {
  std::string text;
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{1}, [&](auto& world) {
    try {
      const md::graph_part part(world.all(), std::move(bounds), std::move(row_pointer), sources);
    } catch (const hd::config_error& e) {
      text = e.what();
    }
  });
  return text;
}
}  // namespace graph
}  // namespace

TEST_CASE("a graph layer's gradients are those of central differences", "[model][monoid][graph]") {
  graph::check_differences<graph::md::graph_layer<double>>();
  graph::check_differences<graph::md::graph_layer<double, graph::md::one_order, graph::md::recurrent_fold>>();
}

TEST_CASE("a graph layer has one rank's bits and gradients on any number of ranks", "[model][monoid][graph][ranks]") {
  graph::check_layer<graph::md::graph_layer<double>>();
}

TEST_CASE("a graph that does not fit is refused with the edge, on all ranks", "[model][monoid][graph]") {
  using namespace graph;
  CHECK_THAT(refusal({0, 1, 2, 2}, {2, 3}), Contains("edge 1 comes from node 3 to node 1; the graph has nodes 0 to 2"));
  CHECK_THAT(refusal({0, 1, 2, 2}, {-1, 0}), Contains("edge 0 comes from node -1 to node 0"));
  CHECK_THAT(refusal({0, 0, 3, 3}, {0, 2, 1}),
             Contains("edge 2 from node 1 to node 1 follows one from node 2; the sources of a node must not descend"));
  CHECK_THAT(refusal({0, 2, 1, 2}, {0, 1}), Contains("the row pointer must ascend from 0 to 2 edges for 3 nodes"));
  CHECK_THAT(refusal({0, 1, 2, 3}, {0, 1}), Contains("got 4 entries to 3"));
  CHECK_THAT(refusal({0, 0, 0, 0}, {}, {0, 3, 3}), Contains("bounds must ascend from 0, one for each of 1 ranks"));
  CHECK(refusal({0, 1, 2, 2}, {2, 2}) == "");
  std::vector<std::string> texts(3);
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{3}, [&](auto& world) {
    try {
      const md::graph_part part(world.all(), {0, 1, 2, 3}, {0, 1},
                                std::vector<std::int64_t>{world.rank() == 1 ? std::int64_t{9} : 0});
    } catch (const hd::config_error& e) {
      texts[static_cast<std::size_t>(world.rank())] = e.what();
    }
  });
  CHECK_THAT(texts[0], Contains("graph_part on rank 0: other ranks hold edges that are refused, 1 of them"));
  CHECK_THAT(texts[1], Contains("graph_part on rank 1: edge 0 comes from node 9 to node 1"));
  CHECK(texts[2] != "");
  // Bounds that differ: rank 0 takes node 2 for rank 1's.
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{3}, [&](auto& world) {
    auto& text = texts[static_cast<std::size_t>(world.rank())];
    text = "";
    try {
      const bool first = world.rank() == 0;
      const md::graph_part part(world.all(), {0, 1, first ? 3 : 2, 3}, {0, 1},
                                std::vector<std::int64_t>{first ? std::int64_t{2} : 0});
    } catch (const hd::config_error& e) {
      text = e.what();
    }
  });
  CHECK_THAT(texts[1], Contains("graph_part on rank 1: rank 0 asks for node 2; the nodes here are 1 to 1: bounds"));
  for (const std::size_t r : {0u, 2u})
    CHECK_THAT(texts[r], Contains("other ranks hold edges that are refused, 1 of them"));
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp>>{1}, [&](auto& world) {
    host compute;
    const whole_graph g;
    const md::graph_part part(world.all(), {0, 11}, g.row_pointer, g.sources), small(world.all(), {0, 1}, {0, 0}, {});
    md::graph_layer<double> layer(sizes);
    std::vector<double> h(33), out(55);
    const auto backward = [&](auto& s) {
      layer.backward(compute, world.all(), part, s, rows_of(out, 0, 11, 5), rows_of(h, 0, 11, 3));
    };
    md::graph_layer<double>::saved s(part, sizes), other(small, sizes);
    CHECK_THROWS_WITH(backward(s), Contains("backward needs what forward has saved of 11 nodes and 0 of other ranks"));
    layer.forward(compute, world.all(), small, other, rows_of(h, 0, 1, 3), rows_of(out, 0, 1, 5));
    CHECK_THROWS_WITH(backward(other), Contains("got 4 numbers of messages, expected 44"));
  });
  CHECK_THROWS_WITH(md::graph_layer<double>({.inputs = 2, .width = 0, .outputs = 1}),
                    Contains("inputs, width and outputs must be at least 1, got 2, 0 and 1"));
}
