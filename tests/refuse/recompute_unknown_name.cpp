// refuse: heddle: activations::named<...>: no saved activation has this name; there are ln_1.out
#include <heddle/train/activations/recompute.hpp>

using wrong = heddle::activations::recompute<heddle::activations::named<"mlp.hiden">>;
constexpr bool any = wrong::again.any();
