// tests/train/paper_comparison.hpp: a step on paper beside one that runs: calls and bytes by axes, bytes that are held, operations.
#pragma once

#include "catch.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace paper_comparison {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;

using counted = std::vector<std::string>;  // "tp all_reduce: 33 calls, 4096 bytes"
using counters_of_axes = std::map<std::string, hd::comm_counters>;
inline void add(counters_of_axes& to, const std::string& axes, const hd::comm_counters& now,
                const hd::comm_counters& before = {}) {
  for (std::size_t i = 0; i < hd::comm_operations; ++i) {
    to[axes].by_operation[i].calls += now.by_operation[i].calls - before.by_operation[i].calls;
    to[axes].by_operation[i].bytes += now.by_operation[i].bytes - before.by_operation[i].bytes;
  }
}
inline counted in_words(const counters_of_axes& all) {
  counted words;
  for (const auto& [axes, counters] : all)
    for (std::size_t i = 0; i < hd::comm_operations; ++i)
      if (const auto& of = counters.by_operation[i]; of.calls != 0)
        words.push_back(axes + " " + std::string(hd::to_string(static_cast<hd::comm_operation>(i))) + ": " +
                        std::to_string(of.calls) + " calls, " + std::to_string(of.bytes) + " bytes");
  return words;
}

struct seen {
  counters_of_axes traffic;
  std::int64_t held = 0, most = 0;
};

struct strategy_text {
  const char* mesh;
  const char* schedule;
  int microbatches;
  const char* recompute;
  std::int64_t batch = 16;
  bool computed_once = true;  // no two ranks compute the same
  const char* context = "";   // how attention of documents travels
};

// The counters of the world's groups along each of the lists of axes.
template <class World, class... Groups>
counters_of_axes counters_of(World& world, hd::type_list<Groups...>) {
  counters_of_axes all;
  const auto one = [&]<class... Tags>(hd::type_list<Tags...> tags) {
    add(all, hd::detail::joined_names(tags), world.template along_if<Tags...>().counters());
  };
  (..., one(Groups{}));
  return all;
}

struct as_made {
  template <class Trainer>
  void operator()(Trainer&) const {}
};

/// Runs a step of `samples` on as many threads as the mesh has ranks, and looks at each rank on paper. `Groups`: the axes
/// that calls run along, in the order of the mesh. `begin(trainer)` comes before the step.
template <class Model, class Strategy, class Samples, class Groups, class Begin = as_made>
void compare(const strategy_text& s, const typename Model::config& config, const Samples& samples, Groups groups,
             const Begin& begin = {}) {
  using mesh_type = typename Strategy::mesh;
  using backend = typename Strategy::backend;
  INFO("mesh " << s.mesh << ", schedule " << s.schedule << ", zero " << Strategy::zero::stage << ", recompute "
               << s.recompute);
  const auto mesh = hd::parse_mesh<mesh_type>(s.mesh);
  tr::options<typename Model::config> o;
  o.model = config;
  o.batch = s.batch;
  o.microbatches = s.microbatches;
  o.schedule = s.schedule;
  o.recompute = s.recompute;
  o.steps = 1;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 10};
  o.threads_per_rank = 1;
  o.context = s.context;

  std::vector<seen> ran(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    tr::trainer<Model, Strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    begin(trainer);
    const counters_of_axes before = counters_of(world, groups);
    const hd::comm_counters messages = trainer.pipeline_group().counters();
    trainer.step(samples);
    hd::compute::queue_of(trainer.backend()).wait();  // weights may still be gathered
    seen& mine = ran[static_cast<std::size_t>(world.rank())];
    for (const auto& [axes, now] : counters_of(world, groups)) add(mine.traffic, axes, now, before.at(axes));
    add(mine.traffic, "pp", trainer.pipeline_group().counters(), messages);
    mine.held = tr::bytes_held(trainer);
    if constexpr (!backend::space::host_accessible) mine.most = trainer.backend().queue().most_bytes();
  });

  const tr::paper_step<Model, Strategy> step(o, mesh);
  std::int64_t flops = 0;
  for (int r = 0; r < mesh.size(); ++r) {
    INFO("rank " << r);
    const tr::paper_rank found = step.rank(r);
    const seen& real = ran[static_cast<std::size_t>(r)];
    counters_of_axes traffic;
    for (const md::axis_traffic& t : found.traffic()) add(traffic, t.axes, t.counters);
    CHECK(in_words(traffic) == in_words(real.traffic));
    REQUIRE(found.memory);
    CHECK(found.memory->total() == real.held);
    if (real.most != 0) {
      CHECK(static_cast<double>(real.most) == Approx(static_cast<double>(found.memory->total())).epsilon(0.01));
      CHECK(static_cast<double>(real.most) == Approx(static_cast<double>(found.memory->peak())).epsilon(0.001));
    }
    flops += found.flops();
  }
  const double once = config.flops_per_token() * static_cast<double>(s.batch * config.context);
  if (std::string(s.recompute) == "none" && s.computed_once)
    CHECK(static_cast<double>(flops) == Approx(once).epsilon(1e-12));
  else
    CHECK(static_cast<double>(flops) > once);
}

}  // namespace paper_comparison
