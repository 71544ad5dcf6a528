// tests/model/lora_test.cpp: low-rank adapters: zero ones change nothing, gradients are those of central differences, merging keeps the
// outputs, and freezing leaves memory and gradients out.
#include "catch.hpp"
#include "support.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/model/with_chunked_loss.hpp>
#include <heddle/model/with_lora.hpp>

#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

namespace hd = heddle;
namespace md = heddle::model;
namespace ly = heddle::model::layers;
using namespace model_test;
using backend = hd::compute::host<>;
template <class Model>
using stage_of = typename Model::template stage<alone_world, backend>;

constexpr md::gpt2_config small_gpt2{.layers = 2, .heads = 2, .width = 8, .context = 5, .vocabulary = 13};
const md::qwen3_config small_qwen(
    {.layers = 2, .heads = 4, .kv_heads = 2, .width = 8, .ffn = 7, .context = 5, .vocabulary = 13, .head_elements = 6});

template <class Config>
md::lora_config<Config> adapted(const Config& c) {
  return {c, 3, 4.5};
}

std::map<std::string, std::vector<double>> weights_of(const std::vector<md::parameter>& table,
                                                      std::span<const double> all) {
  std::map<std::string, std::vector<double>> found;
  for (const md::parameter& p : table) {
    const auto part = all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    found[p.name].assign(part.begin(), part.end());
  }
  return found;
}

struct sample {
  std::vector<std::int32_t> tokens, targets;
  explicit sample(int context, int vocabulary)
      : tokens(random_ids(2 * context, vocabulary, 3)), targets(random_ids(2 * context, vocabulary, 4)) {}
  md::batch<double> batch(int context) const { return {tokens, targets, 2, 0.1, context}; }
};

template <class Stage>
double loss_of(Stage& s, const sample& x) {
  return s.forward_only(x.batch(s.config().context), {}, {});
}

template <class Base>
void check(const typename Base::config& config) {
  using model = md::with_lora<Base>;
  const alone_world world;
  backend kernels{1};
  stage_of<Base> base(config, const_cast<alone_world&>(world), kernels, md::split_layers(config.layers, 0, 1), 1, 2);
  stage_of<model> s(adapted(config), const_cast<alone_world&>(world), kernels, md::split_layers(config.layers, 0, 1), 1,
                    2);
  base.initialize(3);
  s.initialize(5);
  const sample x(config.context, config.vocabulary);

  // Adapters alone are trained, and have the names and shapes that PEFT has for them.
  REQUIRE_FALSE(s.parameters().empty());
  for (const md::parameter& p : s.parameters()) {
    CAPTURE(p.name);
    const bool is_a = p.name.find(".lora_A.weight") != std::string::npos;
    CHECK((is_a || p.name.find(".lora_B.weight") != std::string::npos));
    REQUIRE(p.shape.size() == 2);
    CHECK(p.shape[is_a ? 0 : 1] == 3);
  }
  // All weights of the base are there, frozen, under their own names.
  REQUIRE(s.frozen_parameters().size() == base.parameters().size());
  std::map<std::string, const md::parameter*> by_name;
  for (const md::parameter& p : s.frozen_parameters()) by_name[p.name] = &p;
  for (const md::parameter& p : base.parameters()) {
    const md::parameter& own = *by_name.at(p.name);
    REQUIRE(own.shape == p.shape);
    for (std::int64_t i = 0; i < p.count; ++i)
      s.frozen_weights()[static_cast<std::size_t>(own.offset + i)] =
          base.weights()[static_cast<std::size_t>(p.offset + i)];
  }
  // With B = 0 the model is the base.
  const double of_base = loss_of(base, x);
  CHECK(loss_of(s, x) == of_base);

  for (const md::parameter& p : s.parameters()) {
    const auto values = random_vector(p.count, static_cast<std::uint64_t>(p.id) + 100, 0.3);
    std::copy(values.begin(), values.end(), s.weights().begin() + p.offset);
  }
  const double with_adapters = loss_of(s, x);
  CHECK(std::abs(with_adapters - of_base) > 1e-3);

  // Gradients of the scaled loss, through both forms of backward.
  const auto batch = x.batch(config.context);
  std::vector<double> gradients;
  for (const bool at_once : {true, false}) {
    s.zero_gradients();
    s.forward(0, batch, {}, {});
    CHECK(std::abs(s.loss_sum(0) - with_adapters) <= 1e-12 * std::abs(with_adapters));
    if (at_once) {
      s.backward(0, batch, {}, {});
    } else {
      s.backward_input(0, batch, {}, {});
      s.backward_weight(0, batch);
    }
    for (const md::parameter& p : s.parameters()) {
      const auto of = static_cast<std::size_t>(p.offset), n = static_cast<std::size_t>(p.count);
      CAPTURE(p.name, at_once);
      CHECK(difference_error(s.weights().subspan(of, n), s.gradients().subspan(of, n),
                             [&] { return 0.1 * loss_of(s, x); }) <= 1e-6);
    }
  }
  const auto frozen = weights_of(s.frozen_parameters(), s.frozen_weights());

  // Merged, the adapters are nothing and the model is the same; weights without adapters stay.
  s.merge_adapters();
  CHECK(std::abs(loss_of(s, x) - with_adapters) <= 1e-12 * std::abs(with_adapters));
  for (const md::parameter& p : s.parameters())
    if (p.name.find(".lora_B.") != std::string::npos)
      for (std::int64_t i = 0; i < p.count; ++i) REQUIRE(s.weights()[static_cast<std::size_t>(p.offset + i)] == 0.0);
  int changed = 0;
  for (const auto& [name, values] : weights_of(s.frozen_parameters(), s.frozen_weights()))
    changed += values != frozen.at(name);
  CHECK(2 * changed == static_cast<int>(s.parameters().size()));
  // As weights of the base they give the same.
  for (const md::parameter& p : base.parameters()) {
    const md::parameter& own = *by_name.at(p.name);
    for (std::int64_t i = 0; i < p.count; ++i)
      base.weights()[static_cast<std::size_t>(p.offset + i)] =
          s.frozen_weights()[static_cast<std::size_t>(own.offset + i)];
  }
  CHECK(std::abs(loss_of(base, x) - with_adapters) <= 1e-12 * std::abs(with_adapters));
  // Gradients are there for adapters only.
  std::int64_t of_adapters = 0, of_frozen = 0;
  for (const md::parameter& p : s.parameters()) of_adapters += p.count;
  for (const md::parameter& p : s.frozen_parameters()) of_frozen += p.count;
  CHECK(s.flat_elements() < of_adapters + 8 * static_cast<std::int64_t>(s.parameters().size()) + 1);
  CHECK(static_cast<std::int64_t>(s.gradients().size()) == s.flat_elements());
  CHECK(of_frozen == ly::count_parameters(Base::describe(config)));
  CHECK(of_frozen + of_adapters == ly::count_parameters(model::describe(adapted(config))));
}

}  // namespace

TEST_CASE("adapters of a GPT-2: zero is the base, gradients, merging", "[model][lora]") {
  check<md::gpt2<double>>(small_gpt2);
}

TEST_CASE("adapters of a Qwen-3 with tied ends: zero is the base, gradients, merging", "[model][lora]") {
  check<md::with_chunked_loss<md::tied_qwen3<double>, 5>>(small_qwen);  // logits some words at a time
}

TEST_CASE("adapters where the stream's rows are split are those of one rank", "[model][lora][ranks]") {
  using model = md::with_lora<md::gpt2<double, md::megatron_sequence<>>>;
  using mesh_type = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::tp>>;
  const auto config = adapted(small_gpt2);
  const sample x(small_gpt2.context, small_gpt2.vocabulary);
  using found = std::map<std::string, std::vector<double>>;
  const auto gradients_on = [&](int ranks, bool halves) {
    found all;
    double loss = 0;
    std::mutex mutex;
    hd::launch<hd::threads>(mesh_type{1, ranks}, [&](auto& world) {
      backend kernels{1};
      using stage_type = typename model::stage<std::remove_cvref_t<decltype(world)>, backend>;
      stage_type s(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 2, 1);
      s.initialize(5);
      for (const md::parameter& p : s.parameters())  // B is not zero, so that all gradients count
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          const hd::counter_random random(9, static_cast<std::uint64_t>(p.id));
          for (std::int64_t i = 0; i < length; ++i)
            s.weights()[static_cast<std::size_t>(p.offset + local + i)] =
                0.3 * random.normal(static_cast<std::uint64_t>(global + i));
        });
      const auto batch = x.batch(config.context);
      s.zero_gradients();
      s.forward(0, batch, {}, {});
      if (halves) {
        s.backward_input(0, batch, {}, {});
        s.backward_weight(0, batch);
      } else {
        s.backward(0, batch, {}, {});
      }
      // A bucket is summed over tp where its layout says so.
      std::size_t begin = 0, bucket = 0;
      const auto sum = [&]<class Layout>(std::type_identity<Layout>) {
        const auto n = static_cast<std::size_t>(s.bucket_elements()[bucket++]);
        auto& group = world.template along<hd::tp>();
        if constexpr (hd::dual<Layout>::template is_partial_on<hd::tp>)
          if (group.size() > 1) group.all_reduce(s.gradients().subspan(begin, n), hd::plus{});
        begin += n;
      };
      [&]<class... Layouts>(hd::type_list<Layouts...>) {
        (sum(std::type_identity<Layouts>{}), ...);
      }(typename stage_type::buckets{});
      const std::lock_guard lock(mutex);
      loss = s.loss_sum(0);
      for (const md::parameter& p : s.parameters()) {
        auto& whole = all[p.name];
        whole.resize(static_cast<std::size_t>(p.global_count()));
        md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
          for (std::int64_t i = 0; i < length; ++i)
            whole[static_cast<std::size_t>(global + i)] = s.gradients()[static_cast<std::size_t>(p.offset + local + i)];
        });
      }
    });
    all["loss"] = {loss};
    return all;
  };
  const found one = gradients_on(1, false);
  REQUIRE(one.size() == 1 + 2 * 8);
  for (const int ranks : {2, 3, 4})  // ten rows and two heads: uneven parts, and ranks without heads
    for (const bool halves : {false, true}) {
      CAPTURE(ranks, halves);
      const found many = gradients_on(ranks, halves);
      REQUIRE(many.size() == one.size());
      double worst = 0;
      for (const auto& [name, values] : one)
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double d = std::abs(values[i] - many.at(name).at(i)) / (1 + std::abs(values[i]));
          if (std::isnan(d) || d > worst) worst = d;  // a NaN stays
        }
      CHECK(worst < 1e-12);
    }
}

TEST_CASE("what an adapter cannot be is refused", "[model][lora]") {
  md::lora_config<md::gpt2_config> c{small_gpt2, 0, 1};
  CHECK_THROWS_WITH(c.validate(), Catch::Matchers::Contains("rank of an adapter must be 1 to the width, 8, got 0"));
  c.adapter_rank = 9;
  CHECK_THROWS_AS(c.validate(), hd::config_error);
  c.adapter_rank = 8;
  c.adapter_alpha = INFINITY;
  CHECK_THROWS_AS(c.validate(), hd::config_error);
}

// Which parameters are in which bucket, at compile time: along tp the copied halves of adapters are summed.
namespace {
using mesh_type = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using layouts = md::layouts<mesh_type, md::megatron<>>;
using up = ly::lora<ly::linear<md::dims<hd::dim::width>, md::dims<hd::dim::ffn>>>;
using down = ly::lora<ly::linear<md::dims<hd::dim::ffn>, md::dims<hd::dim::width>>>;
using buckets = md::trained_buckets<layouts, ly::adapters, up, down>;
static_assert(buckets::count == 2 && buckets::freezes);
static_assert(buckets::of<up::a_parameter> == 1 && buckets::of<up::b_parameter> == 0);
static_assert(buckets::of<down::a_parameter> == 0 && buckets::of<down::b_parameter> == 1);
static_assert(buckets::of<up::base_layer::weight_parameter> == 2);  // frozen
static_assert(ly::trains_in<ly::adapters, up> && !ly::trains_in<ly::adapters, up::base_layer>);
static_assert(!md::parameter_buckets<layouts, up>::freezes);
}  // namespace
