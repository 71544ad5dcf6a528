// refuse: lie side by side in this parameter, and equal chunks of it mix them
#include <heddle/layout/named_layouts.hpp>
#include <array>
namespace hd = heddle;
struct model {
  static constexpr std::array parameters{hd::named_shape{"h/0/attn/c_attn/kernel", {8, 24}}};
};
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using weight = hd::named_layouts<model, mesh>::of<"h/0/attn/c_attn/kernel">;
