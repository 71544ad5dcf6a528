// refuse: which dimensions divide depends on the axis' size; give it
#include <heddle/layout/named_layouts.hpp>
#include <array>
namespace hd = heddle;
struct model {
  static constexpr std::array parameters{hd::named_shape{"mlp/fc1/kernel", {8, 24}}};
};
using mesh = hd::mesh<hd::axis<hd::tp>>;
using weight = hd::named_layouts<model, mesh>::of<"mlp/fc1/kernel">;
