// refuse: host_accessible_space
// and: heddle: host code may not touch the elements of this memory: call kernels of the backend, or copy_to<host_memory>(queue, x)
// and: checked_memory
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/three_functions.hpp>
#include <vector>
namespace hd = heddle;
struct model {
  static constexpr hd::named_shape parameters[]{{"fc1/kernel", {4, 4}}};
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using backend = hd::testing::checked_backend<hd::compute::host<>>;
void train(hd::world<hd::threads, mesh>& world) {
  const auto collate = [](const std::vector<double>& some) { return some; };
  const auto loss = [](auto& c, const std::vector<double>& batch) {
    auto x = c.make_activations(1, 4);
    x.elements()[0] = batch[0];  // a loop over elements is code of the host
    return hd::train::token_loss{0, 1};
  };
  const auto predict = [](auto&, const std::vector<double>& batch) { return batch; };
  hd::train::three_functions<model, double, hd::redco_rules, backend>(world, collate, loss, predict, {})
      .loss_and_gradients(std::vector<double>(4), {0, 1});
}
