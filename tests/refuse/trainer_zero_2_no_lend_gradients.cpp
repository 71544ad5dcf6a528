// refuse: heddle: zero<2> and zero<3> keep a rank's share of the gradients only: the stage needs `void lend_gradients(std::span<scalar>)` (elsewhere than on the host row_view<scalar, space>) and `std::int64_t flat_elements() const`; without them use zero<1>
#include "trainer_parts.hpp"

struct model : heddle::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : heddle::model::gpt2_stage<float, World, Backend> {
    using heddle::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void lend_gradients(std::span<float>) = delete;
  };
};
template void trainer_parts::train<model, heddle::zero<2>>(const trainer_parts::options&);
