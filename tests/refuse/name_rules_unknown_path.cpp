// refuse: the model lists no parameter of this path; compare it with Model::parameters
#include <heddle/layout/named_layouts.hpp>
#include <array>
namespace hd = heddle;
struct model {
  static constexpr std::array parameters{hd::named_shape{"mlp/fc1/kernel", {8, 24}}};
};
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using weight = hd::named_layouts<model, mesh>::of<"mlp/fc2/kernel">;
