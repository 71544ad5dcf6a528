// refuse: static assertion failed
// and: peak_bytes
#include <heddle/model/llama.hpp>
#include <heddle/train/peak_bytes.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
struct shape {
  static constexpr auto config = hd::model::llama2_7b();
  static constexpr int samples = 1;
};
using strategy =
    hd::strategy<hd::mesh<hd::axis<hd::dp, 4>, hd::axis<hd::tp, 2>>, hd::schedule::one_f_one_b<hd::microbatches<4>>>;
static_assert(hd::train::peak_bytes<hd::model::llama<float>, strategy, shape> < 40'000'000'000);
