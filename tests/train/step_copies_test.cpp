// tests/train/step_copies_test.cpp: copies of a weight on several ranks stay the same bits where steps are taken back.
#include "catch.hpp"
#include "tables.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;

namespace {

constexpr hd::model::gpt2_config config{.layers = 8, .heads = 2, .width = 16, .context = 6, .vocabulary = 30};

struct tokens {
  std::int64_t context() const { return config.context; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(hd::io::sample_block b, std::span<std::int32_t> in, std::span<std::int32_t> out) const {
    for (std::int64_t i = 0; i < b.count * config.context; ++i)
      in[static_cast<std::size_t>(i)] = out[static_cast<std::size_t>(i)] =
          static_cast<std::int32_t>((b.first * 7 + i * i) % config.vocabulary);
  }
  void fill_validation(hd::io::sample_block, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};

using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
using strategy = hd::strategy<mesh, hd::schedule::tabled, hd::post_validation, hd::zero<0>>;

// Of each part of a tensor that ranks hold, all copies.
using copies = std::map<std::string, std::vector<std::vector<float>>>;

struct outcome {
  copies weights;
  std::vector<double> norms;
  std::vector<std::int64_t> taken_back;
  int stopped = 0;   // ranks
  double moved = 0;  // the largest change of a weight; NaN if one is not finite
};

outcome run(const std::string& schedule, const mesh& on, double clip, float poison = 1) {
  const int pp = static_cast<int>(hd::group<hd::pp>(on, 0).size());
  const hd::schedule::tabled when(train_test::table_named(schedule, pp, 4));
  tr::options<hd::model::gpt2_config> o;
  o.model = config;
  o.batch = 8;
  o.steps = 3;
  o.clip_norm = clip;
  o.threads_per_rank = 1;
  std::vector<outcome> of(static_cast<std::size_t>(on.size()));
  hd::launch<hd::threads>(on, [&](auto& world) {
    outcome& mine = of[static_cast<std::size_t>(world.rank())];
    tr::trainer<hd::model::gpt2<float>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
    std::vector<std::vector<float>> before;
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      for (const auto& p : stage.parameters())
        if (p.name == "ln_f.weight" && p.count > 0) stage.weights()[static_cast<std::size_t>(p.offset)] *= poison;
      before.emplace_back(stage.weights().begin(), stage.weights().end());
    }
    try {
      trainer.run(tokens{}, [&](const tr::step_report& r) { mine.norms.push_back(r.gradient_norm); });
    } catch (const hd::numeric_error&) {
      mine.stopped = 1;
    }
    mine.taken_back.push_back(trainer.steps_taken_back());
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      const auto weights = stage.weights();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double by = std::abs(static_cast<double>(weights[i]) - before[static_cast<std::size_t>(k)][i]);
        if (std::isnan(by) || by > mine.moved) mine.moved = by;
      }
      for (const auto& p : stage.parameters()) {
        if (p.count == 0) continue;
        std::string key = p.name;
        for (const auto x : p.start) (key += ' ') += std::to_string(x);
        const auto part = weights.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
        mine.weights[key].emplace_back(part.begin(), part.end());
      }
    }
  });
  outcome all = of[0];
  for (std::size_t r = 1; r < of.size(); ++r) {
    for (auto& [key, list] : of[r].weights)
      for (auto& x : list) all.weights[key].push_back(x);
    all.taken_back.push_back(of[r].taken_back[0]);
    all.stopped += of[r].stopped;
    if (std::isnan(of[r].moved) || of[r].moved > all.moved) all.moved = of[r].moved;
  }
  return all;
}

std::string different(const copies& of) {
  std::string names;
  for (const auto& [name, list] : of)
    if (std::any_of(list.begin(), list.end(), [&](const auto& x) { return x != list[0]; })) (names += name) += "; ";
  return names;
}

}  // namespace

TEST_CASE("copies of weights stay the same bits where some ranks had stepped and others had not",
          "[train][post_validation]") {
  std::int64_t taken_back = 0;
  bool apart = false;  // some ranks had stepped, others not
  for (const char* schedule : {"1f1b", "chimera", "interleaved:2, OPTIM"})
    for (const mesh& on : {mesh(1, 2, 1), mesh(2, 2, 1), mesh(1, 2, 2), mesh(1, 4, 1)}) {
      const double norm = run(schedule, on, 1e9).norms.at(0);
      for (const double share : {0.9, 0.6}) {
        INFO(schedule << " on " << to_string(on) << ", clipped at " << share << " of the first norm");
        const outcome got = run(schedule, on, share * norm);
        CHECK(different(got.weights) == "");
        const auto [least, most] = std::minmax_element(got.taken_back.begin(), got.taken_back.end());
        taken_back += *most;
        apart = apart || *least != *most;
      }
    }
  CHECK(taken_back > 0);
  CHECK(apart);
}

TEST_CASE("no rank steps a stage by gradients that are not finite", "[train][post_validation][nonfinite]") {
  for (const mesh& on : {mesh(1, 2, 1), mesh(2, 2, 1), mesh(1, 2, 2)}) {
    INFO(to_string(on));
    const outcome got = run("interleaved:2, OPTIM", on, 1.0, 3e38f);
    CHECK(got.stopped == on.size());
    CHECK(got.moved <= 1e-6);
  }
}
