// refuse: heddle: a learning rate needs `double operator()(std::int64_t step) const`, its value at a step counted from 0
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

#include <cstdint>
#include <string>

namespace hd = heddle;
struct own {
  void validate() const {}
  friend std::string to_string(const own&) { return "own"; }
};
void train(const hd::train::options<hd::model::gpt2_config, own>& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<trainer_parts::mesh>>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}
