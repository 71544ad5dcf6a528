// tests/model/sent_bytes.hpp: bytes that the ranks of a language stage send in each verb of one microbatch.
#pragma once

#include "parallel_training.hpp"

#include <heddle/testing/counting_world.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace model_test {

/// A world that counts the bytes which ranks read of each other's memory, by textbook collectives.
struct counted_world {
  hd::testing::counting::world<any_mesh>& all;
  int rank() const { return all.rank(); }
  const any_mesh& mesh() const { return all.mesh(); }
  template <class Tag>
  auto& along_if() {
    return all.along<Tag>();
  }
};
/// Bytes that all ranks send in forward, backward_input and backward_weight of one microbatch of 3 samples.
template <class Model>
std::array<std::int64_t, 3> bytes_of(int layers, int parts) {
  typename Model::config c{};
  c.layers = layers, c.heads = 4, c.width = 12, c.context = 5, c.vocabulary = 17;
  if constexpr (requires { c.kv_heads; }) c.kv_heads = 2, c.ffn = 7, c.head_elements = 6;
  const auto tokens = random_ids(15, 17, 1), targets = random_ids(15, 17, 2);
  const md::batch<double> batch{tokens, targets, 3, 1.0 / 15};
  std::array<std::int64_t, 3> bytes{};
  std::mutex mutex;
  hd::testing::counting::run(any_mesh(1, 1, parts), [&](auto& all) {
    counted_world world{all};
    parallel_backend kernels{1};
    typename Model::template stage<counted_world, parallel_backend> s(c, world, kernels, md::split_layers(layers, 0, 1),
                                                                      1, 3, 1);
    s.initialize(11);
    std::int64_t before = 0;
    const auto count = [&](std::size_t verb) {
      all.template along<dp, pp, tp>().barrier();
      const std::lock_guard lock(mutex);
      bytes[verb] += all.bytes_sent() - before;
      before = all.bytes_sent();
    };
    s.forward(0, batch, {}, {});
    count(0);
    s.backward_input(0, batch, {}, {});
    count(1);
    s.backward_weight(0, batch);
    count(2);
  });
  return bytes;
}

}  // namespace model_test
