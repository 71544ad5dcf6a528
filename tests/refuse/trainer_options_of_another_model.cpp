// refuse: heddle: these are not the options of this model; give it train::options<Model::config>, such as train::options<model::gpt2<float>::config>
// and: llama_config
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/model/llama.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh>;
void train(const hd::train::options<hd::model::llama_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}
