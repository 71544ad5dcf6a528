// refuse: heddle: the schedule needs more memory than is allowed; `bytes_of_rank` names the rank, bytes needed and allowed
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>
#include <heddle/train/activations/language_memory.hpp>
#include <heddle/train/activations/recompute.hpp>

namespace hd = heddle;
struct shape {
  static constexpr hd::model::gpt2_config config = hd::model::gpt2_774m();
  static constexpr int stages = 4;
  static constexpr int samples = 1;
};
using four = hd::mesh<hd::axis<hd::pp, 4>>;
using when = hd::schedule::one_f_one_b<hd::microbatches<8>>;
using all_again = hd::train::gpt2_memory<float, shape, hd::activations::recompute<hd::activations::full>>;
using kept = hd::train::gpt2_memory<float, shape>;
static_assert(hd::schedule::require_memory<when, four, all_again, 2'000'000'000>());
static_assert(hd::schedule::require_memory<when, four, kept, 2'000'000'000>());
