// The executor of a plan over one rank; each file brings a stage that lacks something.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/model/pipeline/executor.hpp>

#include <span>
#include <type_traits>

namespace executor_parts {

namespace hd = heddle;

struct batch {
  int samples = 1;
};
struct hooks {
  void forward_done(int, int, int) {}
  void reduce_gradient(int) {}
};

template <class Stage>
void run(hd::schedule::plan_view plan, std::span<const batch> batches) {
  hd::launch<hd::threads>(hd::mesh<hd::axis<hd::pp, 1>>{}, [&](auto& world) {
    auto& pipe = world.template along<hd::pp>();
    Stage only;
    hd::null_observer off;
    hd::model::executor<Stage, std::remove_reference_t<decltype(pipe)>> executor(plan, {&only}, pipe, 1, off);
    executor.run(batches, 0, hooks{});
  });
}

}  // namespace executor_parts
