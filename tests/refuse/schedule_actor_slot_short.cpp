// refuse: heddle: actor_graph: actors wait for each other in a circle; give its feedback register an initial value, or a slot more
#include <heddle/schedule/actor/actor_graph.hpp>

namespace sc = heddle::schedule;
struct update;
struct weight;
// The next weight is written while the last one is read: that takes two slots.
constexpr auto g = sc::actor_graph<sc::actor<update, sc::in<weight>, sc::out<weight, 1, 1>>>::view();
