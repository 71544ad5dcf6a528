// refuse: heddle: the stage's `buckets` is no type_list of layouts, one for each bucket of its parameters
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using base = hd::model::gpt2_stage<float, World, Backend>;
    using base::base;
    using buckets = hd::type_list<hd::dp>;
  };
};
using trainer = hd::train::trainer<model, hd::strategy<mesh, hd::zero<1>>>;
std::size_t size = sizeof(trainer);
