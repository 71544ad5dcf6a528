// refuse: heddle: actor_graph: a register is produced twice; each register has one producer
#include <heddle/schedule/actor/actor_graph.hpp>

namespace sc = heddle::schedule;
struct load;
struct compute;
struct batch;
constexpr auto g = sc::actor_graph<sc::actor<load, sc::out<batch>>, sc::actor<compute, sc::out<batch>>>::view();
