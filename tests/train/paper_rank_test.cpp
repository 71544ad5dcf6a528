// tests/train/paper_rank_test.cpp: a step on paper has the calls and bytes of communicators, the memory and the operations of a step that runs.
#include "catch.hpp"
#include "random_tokens.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/qwen.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/atomized.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/trainer.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace paper_rank_test {

namespace hd = heddle;
namespace md = heddle::model;
namespace tr = heddle::train;
using hd::dp, hd::pp, hd::tp;
using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using checked = hd::testing::checked_backend<hd::compute::host<>>;
constexpr int context = 12, words = 509;
using samples = train_test::random_tokens<context, words>;
using counted = std::vector<std::string>;  // "tp all_reduce: 33 calls, 4096 bytes"

using counters_of_axes = std::map<std::string, hd::comm_counters>;
void add(counters_of_axes& to, const std::string& axes, const hd::comm_counters& now,
         const hd::comm_counters& before = {}) {
  for (std::size_t i = 0; i < hd::comm_operations; ++i) {
    to[axes].by_operation[i].calls += now.by_operation[i].calls - before.by_operation[i].calls;
    to[axes].by_operation[i].bytes += now.by_operation[i].bytes - before.by_operation[i].bytes;
  }
}
counted in_words(const counters_of_axes& all) {
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
};

template <class Model, class Backend, int Zero, class... More>
void compare(const strategy_text& s, const typename Model::config& config) {
  using strategy =
      hd::strategy<mesh_type, hd::zero<Zero>, Backend, hd::schedule::named, hd::activations::recompute<>, More...>;
  INFO("mesh " << s.mesh << ", schedule " << s.schedule << ", zero " << Zero << ", recompute " << s.recompute);
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

  std::vector<seen> ran(static_cast<std::size_t>(mesh.size()));
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    tr::trainer<Model, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o);
    auto& both = world.template along_if<dp, tp>();  // of weights that tp splits the rows of
    const std::array<hd::comm_counters, 5> before{
        world.template along_if<dp>().counters(), world.template along_if<tp>().counters(),
        world.template along_if<pp>().counters(), trainer.pipeline_group().counters(), both.counters()};
    trainer.step(samples{});
    hd::compute::queue_of(trainer.backend()).wait();  // weights may still be gathered
    seen& mine = ran[static_cast<std::size_t>(world.rank())];
    add(mine.traffic, "dp", world.template along_if<dp>().counters(), before[0]);
    add(mine.traffic, "tp", world.template along_if<tp>().counters(), before[1]);
    add(mine.traffic, "pp", world.template along_if<pp>().counters(), before[2]);
    add(mine.traffic, "pp", trainer.pipeline_group().counters(), before[3]);
    add(mine.traffic, "dp,tp", both.counters(), before[4]);
    mine.held = tr::bytes_held(trainer);
    if constexpr (!Backend::space::host_accessible) mine.most = trainer.backend().queue().most_bytes();
  });

  const tr::paper_step<Model, strategy> step(o, mesh);
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
    if (real.most != 0)
      CHECK(static_cast<double>(real.most) == Approx(static_cast<double>(found.memory->total())).epsilon(0.01));
    flops += found.flops();
  }
  const double once = config.flops_per_token() * static_cast<double>(s.batch * context);
  if (std::string(s.recompute) == "none")
    CHECK(static_cast<double>(flops) == Approx(once).epsilon(1e-12));
  else
    CHECK(static_cast<double>(flops) > once);
}

md::llama_config small_llama() {
  return {.layers = 4, .heads = 8, .kv_heads = 8, .width = 64, .ffn = 170, .context = context, .vocabulary = words};
}

TEST_CASE("a step on paper sends and holds what a GPT-2's does", "[train][paper][ranks]") {
  const md::gpt2_config c{.layers = 4, .heads = 8, .width = 64, .context = context, .vocabulary = words};
  compare<md::gpt2<float>, checked, 0>({"dp=2,pp=2,tp=2", "1f1b", 4, "none"}, c);
  compare<md::gpt2<float>, checked, 0>({"dp=4,pp=2", "zb-h1", 2, "full", 19}, c);
  compare<md::gpt2<float>, checked, 0>({"tp=8", "gpipe", 8, "none"}, c);
}

TEST_CASE("a step on paper sends and holds what a Llama's does", "[train][paper][ranks]") {
  using model = md::llama<float>;
  compare<model, hd::compute::host<>, 1>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"}, small_llama());
  compare<model, hd::compute::host<>, 1>({"dp=2,tp=4", "1f1b", 2, "full", 10}, small_llama());
  compare<model, hd::compute::host<>, 1>({"pp=4,tp=2", "zb-h1", 8, "full"}, small_llama());
  compare<model, checked, 2>({"dp=4,pp=2", "interleaved:2", 2, "none"}, small_llama());
  compare<model, hd::compute::host<>, 2, hd::reduce_beside>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"},
                                                            small_llama());
  compare<model, checked, 2>({"dp=2,pp=2,tp=2", "1f1b", 4, "full", 8}, small_llama());
}

TEST_CASE("a step on paper sends and holds what a Qwen's does", "[train][paper][ranks]") {
  compare<md::qwen3<float>, checked, 3>({"dp=8", "1f1b", 2, "full", 17}, md::qwen3_config(small_llama()));
  compare<md::qwen3<float>, checked, 3>({"dp=2,pp=2,tp=2", "interleaved:2", 4, "none"},
                                        md::qwen3_config(small_llama()));
}

TEST_CASE("a step on paper sends and holds what one of reduced types does", "[train][paper][ranks]") {
  using model = md::llama<float>;
  using products = hd::precision<hd::products_in<hd::bf16>>;
  using gradients = hd::precision<hd::gradients_in<hd::bf16>, hd::moments_in<hd::bf16>>;
  compare<model, hd::compute::host<>, 1, products>({"dp=2,pp=2,tp=2", "1f1b", 4, "none", 8}, small_llama());
  compare<model, checked, 2, gradients>({"dp=4,pp=2", "1f1b", 4, "none", 16}, small_llama());
}
}  // namespace paper_rank_test
}  // namespace
