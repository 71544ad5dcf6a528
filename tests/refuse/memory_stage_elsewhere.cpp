// refuse: heddle: this stage keeps its tensors in another memory than the backend computes in: a stage says where they are
// and: stage
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/trainer.hpp>
namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, hd::compute::host<>> {
    template <class Config, class Parts, class... More>
    stage(const Config&, World&, Backend&, const Parts&, int, std::int64_t, int, More&&...);
  };
};
using strategy = hd::strategy<mesh, hd::testing::checked_backend<hd::compute::host<>>>;
constexpr std::size_t size = sizeof(hd::train::trainer<model, strategy, hd::world<hd::threads, mesh>>);
