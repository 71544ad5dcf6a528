// tests/consume/families/families.cpp: a model whose family is known at run time, from heddle::families.
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/families.hpp>
#include <heddle/model/families.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace md = heddle::model;

int main() {
  md::hugging_face_model about;
  about.config = md::gpt2_config{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocabulary = 11};
  about.tied = true;
  const md::any_config config(about);
  heddle::launch<heddle::threads>(md::families_mesh(1, 1, 1, 2), [&](md::families_world& world) {
    md::families_backend kernels(1);
    const auto stage = md::make_stage<float>(config, world, kernels, md::split_layers(config.layers, 0, 1), 1, 1);
    stage->initialize(1);
    const std::array<std::int32_t, 4> tokens{1, 2, 3, 4}, targets{2, 3, 4, 5};
    const double loss = stage->forward_only({tokens, targets, 1}, {}, {}) / 4;
    const auto runner = heddle::infer::make_runner<float>(config, world, kernels, {4, 4}, 4);
    if (world.rank() == 0)
      std::printf("%zu tensors, loss %s, vocabulary %lld\n", md::outlines_of<float>(config).size(),
                  std::abs(loss - std::log(11.0)) < 0.5 ? "of chance" : "of something else",
                  static_cast<long long>(runner->limits().vocabulary));
  });
  about.config = md::qwen3_config();
  try {
    md::outlines_of<float>(md::any_config(about));
  } catch (const heddle::config_error& e) {
    std::printf("%s\n", e.what());
  }
}
