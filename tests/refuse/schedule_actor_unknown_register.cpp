// refuse: heddle: actor_graph: an actor reads a register that no actor produces
#include <heddle/schedule/actor/actor_graph.hpp>

namespace sc = heddle::schedule;
struct load;
struct compute;
struct batch;
struct bacth;  // misspelt
constexpr auto g = sc::actor_graph<sc::actor<load, sc::out<batch>>, sc::actor<compute, sc::in<bacth>>>::view();
