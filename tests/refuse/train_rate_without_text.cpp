// refuse: heddle: a learning rate needs a free function `std::string to_string(const rate&)` in its namespace, or as a friend, with all its settings: ranks compare it before they start
#include "trainer_parts.hpp"

#include <heddle/train/make_trainer.hpp>

#include <cstdint>
#include <string>

namespace hd = heddle;
struct own {
  double operator()(std::int64_t step) const { return 1.0 / static_cast<double>(step + 1); }
  void validate() const {}
};
void train(const hd::train::options<hd::model::gpt2_config, own>& o) {
  hd::launch<hd::threads>(trainer_parts::mesh{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<trainer_parts::mesh>>(hd::model::gpt2<float>{}, world, o);
    trainer.run(trainer_parts::no_data{});
  });
}
