// refuse: heddle: products_in<bf16> is of models whose scalar is float, in which products are added up
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>
#include <heddle/train/products.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using strategy = hd::strategy<mesh, hd::precision<hd::products_in<hd::bf16>>>;
void train(const hd::train::options<hd::model::gpt2_config>& o) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<double>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}
