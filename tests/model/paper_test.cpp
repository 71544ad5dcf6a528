// tests/model/paper_test.cpp: stages on paper: calls, bytes, operations and memory of published models on meshes that nobody has here.
#include "catch.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/compute/kernels.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/paper/backend.hpp>
#include <heddle/model/paper/memory.hpp>
#include <heddle/model/paper/trace.hpp>
#include <heddle/model/paper/world.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/train/measure_layers.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {
namespace paper_test {

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using world_type = md::paper_world<mesh_type>;
using backend_type = md::paper_backend<hd::compute::host<>>;
using model = md::llama<float>;

static_assert(hd::memory_space<md::paper_memory> && hd::communicator<world_type::communicator>);
static_assert(hd::sends_in_order_of<world_type::communicator, md::paper_memory::queue>);
static_assert(hd::compute::kernel_set<backend_type> &&
              hd::compute::norm_onto_facet::offered<backend_type, float> ==
                  hd::compute::norm_onto_facet::offered<hd::compute::host<>, float> &&
              hd::compute::offered<hd::compute::fused_product_facet, backend_type, float> ==
                  hd::compute::offered<hd::compute::fused_product_facet, hd::compute::host<>, float>);

struct nowhere {};
struct verb {
  std::int64_t calls = 0, bytes = 0, flops = 0;
};
struct of_stage {
  std::array<verb, 3> verbs;  // forward, backward_input, backward_weight
  std::int64_t held = 0;
};

// One sample through the first rank of a stage.
of_stage run(const md::llama_config& c, const mesh_type& mesh, int part) {
  const int stages = mesh.extent<pp>();
  world_type world(mesh, mesh.rank_of({0, part, 0}));
  backend_type kernels;
  model::stage<world_type, backend_type> stage(c, world, kernels, model::layers_of(c, part, stages), 1, 1, 1);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(c.context));
  model::batch batch{};
  batch.tokens = tokens;
  batch.targets = tokens;
  batch.samples = 1;
  const std::int64_t n = stage.boundary_elements(1);
  hd::buffer<float, md::paper_memory> in(kernels.queue(), n), out(kernels.queue(), n);
  of_stage all;
  const auto take = [&](std::size_t which) {
    for (const md::axis_traffic& t : world.traffic()) {
      CHECK(t.axes == "tp");
      all.verbs[which].calls += t.counters.collectives();
      all.verbs[which].bytes += t.counters[hd::comm_operation::all_reduce].bytes;
    }
    all.verbs[which].flops = kernels.trace().flops();
    world.clear();
    kernels.trace().clear();
  };
  stage.forward(0, batch, in.view(), out.view());
  take(0);
  stage.backward_input(0, batch, out.view(), in.view());
  take(1);
  stage.backward_weight(0, batch);
  take(2);
  all.held = kernels.queue().bytes();
  return all;
}
double flops_of_all(const md::llama_config& c, const mesh_type& mesh) {
  double flops = 0;
  for (int part = 0; part < mesh.extent<pp>(); ++part)
    for (const verb& v : run(c, mesh, part).verbs) flops += static_cast<double>(v.flops);
  return flops * mesh.extent<tp>();
}

TEST_CASE("a Llama 2 7B on paper sends what its sharding says, and computes what its configuration says",
          "[model][paper]") {
  const md::llama_config c = md::llama2_7b();
  const of_stage first = run(c, hd::parse_mesh<mesh_type>("dp=2,pp=2,tp=8"), 0);
  CHECK(first.verbs[0].calls == 33);             // two for each of 16 blocks, one for the embedding
  CHECK(first.verbs[0].bytes == 2'214'592'512);  // 33 x 4096 x 4096 floats
  CHECK(first.verbs[1].calls == 32);
  CHECK(first.verbs[1].bytes == 2'147'483'648);
  CHECK(first.verbs[2].calls == 0);
  CHECK(first.verbs[2].bytes == 0);
  for (const char* mesh : {"", "tp=8", "pp=4", "pp=2,tp=4"})
    CHECK(flops_of_all(c, hd::parse_mesh<mesh_type>(mesh)) == c.flops_per_token() * c.context);
}

TEST_CASE("a rank of each stage of a 70B on 16,384 ranks is looked at in no time", "[model][paper]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=128,pp=16,tp=8");
  const auto start = std::chrono::steady_clock::now();
  const double flops = flops_of_all(md::llama2_70b(), mesh);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("16 stages of a 70B on 16,384 ranks: %.3f s\n", seconds.count());
  CHECK(flops == md::llama2_70b().flops_per_token() * md::llama2_70b().context);
}

TEST_CASE("operations of attention on paper are those of its mask", "[model][paper]") {
  backend_type kernels;
  hd::buffer<hd::compute::attention_slice, md::paper_memory> slices(kernels.queue(), 3);
  hd::buffer<float, md::paper_memory> x(kernels.queue(), 8 * 6), lse(kernels.queue(), 8 * 2);
  const hd::compute::head_rows<float, md::paper_memory> out{x.address(), 8, 2, 3, 6};
  const hd::compute::head_rows<const float, md::paper_memory> q = out;
  const auto flops = [&] {
    kernels.trace().clear();
    hd::compute::run<hd::compute::ops::attention>(kernels, q, q, q, slices.view(), 1.0f, out, lse.view(),
                                                  hd::compute::key_pages_in<md::paper_memory>{});
    return kernels.trace().flops();
  };
  CHECK(flops() == 2 * 3 * (2 * 3 / 2) * 2 * 6);  // unknown: equal causal sequences
  using hd::compute::slice_mask;
  const std::vector<hd::compute::attention_slice> masks{
      {0, 4, 0, 4, slice_mask::full}, {4, 8, 4, 8, slice_mask::causal}, {4, 8, 0, 4, slice_mask::inverse_causal}};
  kernels.queue().copy(std::span<const hd::compute::attention_slice>(masks), slices);
  CHECK(flops() == 2 * (16 + 10 + 10) * 2 * 6);
}

TEST_CASE("memory on paper is counted, and none of it is there", "[model][paper]") {
  md::paper_memory::queue queue;
  {
    auto beside = queue.beside();
    hd::buffer<double, md::paper_memory> a(queue, std::int64_t{1} << 40), b(beside, 3);
    CHECK(a.address() != b.address());
    CHECK(queue.bytes() == (std::int64_t{1} << 43) + 24);
    const hd::buffer<double, md::paper_memory> moved = std::move(a);
    CHECK(queue.bytes() == (std::int64_t{1} << 43) + 24);
    std::vector<double> here(3, 1.0);
    queue.copy(b, here);
    CHECK(here == std::vector<double>(3, 0.0));
    here.resize(4);
    CHECK_THROWS_AS(queue.copy(b, here), hd::layout_error);
  }
  CHECK(queue.bytes() == 0);
  CHECK(queue.most_bytes() == (std::int64_t{1} << 43) + 24);
}

TEST_CASE("a paper world is a rank of its mesh, whose peers give what it gives", "[model][paper]") {
  const auto mesh = hd::parse_mesh<mesh_type>("dp=2,pp=3,tp=4");
  CHECK_THROWS_WITH(world_type(mesh, 24), Catch::Matchers::Contains("0 to 23; got 24"));
  CHECK_THROWS_AS(world_type(mesh, -1), hd::mesh_error);
  world_type world(mesh, 23);
  CHECK(world.along_if<tp>().rank() == 3);
  CHECK(world.along_if<dp, tp>().size() == 8);
  CHECK(world.along_if<nowhere>().size() == 1);
  std::vector<int> all(8), mine{1, 2}, part(2);
  auto& group = world.along_if<tp>();
  group.all_gather(mine, all);
  CHECK(all == std::vector<int>{1, 2, 1, 2, 1, 2, 1, 2});
  group.reduce_scatter_v(all, part, std::vector<std::int64_t>{2, 2, 2, 2}, hd::plus{});
  CHECK(part == mine);
  group.all_to_all_v(mine, std::vector<std::int64_t>{2, 0, 0, 0}, part, std::vector<std::int64_t>{2, 0, 0, 0});
  group.all_reduce(mine, hd::plus{});
  CHECK(mine == std::vector<int>{1, 2});
  const auto traffic = world.traffic();
  REQUIRE(traffic.size() == 3);
  CHECK(traffic[0].axes == "tp");
  CHECK(traffic[1].axes == "dp,tp");
  CHECK(traffic[2].axes == "self");
  CHECK(traffic[0].counters[hd::comm_operation::all_gather].bytes == 8);
  CHECK(traffic[0].counters[hd::comm_operation::reduce_scatter_v].bytes == 32);
  CHECK(traffic[0].counters.collectives() == 4);
}

TEST_CASE("one rank's share of a mesh is measured with kernels that compute", "[model][paper]") {
  const md::llama_config c{
      .layers = 2, .heads = 8, .kv_heads = 8, .width = 64, .ffn = 160, .context = 16, .vocabulary = 1000};
  for (const char* of : {"tp=1", "tp=4"}) {
    md::paper_world world(hd::parse_mesh<mesh_type>(of), 0);
    hd::compute::host<> kernels(1);
    const auto whole = hd::train::measure_layer_costs<model>(world, c, kernels, 2, 1);
    const std::int64_t calls = world.traffic().empty() ? 0 : world.traffic()[0].counters.collectives();
    const auto verbs = hd::train::measure_verb_costs<model>(world, c, kernels, 2, 1);
    CHECK(whole.layers.size() == 2);
    for (const auto* costs : {&whole, &verbs.forward, &verbs.backward_input, &verbs.backward_weight}) {
      CHECK(costs->layers[0] > 0);
      CHECK(costs->last > 0);
    }
    CHECK((calls > 0) == (std::string(of) != "tp=1"));
    if (calls > 0) CHECK(world.traffic()[0].counters.collectives() == 2 * calls);  // the same again
  }
}

}  // namespace paper_test
}  // namespace
