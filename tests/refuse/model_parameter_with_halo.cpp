// refuse: heddle: a parameter's layout has a halo, whose copies gradients and norms would count again; lay it out by without_halo<layout>
#include <heddle/model/parameters.hpp>

#include <heddle/layout/layout.hpp>

#include <array>
#include <cstdint>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::tp, 2>>;
using rows = hd::layout<mesh, hd::halo<0, 1, hd::tp>>;
void add(hd::model::parameter_store<float>& store) {
  store.add({.name = "weight", .shape = {8, 3}}, std::array<std::int64_t, 2>{8, 3}, rows{}, 0);
}
