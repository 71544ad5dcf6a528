// refuse: heddle: written<"...">: the text is not a schedule
// and: at::rank<1>,
// and: at::position<1>,
// and: at::character<14>
#include <heddle/schedule/text/parse.hpp>

using forgets = heddle::schedule::written<"F0 F1 B0 | F0 F B0">;
constexpr int n = forgets{}.microbatch_count();
