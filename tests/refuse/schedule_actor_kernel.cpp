// refuse: heddle: actor_threads::run: the kernel of this actor must be callable with its inputs (const references)
#include <heddle/schedule/actor/actor_threads.hpp>

namespace sc = heddle::schedule;
struct load;
struct print;
struct batch {
  using value_type = double;
};
using graph = sc::actor_graph<sc::actor<load, sc::out<batch>>, sc::actor<print, sc::in<batch>>>;
void run() {
  sc::actor_threads<graph> actors;
  actors.run(8, [](double& b) { b = 1; }, [](double&) {});  // a reader must not write
}
