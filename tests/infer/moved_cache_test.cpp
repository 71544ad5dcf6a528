// A cache of keys and values goes to another mesh and back: nothing is computed again, and answers go on as if it had stayed.
#include "cached_generation.hpp"
#include "catch.hpp"

#include <heddle/layout/layout.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/tensor/transfer.hpp>
#include <heddle/testing/counting_world.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

using namespace infer_test;

namespace {

using llama = md::llama<double>;
using llama_runner = inf::model_runner<llama, world_type, backend>;
using driver_type = driver<llama_runner>;
constexpr md::llama_config config{.layers = 3,
                                  .heads = 6,
                                  .kv_heads = 3,
                                  .width = 12,
                                  .ffn = 17,
                                  .context = 24,
                                  .vocabulary = 23,
                                  .initial_deviation = 0.4,
                                  .head_elements = 4};
constexpr std::int64_t blocks = 20, block_rows = 3, rows = blocks * block_rows;

// Of each rank, layer and tensor of the layer, what the rank holds.
using held_cache = std::map<std::tuple<int, int, int>, std::vector<double>>;

// Heads are split over tp as the model splits them, layers over pp.
using heads_mesh = hd::mesh<hd::axis<hd::tp>>;
using heads_layout = hd::layout<heads_mesh, hd::shard<1, hd::tp>>;

int stage_of(const mesh_type& mesh, int layer) {
  for (int s = 0;; ++s) {
    const auto part = llama::layers_of(config, s, mesh.extent<hd::pp>());
    if (layer < part.first + part.count) return s;
  }
}
hd::rank_range ranks_of(const mesh_type& mesh, int layer) {
  return {stage_of(mesh, layer) * mesh.extent<hd::tp>(), mesh.extent<hd::tp>()};
}
// The rank that holds a head of a layer, as the first `kv_heads % ranks` ranks have one head more.
int rank_with(const mesh_type& mesh, int layer, int head) {
  int left = head, r = 0;
  for (const int n = mesh.extent<hd::tp>();; ++r) {
    const int heads = static_cast<int>(config.kv_heads) / n + (r < static_cast<int>(config.kv_heads) % n ? 1 : 0);
    if (left < heads) return stage_of(mesh, layer) * n + r;
    left -= heads;
  }
}

struct moved {
  held_cache cache{};
  std::int64_t sent = 0, planned = 0, formula = 0;
};

// The cache on another mesh, by transfers of each of its tensors.
moved move_cache(const held_cache& held, const mesh_type& from, const mesh_type& to) {
  moved all;
  const hd::dynamic_shape<3> whole{rows, config.kv_heads, config.head_elements};
  const int size = (std::max)(from.size(), to.size());
  std::vector<held_cache> got(static_cast<std::size_t>(size));
  std::vector<std::int64_t> sent(static_cast<std::size_t>(size));
  const auto plan_of = [&](int layer) {
    return hd::plan_transfer(heads_layout(heads_mesh{from.extent<hd::tp>()}), ranks_of(from, layer),
                             heads_layout(heads_mesh{to.extent<hd::tp>()}), ranks_of(to, layer));
  };
  hd::testing::counting::run<heads_mesh>(heads_mesh{size}, [&](auto& world) {
    const int me = world.rank();
    for (int layer = 0; layer < config.layers; ++layer)
      for (const int tensor : {0, 1}) {
        const auto plan = plan_of(layer);
        std::optional<hd::sharded<double, 3, heads_layout>> part;
        if (const int source = plan.source_of(me); source >= 0) {
          part.emplace(plan.from(), whole, source);
          const std::vector<double>& own = held.at({me, layer, tensor});
          const std::span<double> memory = hd::elements_of(part->memory());
          if (own.size() != memory.size())
            throw hd::error("a rank of the test holds another part than its layout says");
          std::copy(own.begin(), own.end(), memory.begin());
        }
        const auto arrived = hd::transfer(plan, whole, part ? &*part : nullptr, world);
        if (arrived) {
          const auto memory = hd::elements_of(arrived->memory());
          got[static_cast<std::size_t>(me)][{me, layer, tensor}].assign(memory.begin(), memory.end());
        }
      }
    world.all().barrier();
    sent[static_cast<std::size_t>(me)] = world.bytes_sent();
  });
  for (int r = 0; r < size; ++r) {
    all.sent += sent[static_cast<std::size_t>(r)];
    all.cache.merge(got[static_cast<std::size_t>(r)]);
  }
  for (int layer = 0; layer < config.layers; ++layer) {
    all.planned += 2 * plan_of(layer).bytes_sent_in_total(whole, sizeof(double));
    for (int head = 0; head < config.kv_heads; ++head)
      if (rank_with(from, layer, head) != rank_with(to, layer, head))
        all.formula += 2 * rows * config.head_elements * static_cast<std::int64_t>(sizeof(double));
  }
  return all;
}

// Three sequences, greedy: `steps` tokens more of each, on a mesh whose cache is `held`, where there is one; the cache afterwards.
held_cache go_on(const mesh_type& mesh, const held_cache* held, std::vector<std::vector<std::int32_t>>& texts,
                 std::unique_ptr<driver_type>& d, int steps) {
  const auto ranks = hd::testing::on_ranks(mesh, [&](world_type& world) {
    backend kernels{1};
    llama_runner runner(config, world, kernels, {blocks, block_rows}, 40);
    runner.stage().initialize(77);
    if (held != nullptr)
      runner.stage().visit_cache([&](int layer, int tensor, const auto& view) {
        const std::vector<double>& part = held->at({world.rank(), layer, tensor});
        const auto to = hd::elements_of(view);
        if (part.size() != to.size()) throw hd::error("what arrived is not this rank's part of the cache");
        std::copy(part.begin(), part.end(), to.begin());
      });
    if (runner.leads()) {
      if (d == nullptr) {
        d = std::make_unique<driver_type>(runner, texts, 5);
        d->spoil(5);
      }
      d->go_on_with(runner);
      for (int i = 0; i < steps; ++i) {
        std::vector<std::pair<std::size_t, std::int64_t>> fed;
        for (std::size_t s = 0; s < texts.size(); ++s) fed.emplace_back(s, d->left(s));
        d->feed(fed);
        for (std::size_t s = 0; s < texts.size(); ++s) {
          const std::vector<double>& last = d->found()[s].back();
          texts[s].push_back(static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
        }
      }
      runner.finish();
    } else {
      runner.follow();
    }
    held_cache own;
    runner.stage().visit_cache([&](int layer, int tensor, const auto& view) {
      const auto elements = hd::elements_of(view);
      own[{world.rank(), layer, tensor}].assign(elements.begin(), elements.end());
    });
    return own;
  });
  if (!ranks.ok()) FAIL(ranks.error);
  held_cache all;
  for (int r = 0; r < mesh.size(); ++r)
    for (const auto& [at, part] : ranks[r]) all[at] = part;
  return all;
}

}  // namespace

TEST_CASE("a cache goes to another mesh and back, and answers go on as if it had stayed", "[infer][law]") {
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::size_t n : {std::size_t{7}, std::size_t{1}, std::size_t{12}})
    prompts.push_back(random_tokens(n, config.vocabulary, 900 + n));
  const std::vector<std::pair<mesh_type, mesh_type>> pairs{{mesh_type{1, 2}, mesh_type{1, 3}},
                                                           {mesh_type{1, 4}, mesh_type{1, 1}},
                                                           {mesh_type{2, 2}, mesh_type{1, 3}},
                                                           {mesh_type{2, 4}, mesh_type{3, 2}}};
  for (const auto& [a, b] : pairs) {
    CAPTURE(hd::to_string(a), hd::to_string(b));
    auto stayed_texts = prompts, texts = prompts;
    std::unique_ptr<driver_type> stayed, d;
    go_on(a, nullptr, stayed_texts, stayed, 9);

    const held_cache first = go_on(a, nullptr, texts, d, 3);  // prompts and three tokens
    const moved there = move_cache(first, a, b);
    const moved and_back = move_cache(there.cache, b, a);
    CHECK(and_back.cache == first);  // every bit
    for (const moved& m : {there, and_back}) {
      CHECK(m.sent == m.planned);
      CHECK(m.sent == m.formula);
    }
    CHECK(there.formula > 0);
    const held_cache second = go_on(b, &there.cache, texts, d, 3);
    const moved home = move_cache(second, b, a);
    go_on(a, &home.cache, texts, d, 3);
    CHECK(texts == stayed_texts);
    CHECK(texts[0].size() == prompts[0].size() + 9);
    CHECK(distance(d->found(), stayed->found()) < 1e-10);
  }
}
