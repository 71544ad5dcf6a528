// refuse: the table has no W; split_backward comes before
#include <heddle/schedule/generate/gpipe.hpp>
#include <heddle/schedule/lower/reorder.hpp>

namespace sc = heddle::schedule;
using unsplit = sc::derived<sc::gpipe<heddle::microbatches<4>>, sc::passes::delay_weights<>>;
constexpr auto actions = unsplit{}.lists(2).actions.size();
