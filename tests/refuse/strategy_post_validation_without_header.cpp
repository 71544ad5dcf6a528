// refuse: heddle: strategy<...> has a policy whose header is missing: schedule::named needs #include <heddle/schedule/named.hpp>, captured_steps <heddle/train/captured_steps.hpp>, post_validation and post_validation_with_copy <heddle/train/post_validation.hpp>
// and: strategy_has_header<
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/strategy.hpp>

using mesh = heddle::mesh<heddle::axis<heddle::dp, 2>>;
using strategy = heddle::strategy<mesh, heddle::post_validation_with_copy>;
static_assert(sizeof(strategy) > 0);
