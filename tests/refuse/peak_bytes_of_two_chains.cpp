// refuse: heddle: peak_bytes counts tables of one chain: for schedules with two, or with paths, take train::explain
#include <heddle/model/llama.hpp>
#include <heddle/schedule/generate/chimera.hpp>
#include <heddle/train/peak_bytes.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
struct shape {
  static constexpr auto config = hd::model::llama_tiny();
  static constexpr int samples = 1;
};
using strategy = hd::strategy<hd::mesh<hd::axis<hd::pp, 2>>, hd::schedule::chimera<hd::microbatches<4>>>;
static_assert(hd::train::peak_bytes<hd::model::llama<float>, strategy, shape> < 80'000'000'000);
