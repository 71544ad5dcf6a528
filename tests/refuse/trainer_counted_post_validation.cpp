// refuse: heddle: a stage with counted_targets() counts from zero_gradients() on, which post_validation calls behind the first forwards of a step; leave post_validation out
#include <heddle/model/gpt2.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using hd::model::gpt2_stage<float, World, Backend>::gpt2_stage;
    std::int64_t counted_targets() const { return 1; }
  };
};
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, hd::post_validation>;
static_assert(sizeof(hd::train::trainer<model, strategy>) > 0);
