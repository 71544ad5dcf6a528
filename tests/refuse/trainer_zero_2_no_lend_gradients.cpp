// refuse: heddle: zero<2> and zero<3> keep a rank's share of the gradients only: the stage needs `void lend_gradients(std::span<scalar>)` (elsewhere than on the host row_view<scalar, space>) and `std::int64_t flat_elements() const`; without them use zero<1>
#include <heddle/comm/launch.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/sampling.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using hd::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    void lend_gradients(std::span<float>) = delete;
  };
};
struct samples {
  std::int64_t first, count;
};
struct no_data {
  std::int64_t context() const { return 4; }
  std::int64_t validation_samples() const { return 0; }
  void fill_train(samples, std::span<std::int32_t>, std::span<std::int32_t>) const {}
  void fill_validation(samples, std::span<std::int32_t>, std::span<std::int32_t>) const {}
};
void train(const hd::train::options<hd::model::gpt2_config>& options) {
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    hd::train::trainer<model, hd::strategy<mesh, hd::zero<2>>> trainer(world, options);
    trainer.run(no_data{});
  });
}
