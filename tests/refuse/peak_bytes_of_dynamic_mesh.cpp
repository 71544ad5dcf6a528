// refuse: heddle: peak_bytes<Model, Strategy, Shape> is a constant: each axis of the mesh, its pipeline along pp, and the schedule's microbatches are static; at run time take train::explain
#include <heddle/model/llama.hpp>
#include <heddle/train/peak_bytes.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
struct shape {
  static constexpr auto config = hd::model::llama_tiny();
  static constexpr int samples = 1;
};
using strategy =
    hd::strategy<hd::mesh<hd::axis<hd::dp>, hd::axis<hd::pp, 2>>, hd::schedule::one_f_one_b<hd::microbatches<4>>>;
static_assert(hd::train::peak_bytes<hd::model::llama<float>, strategy, shape> < 80'000'000'000);
