// refuse: heddle: named_layouts: the rules split no parameter of this model, so every rank would hold all of it
#include <heddle/layout/named_layouts.hpp>
#include <array>
namespace hd = heddle;
struct model {
  static constexpr std::array parameters{hd::named_shape{"mlp.fc1.w", {8, 24}}, hd::named_shape{"mlp.fc1.bias", {24}}};
};
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using weight = hd::named_layouts<model, mesh>::of<"mlp.fc1.w">;
