// refuse: heddle: written<"...">: the text is not a schedule
#include <heddle/schedule/text/parse.hpp>

constexpr int n = heddle::schedule::written<"F0 X1 B0">{}.microbatch_count();
