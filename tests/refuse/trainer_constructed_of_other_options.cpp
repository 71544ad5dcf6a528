// refuse: heddle: these are not the options of this model; give it train::options<Model::config>, such as train::options<model::gpt2<float>::config>
#include "trainer_parts.hpp"

#include <heddle/model/llama.hpp>

namespace hd = heddle;
void train(const hd::train::options<hd::model::llama_config>& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    hd::train::trainer<hd::model::gpt2<float>, hd::strategy<trainer_parts::mesh>> trainer(world, o);
    trainer.run(trainer_parts::no_data{});
  });
}
