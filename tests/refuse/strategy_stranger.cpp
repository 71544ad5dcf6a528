// refuse: heddle: strategy<...> does not know this policy; it takes a mesh, a schedule, zero<N>, a compute backend, an observer, a pipeline_axis, layers_by_cost, post_validation, captured_steps, reduce_beside, determinism, precision<...>, an optimizer's rule, what becomes of saved activations and how gradients of skipped stages are scaled
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
struct fast {};
using odd = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, fast>;
odd o;
