// Weights and masters of a trainer of any ZeRO stage, brought to stages on other meshes and back without a gather.
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/stage_types.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/trainer.hpp>
#include <heddle/train/trainer_weights.hpp>

#include "tables.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using hd::bf16, hd::dp, hd::pp, hd::tp;

namespace {
namespace sent_weights {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>, hd::axis<hd::ep>>;
using host = hd::compute::host<hd::compute::portable>;
// A vocabulary that tp does not divide: ranks along it have flat buffers of different sizes, and ZeRO cuts them elsewhere.
constexpr md::gpt2_config config{.layers = 4, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
constexpr md::llama_config llama{
    .layers = 4, .heads = 2, .kv_heads = 1, .width = 12, .ffn = 10, .context = 6, .vocabulary = 29};
template <class Model>
typename Model::config config_of() {
  if constexpr (std::is_same_v<typename Model::config, md::mixtral_config>)
    return md::mixtral_config(llama, 4, 2);
  else
    return config;
}
using halves = hd::precision<hd::weights_in<bf16>, hd::masters_in<float>>;

// The parameters of a stage for generation, without the stage.
template <class Model>
struct generation {
  using scalar = typename Model::scalar;
  using types = md::detail::stage_types<Model, hd::world<hd::threads, mesh_type>, host, pp>;
  using stage_mesh = typename types::mesh_type;
  generation(const mesh_type& mesh, int rank)
      : described(Model::describe(config_of<Model>())),
        at(described, {md::make_stage_mesh<stage_mesh>(mesh), md::rank_in_stage_mesh<stage_mesh>(mesh, rank)}, 1, 1,
           config.width, {}),
        held(queue, at, described, md::make_stage_mesh<stage_mesh>(mesh),
             md::rank_in_stage_mesh<stage_mesh>(mesh, rank),
             md::split_layers(config.layers, mesh.template coordinate<pp>(rank), mesh.template extent<pp>()), nullptr) {
  }
  const std::vector<md::parameter>& parameters() const { return held.store().table(); }
  std::span<scalar> weights() { return held.store().weights(); }

  hd::host_memory::queue queue;
  typename types::description described;
  typename types::places at;
  md::language_parameters<scalar, typename types::layouts, typename types::description> held;
};

// Whole tensors, from what ranks have of them.
using whole_tensors = std::map<std::string, std::vector<double>>;
template <class Parameters, class Row>
void add(whole_tensors& all, const Parameters& table, const Row& weights, std::int64_t begin) {
  for (const md::parameter& p : table) {
    auto& w = all[p.name];
    w.resize(static_cast<std::size_t>(p.global_count()), -7);
    md::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        if (const std::int64_t at = p.offset + local + i - begin; at >= 0 && at < std::ssize(weights))
          w[static_cast<std::size_t>(global + i)] = static_cast<double>(weights[static_cast<std::size_t>(at)]);
    });
  }
}

using md::gpt2;

struct outcome {
  bool equal = true;                                  // each target has the whole tensors' elements
  bool came_back = true;                              // and what was overwritten in the trainer came back from them
  std::int64_t received = 0, lacked = 0, wanted = 0;  // elements of all ranks
};

// Two steps on a mesh of the first ranks, then a route to another mesh on the last ones: of weights, or of masters.
template <class Model, class Zero, class Precision, class Target, bool Masters>
outcome send(const std::string& from_text, const std::string& to_text, int ranks, const char* schedule) {
  using T = typename Model::scalar;
  using To = typename Target::scalar;
  const auto from_mesh = hd::parse_mesh<mesh_type>(from_text), to_mesh = hd::parse_mesh<mesh_type>(to_text);
  std::vector<int> from_ranks(static_cast<std::size_t>(from_mesh.size())),
      to_ranks(static_cast<std::size_t>(to_mesh.size()));
  std::iota(from_ranks.begin(), from_ranks.end(), 0);
  std::iota(to_ranks.begin(), to_ranks.end(), ranks - to_mesh.size());
  const hd::schedule::tabled when(train_test::table_named(schedule, from_mesh.template extent<pp>(), 2));
  outcome all;
  whole_tensors whole;
  std::mutex mutex;
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(ranks), [&](auto& world) {
    auto training = world.on(from_mesh, from_ranks);
    using world_type = typename decltype(training)::value_type;
    using trainer_type =
        tr::trainer<Model, hd::strategy<mesh_type, hd::schedule::tabled, Zero, Precision, host>, world_type>;
    std::optional<trainer_type> trainer;
    if (training) {
      tr::options<typename Model::config> o{.batch = 8, .steps = 4, .learning_rate = {.peak = 1e-2, .warmup_steps = 0}};
      o.model = config_of<Model>();
      o.threads_per_rank = 1;
      trainer.emplace(*training, o, when);
      for (int k = 0; k < 2; ++k) trainer->step(train_test::random_tokens<config.context, config.vocabulary>{});
    }
    std::optional<generation<Target>> target;
    if (const int at = world.rank() - to_ranks.front(); at >= 0) target.emplace(to_mesh, at);
    trainer_type* const mine = trainer ? &*trainer : nullptr;
    const md::stage_weights to(target ? &*target : nullptr);
    host backend{1};
    const auto through = [&](const auto& from) {
      const md::parameter_route route(world, from, to, 512);
      route.run(world, backend, from, to);
      const std::lock_guard lock(mutex);
      all.received += route.received();
      all.wanted += route.received() + route.kept();
    };
    const auto collect = [&] {
      const std::lock_guard lock(mutex);
      for (int k = 0; k < mine->stages(); ++k) {
        auto& optimizer = mine->optimizer_state(k);
        if constexpr (Masters)
          add(whole, mine->stage(k).parameters(), optimizer.masters(), optimizer.owned_begin());
        else
          add(whole, mine->stage(k).parameters(), mine->stage(k).weights(), 0);
      }
    };
    if constexpr (Masters) {
      if (mine != nullptr) collect();
      through(tr::trainer_masters<trainer_type>(mine));
    } else {
      if (mine != nullptr) mine->parameter_memory().with_weights(collect);
      through(tr::trainer_weights<trainer_type>(mine));
    }
    world.control().barrier();
    bool equal = true;
    std::int64_t lacked = 0;
    if (target) {
      whole_tensors here;
      add(here, target->parameters(), target->weights(), 0);
      for (const md::parameter& p : target->parameters()) {
        md::for_each_run(p, [&](std::int64_t global, std::int64_t, std::int64_t n) {
          for (std::int64_t i = global; i < global + n; ++i)
            equal = equal && here[p.name][static_cast<std::size_t>(i)] ==
                                 static_cast<double>(hd::converted<To>(
                                     static_cast<float>(whole.at(p.name)[static_cast<std::size_t>(i)])));
        });
        lacked += p.count;
      }
    }
    bool came_back = true;
    if constexpr (!Masters && std::is_same_v<T, To>) {
      // The other way: what the trainer keeps is overwritten and comes out of the stages.
      const tr::trainer_weights<trainer_type> back(mine);
      std::vector<std::vector<T>> before;
      for (const auto& row : back.rows()) {
        before.emplace_back(row.begin(), row.end());
        for (const md::parameter_box& b : back.boxes())
          if (b.row + 1 == std::ssize(before)) {
            std::int64_t n = 1;
            for (const std::int64_t e : b.extents) n *= e;
            std::fill_n(row.begin() + b.offset, n, T(9));
          }
      }
      const md::parameter_route route(world, to, back);
      route.run(world, backend, to, back);
      for (std::size_t k = 0; k < before.size(); ++k)
        came_back = came_back && std::equal(before[k].begin(), before[k].end(), back.rows()[k].begin());
    }
    const std::lock_guard lock(mutex);
    all.equal = all.equal && equal;
    all.came_back = all.came_back && came_back;
    all.lacked += lacked;
  });
  return all;
}

template <class Model, class Zero, class Precision, class Target, bool Masters = false>
void check(const std::string& from, const std::string& to, const char* schedule = "1f1b") {
  const int from_size = hd::parse_mesh<mesh_type>(from).size(), to_size = hd::parse_mesh<mesh_type>(to).size();
  for (const int ranks : {(std::max)(from_size, to_size), from_size + to_size}) {
    const outcome all = send<Model, Zero, Precision, Target, Masters>(from, to, ranks, schedule);
    CAPTURE(from, to, schedule, ranks, Zero::stage);
    CHECK(all.equal);
    CHECK(all.came_back);
    CHECK(all.wanted == all.lacked);
    if (ranks == from_size + to_size) CHECK(all.received == all.wanted);
  }
}

}  // namespace sent_weights
}  // namespace

TEST_CASE("weights of a trainer go to another mesh and come back, whatever its ZeRO stage", "[train][route][threads]") {
  using namespace sent_weights;
  using plain = hd::precision<>;
  for (const auto& [from, to] :
       {std::pair("dp=2,tp=2", "pp=2"), std::pair("dp=2,pp=2", "tp=2"), std::pair("dp=3", "dp=2,tp=2")}) {
    check<gpt2<float>, hd::zero<0>, plain, gpt2<float>>(from, to);
    check<gpt2<float>, hd::zero<1>, plain, gpt2<float>>(from, to);
    check<gpt2<float>, hd::zero<2>, plain, gpt2<float>>(from, to);
    check<gpt2<float>, hd::zero<3>, plain, gpt2<float>>(from, to);
  }
}

TEST_CASE("a trainer with several stages on a rank sends all of them", "[train][route][threads]") {
  using namespace sent_weights;
  // Behind one another; in a V, where the head uses the embedding of another stage of its rank; and replicas.
  for (const char* schedule : {"interleaved", "v shape", "bidirectional"}) {
    check<gpt2<float>, hd::zero<1>, hd::precision<>, gpt2<float>>("dp=2,pp=2", "tp=2", schedule);
    check<gpt2<float>, hd::zero<3>, hd::precision<>, gpt2<float>>("dp=2,pp=2", "tp=2", schedule);
  }
}

TEST_CASE("working weights and masters of a trainer go to stages of 16 and of 32 bits", "[train][route][threads]") {
  using namespace sent_weights;
  for (const auto& [from, to] : {std::pair("dp=2,tp=2", "pp=2"), std::pair("dp=2,pp=2", "tp=2")}) {
    check<gpt2<float>, hd::zero<1>, halves, gpt2<bf16>>(from, to);
    check<gpt2<float>, hd::zero<1>, halves, gpt2<float>>(from, to);
    check<gpt2<float>, hd::zero<1>, halves, gpt2<float>, true>(from, to);
    check<gpt2<bf16>, hd::zero<3>, hd::precision<>, gpt2<bf16>>(from, to);
    check<gpt2<bf16>, hd::zero<3>, hd::precision<>, gpt2<float>, true>(from, to);
  }
}

TEST_CASE("a trainer with several buckets sends each of them", "[train][route][threads]") {
  using namespace sent_weights;
  using mixtral = md::mixtral<float>;
  for (const auto& [from, to] : {std::pair("dp=2,ep=2", "tp=2"), std::pair("ep=2,tp=2", "dp=2,ep=2")}) {
    check<mixtral, hd::zero<1>, hd::precision<>, mixtral>(from, to);
    check<mixtral, hd::zero<3>, hd::precision<>, mixtral>(from, to);
  }
}
