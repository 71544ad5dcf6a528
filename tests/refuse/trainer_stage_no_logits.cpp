// refuse: heddle: text is drawn from a model whose stage has `void last_logits(const batch&, std::span<const scalar> in, std::span<scalar> out, std::span<scalar> logits)`
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void last_logits() = delete;
  };
};
void sample(const trainer_parts::options& options) {
  heddle::launch<heddle::threads>(trainer_parts::mesh{}, [&](auto& world) {
    heddle::train::trainer<model, heddle::strategy<trainer_parts::mesh>> trainer(world, options);
    heddle::train::sample(trainer, std::vector<std::int32_t>{1}, {});
  });
}
