// refuse: text_finding<1, 1, 14>
#include <heddle/schedule/parse.hpp>

using forgets = heddle::schedule::written<"F0 F1 B0 | F0 F B0">;
constexpr int n = forgets{}.microbatch_count();
