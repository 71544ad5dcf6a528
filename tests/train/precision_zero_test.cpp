// tests/train/precision_zero_test.cpp: shares of gradients and weights in element types of their own.
#include "folder.hpp"
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/mixed_optimizer.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16, hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr hd::model::gpt2_config config{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using usual = hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::gradients_in<bf16>>;

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> masters;
};

// Losses, norms and owned masters after three steps, the second of which a save follows.
template <class Zero>
outcome train(const std::string& mesh_text, const std::string& save_to = "", const std::string& resume_from = "") {
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](auto& world) {
    tr::options<hd::model::gpt2_config> o;
    o.model = config;
    o.batch = 6;
    o.microbatches = 2;
    o.steps = 3;
    o.clip_norm = 0.7;
    o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 20};
    o.threads_per_rank = 1;
    tr::trainer<hd::model::gpt2<float>, hd::strategy<mesh_type, Zero, usual>, std::remove_reference_t<decltype(world)>>
        trainer(world, o);
    if (!resume_from.empty()) tr::resume(trainer, resume_from);
    while (trainer.steps_done() < 3) {
      const auto r = trainer.step(train_test::random_tokens<config.context, config.vocabulary>{});
      if (world.rank() == 0) {
        all.losses.push_back(r.loss);
        all.norms.push_back(r.gradient_norm);
      }
      if (trainer.steps_done() == 2 && !save_to.empty()) tr::save(trainer, save_to);
    }
    const std::lock_guard lock(guard);
    for (int k = 0; k < trainer.stages(); ++k)
      for (const auto& p : trainer.stage(k).parameters()) {
        auto& whole = all.masters[p.name];
        whole.resize(static_cast<std::size_t>(p.global_count()));
        tr::detail::for_owned_part(p, trainer.optimizer_state(k), [&](auto first, auto count, auto in_share) {
          hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i)
              if (local + i >= first && local + i < first + count)
                whole[static_cast<std::size_t>(global + i)] =
                    trainer.optimizer_state(k).masters()[static_cast<std::size_t>(in_share + local + i - first)];
          });
        });
      }
  });
  return all;
}

}  // namespace

TEST_CASE("zero<2> and zero<3> with bf16 weights and gradients give the bits of zero<1>", "[train][precision][zero]") {
  for (const char* mesh : {"", "dp=2", "dp=3,pp=2", "dp=2,pp=2,tp=2"}) {
    INFO("mesh '" << mesh << "'");
    const train_test::folder saves("precision-zero");
    const outcome one = train<hd::zero<1>>(mesh), two = train<hd::zero<2>>(mesh),
                  three = train<hd::zero<3>>(mesh, saves.path.string());
    CHECK(two.losses == one.losses);
    CHECK(two.masters == one.masters);
    CHECK(three.losses == one.losses);
    CHECK(three.norms == one.norms);
    CHECK(three.masters == one.masters);
    const outcome resumed = train<hd::zero<3>>(mesh, "", saves.path.string());
    CHECK(resumed.losses == std::vector<double>{one.losses[2]});
    CHECK(resumed.masters == one.masters);
    CHECK(train<hd::zero<1>>(mesh, "", saves.path.string()).masters == one.masters);
  }
}
