// refuse: heddle: zero<3> keeps a rank's share of the weights only: the stage needs `void lend_weights(std::span<scalar>)` (elsewhere than on the host row_view<scalar, space>) and `std::int64_t flat_elements() const`; without them use zero<2>
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void lend_weights(std::span<float>) = delete;
  };
};
template void trainer_parts::train<model, heddle::zero<3>>(const trainer_parts::options&);
