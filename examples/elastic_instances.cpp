// Four instances of a model merge into one of four ranks, which takes a prompt that no rank has room for, and split again: answers stay.
// prints: a prompt of 300 tokens: no rank has room; four ranks together answer 10 tokens
// prints: 8 other requests run on, 1104 KiB of keys and values sent, 0 bytes of weights copied
// prints: 320 tokens beside those of instances that stayed: the same
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/elastic_llama.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace hd = heddle;
namespace infer = heddle::infer;

namespace {
using mesh_type = hd::mesh<hd::axis<hd::tp>>;
using world_type = hd::world<hd::threads, mesh_type>;
using elastic_type = infer::elastic<hd::model::elastic_llama<double>, world_type, hd::compute::host<>, 1, 4>;
using tokens = std::map<std::pair<infer::request_id, std::int64_t>, std::int32_t>;  // by request and index

constexpr hd::model::llama_config config{
    .layers = 4, .heads = 8, .kv_heads = 4, .width = 64, .ffn = 96, .context = 512, .vocabulary = 256};
constexpr infer::cache_extent cache{.blocks = 16, .block_rows = 16, .order = infer::cache_order::by_head};

infer::request ask(std::int64_t length, std::int64_t answer) {
  infer::request r{.max_tokens = answer, .sampling = {.temperature = 0}};
  for (std::int64_t i = 0; i < length; ++i) r.prompt.push_back(static_cast<std::int32_t>((i + length) * i % 251));
  return r;
}
struct outcome {
  tokens answers{};
  std::int64_t sent = 0, copied = 0, running = 0, refused = 0, long_answer = 0;
};

// Two requests on each of four ranks; with `transforms`, one more on all of them together.
outcome serve(bool transforms) {
  outcome all;
  std::mutex lock;
  hd::launch<hd::threads>(mesh_type{4}, [&](world_type& world) {
    hd::compute::host<> kernels{1};
    elastic_type instances(config, world, kernels, cache, 32);
    instances.stage().initialize(1);
    instances.weights_written();
    outcome mine;
    const auto step = [&] {
      for (const infer::event& e : instances.step())
        if (e.token) mine.answers[{e.id, e.index}] = *e.token;
    };
    for (const std::int64_t length : {5, 40}) instances.submit(ask(length + 3 * world.rank(), 40));
    for (int i = 0; i < 3; ++i) step();
    if (transforms) {
      try {
        instances.submit(ask(300, 10));
      } catch (const infer::context_error&) {
        mine.refused = 1;
      }
      instances.transform(4);
      if (instances.leads()) {
        const infer::request_id id = instances.submit(ask(300, 10));
        while (mine.answers.count({id, 9}) == 0) step();
        const auto is_long = [id](const auto& t) { return t.first.first == id; };
        mine.long_answer = static_cast<std::int64_t>(std::erase_if(mine.answers, is_long));
        mine.running = instances.counts().running;
        instances.transform(1);
      } else
        instances.follow();
    }
    while (!instances.idle()) step();
    instances.finish();
    const std::scoped_lock held(lock);
    all.answers.merge(mine.answers);
    all.sent += instances.bytes_sent(), all.copied += instances.copied_bytes();
    all.running += mine.running, all.refused += mine.refused, all.long_answer += mine.long_answer;
  });
  return all;
}
}  // namespace
int main() try {
  const outcome stayed = serve(false), moved = serve(true);
  const bool same = stayed.answers == moved.answers;
  std::printf("a prompt of 300 tokens: %s; four ranks together answer %d tokens\n",
              moved.refused == 4 ? "no rank has room" : "a rank has room", int(moved.long_answer));
  std::printf("%d other requests run on, %d KiB of keys and values sent, %d bytes of weights copied\n",
              int(moved.running), int(moved.sent / 1024), int(moved.copied));
  std::printf("%zu tokens beside those of instances that stayed: %s\n", moved.answers.size(),
              same ? "the same" : "others");
  return same ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
