// refuse: heddle: a memory model needs `std::int64_t activation_bytes(int stage) const`
// and: layers
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/gpipe.hpp>

struct layers {
  constexpr long activation_bytes(int) { return 1L << 20; }
};
using when = heddle::schedule::gpipe<heddle::microbatches<8>>;
static_assert(heddle::schedule::require_memory<when, heddle::mesh<heddle::axis<heddle::pp, 4>>, layers, 4L << 30>());
