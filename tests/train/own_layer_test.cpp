// A layer of one's own whose activation is called by its tag: saved or computed again, on any mesh, it trains what one rank trains.
#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/layers/norms.hpp>
#include <heddle/model/layers/readouts.hpp>
#include <heddle/model/network.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/make_trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace ly = heddle::model::layers;
namespace dim = heddle::dim;
using hd::dp, hd::pp, md::dims;

namespace {

struct squares : ly::by_tag {};

// y = w x^2, number by number; the squares are kept.
struct weighted_square : ly::leaf {
  using width_dims = dims<dim::width>;
  const char* name;
  std::int64_t width;
  constexpr weighted_square(const char* called, std::int64_t numbers) : name(called), width(numbers) {}

  constexpr auto parameters() const {
    return ly::list(ly::parameter<ly::weight, width_dims>{"weight", {width}, 0.3, 0.5});
  }
  constexpr auto activations() const {
    return ly::list(ly::activation<squares, ly::life::until_weight, width_dims>{{width}});
  }
  template <class B>
  using edge = typename B::layouts::template edge<width_dims>;

  template <class B>
  auto forward(const B& b, typename B::const_view x, typename B::view y) const {
    b.make(squares{}, [&](auto to) {
      const auto from = elements_of(x);
      const auto out = elements_of(to);
      for (std::size_t i = 0; i < from.size(); ++i) out[i] = from[i] * from[i];
    });
    b.give(y, [&](auto to) {
      const auto w = b.vector(ly::weight{});
      const auto kept = b.vector(squares{}), out = elements_of(to);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = kept[i] * w[i % w.size()];
    });
    return ly::made<edge<B>>{};
  }
  template <class B>
  auto backward_input(const B& b, typename B::const_view x, typename B::const_view dy, typename B::view dx) const {
    const auto from = elements_of(x), d = elements_of(dy), w = b.vector(ly::weight{});
    const auto out = elements_of(dx);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = 2 * from[i] * w[i % w.size()] * d[i];
    return ly::made<hd::dual<edge<B>>>{};
  }
  template <class B>
  void backward_weight(const B& b, typename B::const_view, typename B::const_view dy) const {
    const auto kept = b.vector(squares{});
    const auto d = elements_of(dy);
    const auto sum = b.gradient_vector(ly::weight{});
    for (std::size_t i = 0; i < d.size(); ++i) sum[i % sum.size()] += kept[i] * d[i];
  }
};

struct net : md::described<net, double, md::pair_batch<double>, md::network_config> {
  static auto describe(const config& c) {
    using in = ly::linear<dims<dim::features>, dims<dim::width>>;
    using out = ly::linear<dims<dim::width>, dims<dim::outputs>>;
    return ly::network(in("in", {c.inputs}, {c.width}, 0.5), "block.", c.layers,
                       ly::residual(ly::layer_norm<>("norm", c.width, 1e-5), weighted_square("square", c.width)),
                       ly::squared_error(out("out", {c.width}, {c.outputs}, 0.3)));
  }
};

struct outcome {
  std::vector<double> losses;
  std::int64_t saved = 0;
};
template <class Activations>
outcome train(const std::string& mesh_text, const std::string& again) {
  using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>>;
  using strategy = hd::strategy<mesh_type, hd::zero<1>, Activations>;
  static const std::vector<double> x = [] {
    std::vector<double> all;
    for (int i = 0; i < 51; ++i) all.push_back(0.1 * (i * 7 % 20) - 1);
    return all;
  }();
  const hd::io::pairs<double, double> data(x, x, {.inputs = 3, .targets = 3, .validation = 0.2, .seed = 3});
  hd::train::options<net::config> o;
  o.model = {.inputs = 3, .outputs = 3, .layers = 4, .width = 8};
  o.batch = 6;
  o.microbatches = 2;
  o.steps = 4;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  o.recompute = again;
  outcome all;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(net{}, world, o);
    outcome mine;
    trainer.run(data, [&](const hd::train::step_report& r) { mine.losses.push_back(r.loss); });
    mine.losses.push_back(trainer.validate(data));
    mine.saved = trainer.activation_bytes().saved;
    if (world.rank() == 0) all = mine;
  });
  return all;
}

}  // namespace

TEST_CASE("a layer with an activation that is called by its tag trains on any mesh, saved or computed again",
          "[train][layers]") {
  const outcome one = train<hd::activations::keep>("dp=1", "");
  REQUIRE(one.losses.size() == 5);
  CHECK(one.losses.front() > 1.01 * one.losses[3]);
  for (const char* const mesh : {"dp=1", "dp=2", "pp=2", "dp=2,pp=2"}) {
    CAPTURE(mesh);
    const outcome kept = train<hd::activations::keep>(mesh, "");
    const outcome named = train<hd::activations::recompute<>>(mesh, "squares");
    const outcome all = train<hd::activations::recompute<>>(mesh, "full");
    CHECK(named.losses == kept.losses);
    CHECK(all.losses == kept.losses);
    CHECK(named.saved < kept.saved);
    REQUIRE(kept.losses.size() == one.losses.size());
    for (std::size_t i = 0; i < one.losses.size(); ++i) CHECK(kept.losses[i] == Approx(one.losses[i]).epsilon(1e-12));
  }
}

TEST_CASE("names that no layer has are refused with those that there are", "[train][layers]") {
  CHECK_THROWS_WITH((train<hd::activations::recompute<>>("dp=1", "cubes")),
                    Catch::Matchers::Contains("heddle: recompute \"cubes\"") && Catch::Matchers::Contains("squares"));
}

TEST_CASE("activations that are called by their tags are read and printed by name", "[model][recompute]") {
  const md::own_activations own = md::own_activations_of(net::describe({}));
  REQUIRE(own.count == 1);
  CHECK(own.names[0] == "squares");
  const md::recompute_plan plan = md::parse_recompute("squares,mid", own);
  CHECK(plan.of_block(0) == (own.find("squares") | md::activation_named("mid")));
  CHECK(md::to_string(plan, own) == "mid,squares");
  CHECK(md::parse_recompute(md::to_string(plan, own), own) == plan);
  CHECK_THROWS_WITH(md::parse_recompute("squares"), Catch::Matchers::Contains("derived from by_tag"));
}
