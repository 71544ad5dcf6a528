// refuse: heddle: online training draws the samples of each rank from the rank's own buffer, so no ranks may share samples
#include <heddle/comm/threads.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/train/online/run_online.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>>;
struct trainer {  // what run_online asks first
  using mesh_type = mesh;
  using pipeline = hd::pp;
  struct axes {
    using beside = hd::type_list<>;
  };
  struct world {
    struct control_plane {
      template <class T, class Op>
      void all_reduce(T, Op) {}
    } plane;
    mesh_type mesh() const { return {}; }
    control_plane& control() { return plane; }
  } w;
  struct settings {
    std::int64_t steps = 1, validate_every = 0;
  };
  world& ranks() { return w; }
  settings options() const { return {}; }
  std::int64_t steps_done() const { return 1; }
  template <class Data>
  hd::train::step_report step(const Data&) {
    return {};
  }
  template <class Data>
  double validate(const Data&) {
    return 0;
  }
};
struct no_samples {
  bool wait_ready() const { return false; }
};
void run(trainer& t) {
  hd::train::run_online(t, no_samples{});
}
