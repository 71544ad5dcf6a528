// tests/train/mixtral_test.cpp: the trainer on mixtures of experts: any mesh, with experts over ranks of the same or of other samples,
// in any folding and composed with zero<3>, split sequences, pipelines, recomputation and saves, trains the Mixtral of one rank; and
// any mesh the DeepSeek-V3 of one rank.
#include "catch.hpp"
#include "difference.hpp"
#include "folder.hpp"
#include "random_tokens.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/balance_experts.hpp>
#include <heddle/model/deepseek.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace sc = heddle::schedule;
using hd::dp, hd::ep, hd::pp, hd::tp;

namespace {

using train_test::relative_difference;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<pp>, hd::axis<tp>>;
// Five experts of 7 hidden units and 31 words divide by nothing. Initial weights are large, so that the router has preferences.
constexpr md::mixtral_config settings{{.layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 12,
                                       .ffn = 7,
                                       .context = 5,
                                       .vocabulary = 31,
                                       .initial_deviation = 0.3,
                                       .head_elements = 4},
                                      5,
                                      2};
// Three heads, latent vectors of 10 and 7 elements, six experts in three groups; the first of three blocks has none.
constexpr md::deepseek_config latent_settings = [] {
  md::deepseek_config c = md::deepseek_tiny();
  c.layers = 3;
  c.dense = 1;
  c.context = settings.context;
  c.vocabulary = settings.vocabulary;
  c.initial_deviation = settings.initial_deviation;
  return c;
}();
constexpr const md::mixtral_config& settings_of(std::type_identity<md::mixtral_config>) {
  return settings;
}
constexpr const md::deepseek_config& settings_of(std::type_identity<md::deepseek_config>) {
  return latent_settings;
}
using tokens = train_test::random_tokens<settings.context, settings.vocabulary, 3>;
using same_samples = md::mixtral<double>;

// What axes are for attention and for experts: dp, ep and etp split samples, and copy experts, split them and split what is in them; tp,
// tp_ep and tp_edp have the same samples, and split what is in experts, split them and copy them; sp is like tp_ep, and splits sequences, whose rows travel beside products.
struct etp {};
struct tp_ep {};
struct tp_edp {};
struct sp {};
template <class Dim, class... Axes>
using over = hd::type_list<hd::dim::split<Dim, Axes>...>;
template <class... S>
hd::sharding<S...> as_sharding(hd::type_list<S...>);
using every_way = decltype(as_sharding(
    hd::joined_lists<over<hd::dim::samples, dp, ep, etp>, over<hd::dim::heads, tp, tp_ep, tp_edp, sp>,
                     over<hd::dim::vocabulary, tp, tp_ep, tp_edp, sp>, over<hd::dim::experts, ep, tp_ep, sp>,
                     over<hd::dim::ffn, etp, tp>,
                     hd::type_list<hd::dim::split<hd::dim::sequence, sp, hd::overlapped<2>>>>{}));
using other_samples = md::mixtral<double, every_way>;
using folded_mesh = hd::mesh<hd::axis<dp>, hd::axis<ep>, hd::axis<etp>, hd::axis<pp>, hd::axis<tp>, hd::axis<tp_ep>,
                             hd::axis<tp_edp>, hd::axis<sp>>;
template <class Model>
inline constexpr bool is_folded = std::is_same_v<Model, other_samples>;
using latent = md::deepseek<double, md::expert_parallel<>>;

// A Mixtral whose experts are frozen, but not their routers: one set of axes is left to sum gradients over, and rows are gathered all
// the same.
struct all_but_experts {
  template <class P>
  static constexpr bool trains = !std::is_same_v<typename P::tag, md::layers::gate_weights> &&
                                 !std::is_same_v<typename P::tag, md::layers::up_weights> &&
                                 !std::is_same_v<typename P::tag, md::layers::down_weights>;
};
struct frozen_experts
    : md::described<frozen_experts, double, md::batch<double>, md::mixtral_config, md::expert_parallel<>> {
  static constexpr auto describe(const md::mixtral_config& c) {
    using mixture = md::layers::experts<hd::compute::softmax_of_chosen, hd::compute::silu, md::layers::dropless,
                                        md::layers::gather_rows>;
    const mixture experts("block_sparse_moe", "gate", c.experts, c.chosen, c.width, c.ffn, c.initial_deviation);
    return md::layers::train_only<all_but_experts>(
        md::layers::describe_llama_with<md::layers::grouped_attention<>, false>(c, experts, md::layers::no_adapter{}));
  }
};

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights, moments;
};

// `steps`: after which it ends, of 2.
template <class Model>
outcome train(const std::string& mesh_text, const std::string& schedule, int microbatches,
              const std::string& again = "", const std::string& save_to = "", const std::string& resume_from = "",
              const typename Model::config& config = settings_of(std::type_identity<typename Model::config>{}),
              int steps = 2) {
  using world_mesh = std::conditional_t<is_folded<Model>, folded_mesh, mesh_type>;
  const auto mesh = hd::parse_mesh<world_mesh>(mesh_text);
  hd::train::options<typename Model::config> o;
  o.model = config;
  o.batch = 7;
  o.steps = 2;
  o.clip_norm = 0.05;
  o.threads_per_rank = 1;
  o.recompute = again;
  const sc::tabled when(train_test::table_named(schedule, mesh.template extent<pp>(), microbatches));
  outcome all;
  std::mutex mutex;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using zero = hd::zero<is_folded<Model> ? 3 : 1>;
    using strategy = hd::strategy<world_mesh, sc::tabled, zero, hd::activations::recompute<>>;
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    [[maybe_unused]] hd::compute::host<> kernels{1};
    std::vector<double> losses, norms;
    if (!resume_from.empty()) hd::train::resume(trainer, resume_from);
    // The first step is before a save, the second after it.
    for (int step = resume_from.empty() ? 0 : 1; step < (save_to.empty() ? steps : 1); ++step) {
      const auto report = trainer.step(tokens{});
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
      if constexpr (std::is_same_v<Model, latent>)
        for (int k = 0; k < trainer.stages(); ++k)
          md::balance_experts(trainer.stage(k), world, kernels, step == 0 ? 0.25 : 0.5);
    }
    if (!save_to.empty()) hd::train::save(trainer, save_to);
    losses.push_back(trainer.validate(tokens{}));
    const std::lock_guard lock(mutex);
    all.losses = losses;
    all.norms = norms;
    // Copies the elements of a parameter that are in `share`, of elements begin and on of a bucket.
    const auto keep = [&](std::vector<double>& whole, const md::parameter& p, auto share, std::int64_t begin) {
      const auto end = begin + static_cast<std::int64_t>(share.size());
      whole.resize(static_cast<std::size_t>(p.global_count()), 0.0);
      md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
        for (std::int64_t n = 0; n < length; ++n)
          if (const std::int64_t at = p.offset + local + n; at >= begin && at < end)
            whole[static_cast<std::size_t>(global + n)] = share[static_cast<std::size_t>(at - begin)];
      });
    };
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      hd::train::detail::for_each_bucket(stage, trainer.optimizer_state(k), [&](auto& part, auto& state, auto) {
        const std::int64_t begin = is_folded<Model> ? state.owned_begin() : 0;  // of zero<3> what this rank owns
        for (const md::parameter& p : part.parameters()) {
          keep(all.weights[p.name], p, state.weights_of(part), begin);
          for (int m = 0; m < 2; ++m)
            keep(all.moments[p.name + std::to_string(m)], p, state.moment(m), state.owned_begin());
        }
      });
      for (const md::parameter& p : stage.frozen_parameters()) keep(all.weights[p.name], p, stage.frozen_weights(), 0);
    }
  });
  return all;
}

void check_same(const outcome& got, const outcome& serial) {
  CHECK(relative_difference(got.losses, serial.losses) <= 1e-10);
  CHECK(relative_difference(got.norms, serial.norms) <= 1e-10);
  CHECK(relative_difference(got.weights, serial.weights) <= 1e-10);
}

struct run {
  const char* mesh;
  const char* schedule;
  int microbatches;
  const char* again;
};
template <class Model>
void on_meshes(const std::vector<run>& runs, std::size_t tensors_of_blocks = 20,
               const std::string& experts = "block_sparse_moe.experts.*.w2.weight", std::size_t elements = 5 * 12 * 7) {
  const outcome serial = train<Model>("", "1f1b", 1);
  REQUIRE(serial.weights.size() == 1 + tensors_of_blocks + 2);
  REQUIRE(serial.weights.at("model.layers.1." + experts).size() == elements);
  REQUIRE(serial.norms[0] > 0.05);  // so that clipping is part of what is compared
  for (const run& r : runs) {
    INFO("mesh '" << r.mesh << "', " << r.schedule << ", " << r.microbatches << " microbatches, again '" << r.again
                  << "'");
    check_same(train<Model>(r.mesh, r.schedule, r.microbatches, r.again), serial);
  }
}

}  // namespace

TEST_CASE("a Mixtral trained with its experts over ranks of the same samples is that of one rank",
          "[train][mixtral][ranks]") {
  on_meshes<same_samples>({{"ep=2", "1f1b", 2, ""},
                           {"tp=2", "1f1b", 1, "mlp.hidden"},
                           {"ep=3,tp=2", "gpipe", 1, "full"},
                           {"dp=2,ep=2", "1f1b", 2, "mlp.activated"},
                           {"pp=2,ep=2", "zb-h1", 2, "full"}});
}
TEST_CASE("a Mixtral trained with its experts over ranks of other samples is that of one rank",
          "[train][mixtral][ranks]") {
  on_meshes<other_samples>({{"ep=2", "1f1b", 2, ""},
                            {"ep=3", "gpipe", 2, "mlp.hidden"},  // the last microbatches leave ranks without a sample
                            {"dp=2,ep=2", "1f1b", 1, "full"},
                            {"ep=2,tp=2", "1f1b", 2, "mlp.activated"},
                            {"pp=2,ep=2", "zb-h1", 2, "full"}});
}
TEST_CASE("a DeepSeek-V3 trained on any mesh is that of one rank", "[train][deepseek][ranks]") {
  on_meshes<latent>({{"tp=2", "1f1b", 1, "attn.qkv"},
                     {"pp=2", "zb-h1", 2, ""},
                     {"pp=3", "1f1b", 2, "mlp.hidden"},  // the first stage has no experts
                     {"dp=2,tp=2", "1f1b", 2, "full"},
                     {"pp=2,tp=2", "1f1b", 2, "mlp.activated"},
                     {"ep=2", "1f1b", 2, "mlp.hidden"},
                     {"ep=2,tp=2", "gpipe", 1, "attn.out"},
                     {"pp=2,ep=2", "zb-h1", 2, "full"},
                     {"tp=4", "1f1b", 1, ""}},  // a rank without heads
                    12 + 2 * 17, "mlp.experts.*.down_proj.weight", 6 * 22 * 9);
}
TEST_CASE("selection biases follow the load of experts, and go on from a save on another mesh",
          "[train][deepseek][save][ranks]") {
  const outcome serial = train<latent>("", "1f1b", 1);
  const train_test::folder saves("biases");
  const outcome half = train<latent>("ep=2,tp=2", "1f1b", 2, "", saves.path.string());
  const auto& bias = half.weights.at("model.layers.1.mlp.gate.e_score_correction_bias");
  REQUIRE(bias.size() == 6);
  for (const double b : bias) CHECK((b == 0 || std::abs(b) == 0.25));
  CHECK(std::count(bias.begin(), bias.end(), 0.25) > 0);
  CHECK(std::count(bias.begin(), bias.end(), -0.25) > 0);
  for (const char* mesh : {"", "dp=2,ep=2", "pp=2"}) {
    INFO("mesh '" << mesh << "'");
    outcome rest = train<latent>(mesh, "1f1b", 2, "", "", saves.path.string());
    REQUIRE(rest.losses.size() == 2);
    rest.losses.insert(rest.losses.begin(), serial.losses[0]);
    rest.norms.insert(rest.norms.begin(), serial.norms[0]);
    check_same(rest, serial);
  }
}
TEST_CASE("a DeepSeek-V2, without selection biases, is that of one rank on any mesh and behind a save",
          "[train][deepseek][save][ranks]") {
  md::deepseek_config second = latent_settings;
  second.softmax = true;
  second.normed = false;
  const auto on = [&](const char* mesh, const std::string& save_to = "", const std::string& from = "") {
    return train<latent>(mesh, "1f1b", 2, "", save_to, from, second);
  };
  const outcome serial = on("");
  REQUIRE(serial.weights.size() == 3 + 12 + 2 * 16);
  REQUIRE(serial.losses[0] != train<latent>("", "1f1b", 2).losses[0]);
  for (const char* mesh : {"ep=2,tp=2", "pp=2,ep=2"}) {
    INFO("mesh '" << mesh << "'");
    check_same(on(mesh), serial);
  }
  const train_test::folder saves("second");
  on("ep=2,tp=2", saves.path.string());
  outcome rest = on("dp=2,pp=2", "", saves.path.string());
  rest.losses.insert(rest.losses.begin(), serial.losses[0]);
  rest.norms.insert(rest.norms.begin(), serial.norms[0]);
  check_same(rest, serial);
}
TEST_CASE("a Mixtral trained in every folding of eight ranks is that of one rank",
          "[train][mixtral][ranks][exhaustive]") {
  md::mixtral_config eight = settings;
  eight.heads = eight.kv_heads = 8;
  eight.head_elements = 2;
  const auto on = [&](const std::string& mesh) { return train<other_samples>(mesh, "1f1b", 1, "", "", "", eight); };
  const outcome serial = on("");
  REQUIRE(serial.norms[0] > 0.05);
  const std::array<const char*, 6> axes{"dp", "ep", "etp", "tp", "tp_ep", "tp_edp"};
  int foldings = 0;
  for (int code = 0; code < 4096; ++code) {  // a power of two for each axis, 8 ranks in all
    int powers = 0;
    std::string mesh;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const int power = code >> (2 * a) & 3;
      powers += power;
      if (power > 0) mesh += (mesh.empty() ? "" : ",") + std::string(axes[a]) + "=" + std::to_string(1 << power);
    }
    if (powers != 3) continue;
    ++foldings;
    INFO("mesh '" << mesh << "'");
    check_same(on(mesh), serial);
  }
  CHECK(foldings == 56);
}
// The axes of TorchTitan: zero<3> over dp, asynchronous tensor parallelism that splits sequences, pipelines, experts; every pair, and all of
// them, with recomputation. Saves of all of them go on elsewhere, below.
TEST_CASE("zero<3>, split sequences beside products, pipelines and experts compose in every way",
          "[train][mixtral][ranks]") {
  on_meshes<other_samples>({{"dp=2", "1f1b", 2, "full"},
                            {"sp=2", "1f1b", 1, ""},
                            {"sp=2", "gpipe", 2, "mlp.hidden"},
                            {"dp=2,sp=2", "1f1b", 1, "full"},
                            {"pp=2,sp=2", "zb-h1", 2, ""},
                            {"ep=2,sp=2", "1f1b", 2, "mlp.activated"},
                            {"etp=2,sp=2", "1f1b", 1, "full"},
                            {"dp=2,pp=2", "gpipe", 2, ""},
                            {"dp=2,pp=2,sp=2", "1f1b", 2, "mlp.hidden"},
                            {"dp=2,ep=2,sp=2", "gpipe", 1, ""},
                            {"ep=2,pp=2,sp=2", "zb-h1", 2, "full"},
                            {"dp=2,ep=2,pp=2,sp=2", "1f1b", 2, "full"}});
}
TEST_CASE("a Mixtral saved with its experts on some ranks goes on with them on others",
          "[train][mixtral][save][ranks]") {
  const outcome serial = train<other_samples>("", "1f1b", 1);
  const train_test::folder saves("experts");
  const std::vector<const char*> layouts{
      "", "ep=3", "dp=2,ep=2,pp=2,sp=2", "ep=2,tp=2", "etp=2,pp=2,sp=2", "tp_ep=2,tp_edp=2"};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const outcome saved = train<other_samples>(layouts[i], "1f1b", 2, "", saves.path.string());
    REQUIRE(saved.moments.size() == 2 * saved.weights.size());
    for (std::size_t j = 0; j < layouts.size(); ++j) {
      INFO("from '" << layouts[i] << "' to mesh '" << layouts[j] << "'");
      const outcome read = train<other_samples>(layouts[j], "1f1b", 2, "", "", saves.path.string(), settings, 1);
      CHECK(read.weights == saved.weights);
      CHECK(read.moments == saved.moments);
      if (j != i && j != (i + 1) % layouts.size()) continue;
      outcome rest = train<other_samples>(layouts[j], "1f1b", 2, "", "", saves.path.string());
      REQUIRE(rest.losses.size() == 2);
      rest.losses.insert(rest.losses.begin(), serial.losses[0]);
      rest.norms.insert(rest.norms.begin(), serial.norms[0]);
      check_same(rest, serial);
    }
  }
}

TEST_CASE("held-out samples that differ between ranks pass frozen experts, to which rows are gathered",
          "[train][mixtral]") {
  const auto losses_on = [](const char* mesh) {
    hd::train::options<md::mixtral_config> o;
    o.model = settings;
    o.batch = 6;
    o.microbatches = 3;
    o.steps = 1;
    o.threads_per_rank = 1;
    hd::launch_options launch;
    launch.timeout = std::chrono::milliseconds(60'000);
    std::vector<double> all;
    hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh), launch, [&](auto& world) {
      using strategy = hd::strategy<mesh_type, sc::named, hd::zero<1>>;
      hd::train::trainer<frozen_experts, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
      STATIC_REQUIRE(decltype(trainer)::buckets == 1);
      const auto report = trainer.step(tokens{});
      const double held_out = trainer.validate(tokens{});  // three samples
      if (world.rank() == 0) all = {report.loss, report.gradient_norm, held_out};
    });
    return all;
  };
  const std::vector<double> one = losses_on("");
  REQUIRE(one.size() == 3);
  const std::vector<double> two = losses_on("ep=2");
  REQUIRE(two.size() == 3);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-10));
}

// Two stages of a Mixtral on the ranks of `Mesh`, with microbatches of three samples on each of them.
template <class Mesh>
struct memory_shape {
  static constexpr md::mixtral_config config = settings;
  static constexpr int stages = 2;
  static constexpr std::int64_t samples = 3;
  using mesh = Mesh;
};
template <class Model, class Mesh>
void check_memory(const std::string& mesh_text) {
  INFO("mesh '" << mesh_text << "'");
  constexpr int zero_stage = is_folded<Model> ? 3 : 1;
  using formula =
      hd::train::language_with_state<Model, memory_shape<Mesh>, hd::zero<zero_stage>, hd::activations::recompute<>>;
  using world_mesh = std::conditional_t<is_folded<Model>, folded_mesh, mesh_type>;
  const auto mesh = hd::parse_mesh<world_mesh>(mesh_text);
  hd::train::options<md::mixtral_config> o;
  o.model = settings;
  o.batch = 6 * formula::dp;
  o.threads_per_rank = 1;
  const sc::tabled when(train_test::table_named("1f1b", 2, 2));
  std::mutex mutex;
  std::map<int, std::array<std::int64_t, 2>> held, expected;  // by stage: on the first of its ranks
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    using strategy = hd::strategy<world_mesh, sc::tabled, hd::zero<zero_stage>, hd::activations::recompute<>>;
    hd::train::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    const auto plan = trainer.plan();
    const int rank = trainer.pipeline_group().rank(), s = trainer.held().index;
    const std::int64_t before = hd::train::bytes_held(trainer);
    trainer.step(tokens{});
    const std::int64_t after = hd::train::bytes_held(trainer);
    const std::int64_t bytes = plan.storage.buffers(rank) * formula{}.boundary_bytes() +
                               plan.storage.slots(s) * formula{}.activation_bytes(s) + formula{}.resident_bytes(s) +
                               formula::gathered_bytes(s) +
                               hd::train::detail::most_deferred(plan.table.list(rank), s) * formula{}.deferred_bytes(s);
    const std::lock_guard lock(mutex);
    if (before > held[s][0]) held[s] = {before, after};
    expected[s] = {bytes, bytes};
  });
  for (int s = 0; s < 2; ++s) {
    CAPTURE(s);
    CHECK(held[s][0] == expected[s][0]);
    CHECK(held[s][1] == expected[s][1]);
  }
  CHECK(formula::routing_bytes(0) > 0);
}
TEST_CASE("the memory of a Mixtral's stages is what the formula says", "[train][mixtral][memory]") {
  // Experts of the same samples, and rows that travel: to other experts, and to parts of experts.
  check_memory<same_samples, hd::mesh<hd::axis<ep, 2>, hd::axis<tp, 1>>>("ep=2,pp=2");
  check_memory<same_samples, hd::mesh<hd::axis<ep, 1>, hd::axis<tp, 2>>>("pp=2,tp=2");
  // An axis of one rank that is known at start-up has rooms for rows that travel, so that sp has two.
  check_memory<other_samples, hd::mesh<hd::axis<ep, 2>, hd::axis<sp, 2>>>("ep=2,pp=2,sp=2");
  check_memory<other_samples, hd::mesh<hd::axis<dp, 2>, hd::axis<etp, 2>, hd::axis<sp, 2>>>("dp=2,etp=2,pp=2,sp=2");
}
