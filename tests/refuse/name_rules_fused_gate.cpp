// refuse: heddle: named_layouts: several matrices (q, k and v, or a gate and what it gates) lie side by side
#include <heddle/layout/named_layouts.hpp>
#include <array>
namespace hd = heddle;
struct model {
  static constexpr std::array parameters{hd::named_shape{"model.layers.0.mlp.gate_up_proj.weight", {64, 16}},
                                         hd::named_shape{"model.layers.0.mlp.down_proj.weight", {16, 32}}};
};
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using weight = hd::named_layouts<model, mesh>::of<"model.layers.0.mlp.down_proj.weight">;
