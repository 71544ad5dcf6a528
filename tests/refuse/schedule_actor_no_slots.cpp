// refuse: heddle: actor_graph: a register needs at least one slot
#include <heddle/schedule/actor/actor_graph.hpp>

namespace sc = heddle::schedule;
struct load;
struct print;
struct batch;
constexpr auto g = sc::actor_graph<sc::actor<load, sc::out<batch, 0>>, sc::actor<print, sc::in<batch>>>::view();
