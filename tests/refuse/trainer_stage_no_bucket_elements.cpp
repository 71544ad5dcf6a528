// refuse: heddle: a stage with several buckets needs `bucket_elements() const`, how many elements of its flat buffers each bucket has, such as `std::array<std::int64_t, 2>`
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
struct model : hd::model::gpt2<float> {
  template <class World, class Backend>
  struct stage : hd::model::gpt2_stage<float, World, Backend> {
    using base = hd::model::gpt2_stage<float, World, Backend>;
    using base::base;
    using buckets = hd::type_list<typename base::flat_weights, hd::layout<mesh, hd::varying<hd::dp>>>;
    void bucket_elements() const;  // hides that of the base, which has one bucket
  };
};
using trainer = hd::train::trainer<model, hd::strategy<mesh, hd::zero<1>>>;
std::size_t size = sizeof(trainer);
