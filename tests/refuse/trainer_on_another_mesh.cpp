// refuse: heddle: the ranks are launched on another mesh than that of the strategy; give launch<...> and strategy<...> one mesh, or the trainer the world.sub<...>() on the strategy's axes
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/make_trainer.hpp>

namespace hd = heddle;
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>>;

void train(const hd::train::options<hd::model::gpt2_config>& options) {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::dp, 4>>{}, [&](auto& world) {
    auto trainer = hd::train::make_trainer<strategy>(hd::model::gpt2<float>{}, world, options);
    trainer.run(0);
  });
}
