// refuse: heddle: the schedule needs more memory than is allowed; `bytes_of_rank` names the rank, bytes needed and allowed
// and: at::rank<0>,
// and: at::needed<8388608>,
// and: at::allowed<4194304>,
// and: at::position<14>,
// and: action_kind::forward>
// and: at::stage<0>,
// and: at::microbatch<7>
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/check/memory.hpp>

struct layers {
  constexpr long activation_bytes(int) const { return 1L << 20; }
};
using when = heddle::schedule::gpipe<heddle::microbatches<8>>;
static_assert(heddle::schedule::require_memory<when, heddle::mesh<heddle::axis<heddle::pp, 4>>, layers, 4L << 20>());
