// refuse: heddle: three_functions: losses are computed in float or double
#include <heddle/comm/threads.hpp>
#include <heddle/train/three_functions.hpp>

#include <array>
#include <vector>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 1>>;
struct model {
  static constexpr std::array parameters{hd::named_shape{"out/kernel", {2, 1}}};
};
void f(hd::world<hd::threads, mesh>& world) {
  const auto collate = [](const std::vector<int>& some) { return some; };
  const auto loss = [](auto&, const std::vector<int>&) { return hd::train::token_loss{}; };
  hd::train::three_functions<model, hd::bf16>(world, collate, loss, collate, {});
}
