// refuse: heddle: actor_graph: actors wait for each other in a circle; give its feedback register an initial value, or a slot more
#include <heddle/schedule/actor/actor_graph.hpp>

namespace sc = heddle::schedule;
struct compute;
struct update;
struct weight;
struct gradient;
// The first step waits for a weight that only the first step's gradient makes.
constexpr auto g = sc::actor_graph<sc::actor<compute, sc::in<weight>, sc::out<gradient>>,
                                   sc::actor<update, sc::in<gradient>, sc::out<weight>>>::view();
