// refuse: heddle: a pipeline stage needs `std::int64_t boundary_elements(std::int64_t samples) const`, the size of the tensor between stages at its largest
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/executor.hpp>

namespace hd = heddle;
struct batch {
  int samples = 1;
};
struct stage {
  using scalar = double;
  void forward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_input(int, const batch&, std::span<const double>, std::span<double>) {}
  void backward_weight(int, const batch&) {}
};
struct hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};
void train(hd::schedule::plan_view plan, std::span<const batch> batches) {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp, 1>>{}, [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    stage only;
    hd::null_observer off;
    hd::model::executor<stage, std::remove_reference_t<decltype(pipe)>> executor(plan, {&only}, pipe, 1, off);
    executor.run(batches, 0, hooks{});
  });
}
