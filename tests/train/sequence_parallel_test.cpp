// tests/train/sequence_parallel_test.cpp: trainers whose rows are split over tp: any mesh, schedule and policy trains the model of
// one rank, and holds the bytes of the formula.
#include "language_training.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/observed_world.hpp>
#include <heddle/train/atomized.hpp>

#include <cmath>

using namespace language_training;

namespace {

// Microbatches of 7, 14, ... rows: uneven over 2 and 3 ranks.
constexpr md::llama_config of_llama{
    .layers = 3, .heads = 6, .kv_heads = 2, .width = 24, .ffn = 29, .context = 7, .vocabulary = 61};
constexpr md::gpt2_config of_gpt2{
    .layers = 3, .heads = 3, .width = 12, .context = 7, .vocabulary = 61, .initial_deviation = 0.1};
using tokens = random_tokens<7, 61, 3>;
using llama = md::llama<double, md::megatron_sequence<>>;
using gpt2 = md::gpt2<double, md::megatron_sequence<>>;

struct run {
  const char* mesh;
  const char* schedule;
  int microbatches;
  const char* again;
};
template <class Model, std::size_t N>
void check_all(const typename Model::config& settings, const run (&runs)[N]) {
  const outcome serial = train<Model, tokens>(settings, "", "1f1b", 1);
  REQUIRE(serial.norms[0] > 0.05);  // so that clipping is part of what is compared
  REQUIRE(std::abs(serial.losses[2] - serial.losses[0]) > 1e-6);
  for (const run& r : runs) {
    INFO("mesh '" << r.mesh << "', " << r.schedule << ", " << r.microbatches << " microbatches, again '" << r.again
                  << "'");
    check_same(train<Model, tokens>(settings, r.mesh, r.schedule, r.microbatches, r.again), serial);
  }
}

struct shape {
  static constexpr md::llama_config config = of_llama;
  static constexpr int stages = 2, tp = 2;
  static constexpr std::int64_t samples = 3;
};

struct counts_by_name {
  using kind = hd::observer_kind;
  static constexpr bool enabled = true;
  std::map<std::string, std::int64_t> calls{}, bytes{};
  void record(const hd::event& e) {
    ++calls[e.name];
    bytes[e.name] += e.bytes;
  }
};

}  // namespace

TEST_CASE("an observer is told of gathers and scatters of rows", "[train][observe]") {
  hd::launch<hd::threads>(mesh_type(1, 1, 2), [&](auto& world) {
    counts_by_name seen;
    hd::train::detail::watched_ranks<std::remove_reference_t<decltype(world)>, counts_by_name> watched(world, &seen);
    hd::compute::host<> kernels{1};
    using watched_world = std::remove_reference_t<decltype(watched.world())>;
    gpt2::stage<watched_world, hd::compute::host<>> stage(of_gpt2, watched.world(), kernels, md::split_layers(3, 0, 1),
                                                          1, 2);
    stage.initialize(1);
    for (const int samples : {2, 1}) {  // 14 rows, 7 for each rank; 7 rows, 4 and 3
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(7 * samples), 5);
      stage.forward(0, {ids, ids, samples, 1.0}, {}, {});
      stage.backward(0, {ids, ids, samples, 1.0}, {}, {});
    }
    // 3 blocks, the embedding and the head: 2 + 4 gathers and 2 + 2 scatters of a block, 3 and 2 of the ends.
    const std::map<std::string, std::int64_t> expected{
        {"all_gather", 21}, {"all_gather_v", 21}, {"reduce_scatter", 14}, {"reduce_scatter_v", 14}, {"all_reduce", 6}};
    const std::int64_t own = world.rank() == 0 ? 4 : 3;
    if (seen.calls != expected || seen.bytes["all_gather"] != 21 * 7 * 12 * 8 ||
        seen.bytes["all_gather_v"] != 21 * own * 12 * 8 || seen.bytes["reduce_scatter"] != 14 * 14 * 12 * 8 ||
        seen.bytes["reduce_scatter_v"] != 14 * 7 * 12 * 8)
      throw hd::error("other collectives were reported than were called");
    std::vector<double> row(5, world.rank());
    watched.world().template along<tp>().broadcast(row, 1);
    if (row != std::vector<double>(5, 1.0) || seen.calls["broadcast"] != 1 || seen.bytes["broadcast"] != 40)
      throw hd::error("the broadcast was not passed on, or not reported");
  });
}

TEST_CASE("a Llama whose rows are split over tp trains that of one rank, in double", "[train][llama][ranks]") {
  check_all<llama>(
      of_llama, {run{"tp=2", "1f1b", 1, "mlp.hidden,attn.qkv"}, run{"tp=3", "gpipe", 2, ""},
                 run{"dp=2,tp=2", "gpipe", 2, "full"}, run{"pp=2,tp=2", "1f1b", 4, ""},
                 run{"pp=2,tp=2", "zb-h1", 2, "ln_1.out,mid,head.logits"}, run{"dp=2,pp=2,tp=2", "zb-h1", 2, "full"}});
}

TEST_CASE("a GPT-2 whose rows are split over tp trains that of one rank, in double", "[train][ranks]") {
  check_all<gpt2>(of_gpt2, {run{"tp=2", "1f1b", 2, ""}, run{"tp=3", "1f1b", 1, "every 2,mlp.activated"},
                            run{"dp=2,tp=2", "1f1b", 2, ""}, run{"pp=2,tp=2", "zb-h1", 4, "full"},
                            run{"pp=3,tp=2", "1f1b", 3, "ln_f.out,head.logits"}});
}

TEST_CASE("a Llama whose rows travel beside products trains that of one rank, in double",
          "[train][llama][ranks][overlap]") {
  check_all<md::llama<double, md::megatron_sequence<dp, tp, hd::overlapped<2>>>>(
      of_llama, {run{"tp=2", "1f1b", 1, "mlp.hidden,attn.qkv"}, run{"tp=3", "gpipe", 2, ""},
                 run{"dp=2,pp=2,tp=2", "zb-h1", 2, "full"}});
}

TEST_CASE("the memory of stages whose rows are split is what the formula says", "[train][memory]") {
  using formula = hd::train::language_with_state<llama, shape, hd::zero<3>>;
  using whole = hd::train::language_with_state<md::llama<double>, shape, hd::zero<3>>;
  hd::train::options<md::llama_config> o;
  o.model = of_llama;
  o.batch = 6;
  o.threads_per_rank = 1;
  const sc::tabled when(table_named("zb-h1", 2, 2));
  CHECK_NOTHROW(hd::launch<hd::threads>(mesh_type(1, 2, 2), [&](auto& world) {
    trainer_of<std::remove_reference_t<decltype(world)>, llama> trainer(world, o, when);
    if (world.template coordinate<tp>() != 0) return;  // the first rank along tp has the most
    const auto plan = trainer.plan();
    const int rank = trainer.pipeline_group().rank(), s = trainer.held().index;
    const std::int64_t expected =
        plan.storage.buffers(rank) * formula{}.boundary_bytes() +
        plan.storage.slots(s) * formula{}.activation_bytes(s) + formula{}.resident_bytes(s) +
        formula::gathered_bytes(s) +
        hd::train::detail::most_deferred(plan.table.list(rank), s) * formula{}.deferred_bytes(s);
    if (hd::train::bytes_held(trainer) != expected)
      throw hd::error("rank " + std::to_string(world.rank()) + " holds " +
                      std::to_string(hd::train::bytes_held(trainer)) + " bytes, the formula says " +
                      std::to_string(expected));
  }));
  // Of 21 rows 11 are here. A block keeps 4 numbers of each channel of the stream (its input, the norms' outputs and what is
  // between them), two statistics of each norm's rows at most, and of all rows what is split otherwise.
  const auto lines = [](std::int64_t n) { return 8 * ((n + 7) / 8 * 8); };
  STATIC_REQUIRE(formula{}.boundary_bytes() == 8 * 11 * 24);
  CHECK(whole::block_bytes(0) - formula::block_bytes(0) ==
        4 * (lines(21 * 24) - lines(11 * 24)) + 2 * (lines(21) - lines(11)));
  CHECK(whole::end_bytes() - formula::end_bytes() == 2 * (lines(21 * 24) - lines(11 * 24)) + lines(21) - lines(11));
}
