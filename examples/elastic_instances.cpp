// Four instances of a model merge into one of four ranks, which takes a prompt that no rank has room for, and split again: answers stay.
// run:
// mpi: 4
// virtual: 8
// prints: a prompt of 300 tokens: no rank has room; four ranks together answer 10 tokens
// prints: 8 other requests run on, 1104 KiB of keys and values sent, 0 bytes of weights copied
// prints: 320 tokens beside those of instances that stayed: the same
#include <heddle/comm/gathered_words.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/elastic_llama.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <set>
#include <vector>

#include "transport.hpp"

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {
using mesh_type = hd::mesh<hd::axis<hd::tp>>;
using model = hd::model::elastic_llama<double>;

constexpr hd::model::llama_config config{
    .layers = 4, .heads = 8, .kv_heads = 4, .width = 64, .ffn = 96, .context = 512, .vocabulary = 256};
constexpr infer::cache_extent cache{.blocks = 16, .block_rows = 16, .order = infer::cache_order::by_head};

infer::request ask(std::int64_t length, std::int64_t answer) {
  infer::request r{.max_tokens = answer, .sampling = {.temperature = 0}};
  for (std::int64_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<std::int32_t>((i + length) * i % 251));
  return r;
}
struct outcome {
  std::set<std::array<std::int64_t, 3>> answers{};  // request, index, token
  std::int64_t sent = 0, copied = 0, running = 0, refused = 0, long_answer = 0;
};

// Two requests on each of four ranks; with `transforms`, one more on all of them together.
outcome serve(bool transforms) {
  outcome all;
  hd::launch<hd::threads>(mesh_type{4}, [&]<class World>(World& world) {
    hd::compute::host<> kernels{1};
    infer::elastic<model, World, hd::compute::host<>, 1, 4> instances(config, world, kernels, cache, 32);
    instances.stage().initialize(1);
    instances.weights_written();
    outcome mine;
    infer::request_id long_one = 0;
    std::vector<std::int64_t> words;
    const auto step = [&] {
      for (const infer::event& e : instances.step())
        if (e.id == long_one)
          ++mine.long_answer;
        else if (e.token)
          words.insert(words.end(), {static_cast<std::int64_t>(e.id), e.index, *e.token});
    };
    for (const std::int64_t length : {5, 40}) instances.submit(ask(length + 3 * world.rank(), 40));
    for (int i = 0; i < 3; ++i) step();
    if (transforms) {
      mine.refused = instances.context() < 300;
      instances.transform(4);
      if (instances.leads()) {
        long_one = instances.submit(ask(300, 10));
        while (mine.long_answer < 10) step();
        mine.running = instances.counts().running;
        instances.transform(1);
      } else
        instances.follow();
    }
    while (!instances.idle()) step();
    instances.finish();
    mine.sent = instances.bytes_sent(), mine.copied = instances.copied_bytes();
    for (std::int64_t* n : {&mine.sent, &mine.copied, &mine.running, &mine.refused, &mine.long_answer})
      world.control().all_reduce(*n, hd::plus{});
    const hd::gathered_words said = hd::gather_words(world.control(), words);
    for (auto w = said.words.begin(); w != said.words.end(); w += 3) mine.answers.insert({w[0], w[1], w[2]});
    if (on::keeps(world.rank())) all = mine;
  });
  return all;
}
}  // namespace
int main(int argc, char** argv) try {
  on::begin(argc, argv);
  const outcome stayed = serve(false), moved = serve(true);
  const bool same = stayed.answers == moved.answers;
  std::printf(
      "a prompt of 300 tokens: %s; four ranks together answer %d tokens\n"
      "%d other requests run on, %d KiB of keys and values sent, %d bytes of weights copied\n"
      "%zu tokens beside those of instances that stayed: %s\n",
      moved.refused == 4 ? "no rank has room" : "a rank has room", int(moved.long_answer), int(moved.running),
      int(moved.sent / 1024), int(moved.copied), moved.answers.size(), same ? "the same" : "others");
  return same ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
