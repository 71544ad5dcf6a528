// Stages on memory that the host may not touch: the bits of the host's, on several meshes, and what is caught.
#include "catch.hpp"
#include "faults.hpp"
#include "support.hpp"

#include <heddle/compute/host/host.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/pipeline/executor.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/schedule/lower/plan.hpp>
#include <heddle/schedule/generate/zb_h1.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/train/activations/recompute.hpp>

#include <algorithm>
#include <cmath>

using namespace model_test;
namespace act = heddle::activations;
using fault_test::faults;
using hd::testing::checked_memory;

namespace {

using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;
using mesh = hd::mesh<hd::axis<hd::pp>, hd::axis<hd::dp>, hd::axis<hd::tp>>;

// The elements of a row on the host.
template <class Backend, class Row>
auto read(Backend& backend, const Row& row) {
  std::vector<hd::element_of<const Row>> values(static_cast<std::size_t>(row.size()));
  backend.queue().copy(row, values);
  backend.queue().wait();
  return values;
}
// So many numbers in the backend's memory, zeroed.
template <class Backend>
auto room(Backend& backend, std::int64_t n) {
  return hd::buffer<double, typename Backend::space>(backend.queue(), n);
}

// All that a stage computes. Equal results are equal bit by bit.
struct result {
  std::vector<double> losses, gradients, boundary, logits;
  friend bool operator==(const result&, const result&) = default;
};

// Two stages on one rank, one with the embedding and one with the head, and two microbatches of different sizes: one
// through backward, one through both halves of it.
template <class Model, class Policy, class Backend, class World>
result train(const typename Model::config& config, World& world) {
  using stage = md::language_stage<Model, World, Backend, Policy>;
  Backend backend{1};
  const auto part = [&](int s) { return md::split_layers(config.layers, s, 2); };
  stage first(config, world, backend, part(0), 2, 2, 1), last(config, world, backend, part(1), 2, 2, 1);
  for (stage* s : {&first, &last}) {
    s->initialize(3);
    hd::compute::run<hd::compute::ops::scale>(backend, s->weights(),
                                              6.0);  // norms and softmax far from their linear range
    s->zero_gradients();
  }
  const auto stream = first.boundary_elements(2), v = std::int64_t{config.vocabulary};
  auto up = room(backend, stream), down = room(backend, stream), logits = room(backend, 2 * v);
  const auto part_of = [](auto& memory, std::int64_t n) {
    return hd::row_at<typename Backend::space>(memory.address(), n);
  };
  std::vector<std::int32_t> tokens[2], targets[2];
  result r;
  const auto batch = [&](int i) {
    return typename Model::batch{tokens[i], targets[i], 2 - i, 1.0 / 9, i == 0 ? 0 : 3};
  };
  for (int i = 0; i < 2; ++i) {
    const std::int64_t rows = i == 0 ? 2 * config.context : 3;
    tokens[i] = random_ids(rows, config.vocabulary, static_cast<std::uint64_t>(2 * i));
    targets[i] = random_ids(rows, config.vocabulary, static_cast<std::uint64_t>(2 * i + 1));
    targets[i][1] = -1;
  }
  const auto between = [&](int i) { return i == 0 ? stream : first.boundary_elements(1, 3); };
  for (int i = 0; i < 2; ++i) {
    first.forward(i, batch(i), {}, part_of(up, between(i)));
    last.forward(i, batch(i), part_of(up, between(i)), {});
  }
  last.backward(0, batch(0), {}, part_of(down, between(0)));
  first.backward(0, batch(0), part_of(down, between(0)), {});
  last.backward_input(1, batch(1), {}, part_of(down, between(1)));
  first.backward_input(1, batch(1), part_of(down, between(1)), {});
  first.forward_only(batch(0), {}, part_of(up, between(0)));
  r.losses.push_back(last.forward_only(batch(0), part_of(up, between(0)), {}));
  last.backward_weight(1, batch(1));
  first.backward_weight(1, batch(1));
  last.last_logits(batch(0), part_of(up, between(0)), {}, part_of(logits, 2 * v));
  for (int i = 0; i < 2; ++i) r.losses.push_back(last.loss_sum(i));
  r.boundary = read(backend, std::as_const(down).view());
  r.logits = read(backend, std::as_const(logits).view());
  for (stage* s : {&first, &last}) {
    for (const double g : read(backend, s->gradients())) r.gradients.push_back(g);
    for (const double g : read(backend, s->tied_gradient())) r.gradients.push_back(g);
    if (s->first_nonfinite_activation().index != -1) r.losses.push_back(-1);
  }
  return r;
}

struct losses_of_steps {
  template <class Stage>
  struct hooks {
    Stage& stage;
    std::vector<double>& losses;
    void forward_done(int, int, int slot) { losses.push_back(stage.loss_sum(slot)); }
    void reduce_gradient(int) {}
  };
};

// A stage for each rank along pp, run by an executor: two steps of four microbatches.
template <class Model, class Backend, class World>
result run_pipeline(const typename Model::config& config, World& world, hd::schedule::table_view table) {
  using stage = md::language_stage<Model, World, Backend>;
  auto& pipe = world.template along<hd::pp>();
  const auto plan = hd::schedule::make_plan(table);
  const hd::schedule::plan_view view = plan;
  Backend backend{1};
  stage mine(config, world, backend, md::split_layers(config.layers, pipe.rank(), pipe.size()), 4, 2, 4);
  mine.initialize(3);
  hd::compute::run<hd::compute::ops::scale>(backend, mine.weights(), 6.0);
  mine.zero_gradients();
  std::vector<stage*> held(static_cast<std::size_t>(pipe.size()), nullptr);
  held[static_cast<std::size_t>(pipe.rank())] = &mine;
  hd::null_observer nobody;
  md::executor<stage, std::remove_reference_t<decltype(pipe)>> executor(view, held, pipe, 2, nobody);
  std::vector<std::int32_t> tokens[4], targets[4];
  std::vector<typename Model::batch> batches;
  for (int i = 0; i < 4; ++i) {
    const int samples = 1 + i % 2;
    tokens[i] = random_ids(samples * config.context, config.vocabulary, static_cast<std::uint64_t>(2 * i));
    targets[i] = random_ids(samples * config.context, config.vocabulary, static_cast<std::uint64_t>(2 * i + 1));
    batches.push_back({tokens[i], targets[i], samples, 1.0 / 30, 0});
  }
  result r;
  for (int step = 0; step < 2; ++step)
    executor.run(std::span<const typename Model::batch>(batches), step, losses_of_steps::hooks<stage>{mine, r.losses});
  r.gradients = read(backend, mine.gradients());
  r.logits.push_back(static_cast<double>(executor.counters().sends));
  return r;
}

// Whether all numbers are as close, relative to the greatest of their kind.
bool close(const result& x, const result& y, double tolerance) {
  const auto of = [&](const std::vector<double>& a, const std::vector<double>& b) {
    double greatest = 0;
    for (const double v : b) greatest = (std::max)(greatest, std::abs(v));
    for (std::size_t i = 0; i < b.size() && a.size() == b.size(); ++i)
      if (!(std::abs(a[i] - b[i]) <= tolerance * greatest)) return false;
    return a.size() == b.size();
  };
  return of(x.losses, y.losses) && of(x.gradients, y.gradients) && of(x.boundary, y.boundary) && of(x.logits, y.logits);
}

// Bit by bit where `tolerance` is 0.
template <class Model, class Policy>
void compare(const typename Model::config& config, mesh on, double tolerance = 0) {
  const auto results = hd::testing::on_ranks(on, [&](auto& world) {
    return std::pair(train<Model, Policy, host>(config, world), train<Model, Policy, checked>(config, world));
  });
  INFO(to_string(results));
  REQUIRE(results.ok());
  for (int rank = 0; rank < on.size(); ++rank) {
    const auto& [expected, got] = results[rank];
    REQUIRE(expected.gradients.size() > 100);
    double norm = 0;
    for (const double g : expected.gradients) norm += g * g;
    CHECK(norm > 1e-3);
    CHECK(expected.losses[1] > 1);
    CHECK(expected.losses[0] == Approx(expected.losses[1]).epsilon(1e-12));
    CHECK((tolerance > 0 ? close(got, expected, tolerance) : got == expected));
  }
}

constexpr md::gpt2_config gpt2{.layers = 3, .heads = 3, .width = 12, .context = 5, .vocabulary = 17};
constexpr md::llama_config llama{.layers = 3,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .width = 16,
                                 .ffn = 7,
                                 .context = 5,
                                 .vocabulary = 17,
                                 .theta = 50,
                                 .initial_deviation = 0.1};

}  // namespace

TEST_CASE("GPT-2 on checked memory has the bits of the host's", "[model][memory]") {
  for (const mesh on : {mesh{1, 1, 1}, mesh{1, 1, 2}, mesh{1, 2, 3}}) compare<md::gpt2<double>, act::keep>(gpt2, on);
}
TEST_CASE("GPT-2 with rows split over tp has the bits of the host's on checked memory", "[model][memory]") {
  using again = act::recompute<act::named<"mlp.hidden", "attn.qkv">>;
  for (const mesh on : {mesh{1, 1, 1}, mesh{1, 1, 2}, mesh{1, 2, 3}})
    compare<md::gpt2<double, md::megatron_sequence<>>, again>(gpt2, on);
}
TEST_CASE("Llama on checked memory has the bits of the host's, with activations computed again", "[model][memory]") {
  using again = act::recompute<act::named<"mlp.activated", "attn.out", "ln_1.out", "head.logits">>;
  for (const mesh on : {mesh{1, 1, 1}, mesh{1, 1, 2}, mesh{1, 2, 3}}) compare<md::llama<double>, again>(llama, on);
}
// Experts on the ranks of dp, which take so many of each rank's rows.
struct limited_experts
    : md::described<limited_experts, double, md::batch<double>, md::mixtral_config,
                    hd::sharding<hd::dim::split<hd::dim::samples, hd::dp>, hd::dim::split<hd::dim::experts, hd::dp>>> {
  static constexpr auto describe(const config& c) {
    using namespace md::layers;
    using mixture = experts<hd::compute::softmax_of_chosen, hd::compute::silu, capacity<>>;
    mixture some("block_sparse_moe", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
    some.balance = 0.1;
    return describe_llama_with<grouped_attention<>, false>(c, some, no_adapter{});
  }
};
TEST_CASE("Mixtral on checked memory gives the host's numbers where rows travel to their experts",
          "[model][memory][mixtral]") {
  // Over dp other experts, over tp parts of each; then other experts of the same rows over tp as well; then parts of each over dp.
  namespace dim = hd::dim;
  using experts_over_dp =
      hd::sharding<dim::split<dim::samples, hd::dp>, dim::split<dim::heads, hd::tp>,
                   dim::split<dim::vocabulary, hd::tp>, dim::split<dim::experts, hd::dp>, dim::split<dim::ffn, hd::tp>>;
  using experts_over_both = hd::sharding<dim::split<dim::samples, hd::dp>, dim::split<dim::heads, hd::tp>,
                                         dim::split<dim::experts, hd::dp>, dim::split<dim::experts, hd::tp>>;
  using parts_over_dp = hd::sharding<dim::split<dim::samples, hd::dp>, dim::split<dim::heads, hd::tp>,
                                     dim::split<dim::experts, hd::tp>, dim::split<dim::ffn, hd::dp>>;
  const md::mixtral_config config{llama, 5, 2};
  constexpr double sums = 1e-13;  // the host may add up each rank's rows apart
  for (const mesh on : {mesh{1, 1, 1}, mesh{1, 3, 1}, mesh{1, 6, 1}, mesh{1, 2, 2}})
    compare<md::mixtral<double, experts_over_dp>, act::recompute<act::named<"mlp.hidden">>>(config, on, sums);
  compare<md::mixtral<double, experts_over_both>, act::keep>(config, mesh{1, 2, 2}, sums);
  compare<md::mixtral<double, parts_over_dp>, act::keep>(config, mesh{1, 2, 2}, sums);
  compare<limited_experts, act::keep>(config, mesh{1, 3, 1}, sums);
}

TEST_CASE("Mixtral on checked memory has the bits of the host's, with experts over tp", "[model][memory][mixtral]") {
  using how = hd::sharding<hd::dim::split<hd::dim::samples, hd::dp>, hd::dim::split<hd::dim::heads, hd::tp>,
                           hd::dim::split<hd::dim::experts, hd::tp>>;
  for (const mesh on : {mesh{1, 1, 1}, mesh{1, 2, 3}})
    compare<md::mixtral<double, how>, act::recompute<act::named<"mlp.hidden">>>(md::mixtral_config{llama, 5, 2}, on);
}
TEST_CASE("an executor runs stages on checked memory, with the bits of the host's", "[model][memory][ranks]") {
  const hd::schedule::action_table tables[] = {hd::schedule::make_table(hd::schedule::one_f_one_b<>{4}, 2),
                                               hd::schedule::make_table(hd::schedule::zb_h1<>{4}, 2)};
  for (const hd::schedule::action_table& table : tables) {
    const auto results = hd::testing::on_ranks(mesh{2, 1, 2}, [&](auto& world) {
      return std::pair(run_pipeline<md::gpt2<double>, host>(gpt2, world, table),
                       run_pipeline<md::gpt2<double>, checked>(gpt2, world, table));
    });
    INFO(to_string(results));
    REQUIRE(results.ok());
    for (int rank = 0; rank < 4; ++rank) {
      const auto& [expected, got] = results[rank];
      REQUIRE(expected.losses.size() == 8);
      CHECK((expected.losses[0] > 1) == (rank >= 2));  // the last stage's
      CHECK(expected.logits[0] == 4);                  // messages of the second step
      CHECK(got == expected);
    }
  }
}

TEST_CASE("the host cannot touch what a stage holds in checked memory", "[model][memory]") {
  using stage = md::gpt2_stage<double, alone_world, checked>;
  checked backend{1};
  alone_world world;
  stage s(gpt2, world, backend, md::split_layers(gpt2.layers, 0, 1), 1, 1);
  STATIC_REQUIRE(std::is_same_v<decltype(s.weights()), hd::vector_view<double, checked_memory>>);
  CHECK_FALSE([](auto x) { return requires { x[0]; } || requires { x.data(); }; }(s.weights()));
  CHECK_FALSE(s.runs_beside(s));
  s.initialize(1);
  CHECK(faults(s.weights().address()));
  std::vector<double> own(static_cast<std::size_t>(s.weights().size()));
  CHECK_FALSE(faults(own.data()));
  // Memory of the host, and of another queue, under the name of this one.
  CHECK_THROWS_AS(
      hd::compute::run<hd::compute::ops::fill>(backend, hd::vector_view<double, checked_memory>(own.data(), {10}), 0.0),
      hd::memory_error);
  checked other{1};
  CHECK_THROWS_AS(hd::compute::run<hd::compute::ops::fill>(other, s.weights(), 0.0), hd::memory_error);
  // What a kernel throws is there at the next wait.
  CHECK_NOTHROW(hd::compute::run<hd::compute::ops::add>(
      backend, s.weights(), s.gradients(), hd::vector_view<double, checked_memory>(s.weights().address(), {3})));
  CHECK_THROWS_AS(s.loss_sum(0), hd::layout_error);
  CHECK_NOTHROW(s.loss_sum(0));
}
