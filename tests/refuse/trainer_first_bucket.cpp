// refuse: heddle: the stage's flat_weights are the layout of its first bucket; make it the first of `buckets`
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
    using buckets = hd::type_list<hd::layout<mesh, hd::varying<hd::dp>>, typename base::flat_weights>;
    std::array<std::int64_t, 2> bucket_elements() const { return {}; }
  };
};
using trainer = hd::train::trainer<model, hd::strategy<mesh, hd::zero<1>>>;
std::size_t size = sizeof(trainer);
