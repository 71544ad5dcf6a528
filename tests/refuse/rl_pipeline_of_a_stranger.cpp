// refuse: heddle: rl::pipeline<...> does not know this policy; it takes a placement (colocated, split), a step rule (sync, one_step_off, bounded_stale<...>, in_flight<...>), a completion (wait_all, partial<Over>, slots<H>), a guard (ess_below<a, b>, max_age<N>) and keep_as_is
#include <heddle/rl/pipeline.hpp>

constexpr auto how = heddle::rl::pipeline<heddle::rl::sync, int>::flow;

int main() {}
