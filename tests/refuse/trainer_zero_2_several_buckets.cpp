// refuse: heddle: zero<2> and zero<3> keep shares of stages with one bucket only, and this stage's gradients are summed over several sets of axes; take zero<0> or zero<1>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

#include <array>
#include <cstdint>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using base = hd::model::gpt2_stage<float, World, Backend>;
    using base::base;
    using buckets = hd::type_list<typename base::flat_weights, hd::layout<mesh, hd::varying<hd::dp>>>;
    std::array<std::int64_t, 2> bucket_elements() const { return {}; }
  };
};
using trainer = hd::train::trainer<model, hd::strategy<mesh, hd::zero<2>>>;
std::size_t size = sizeof(trainer);
