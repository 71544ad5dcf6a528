// refuse: heddle: a mixture of experts on paper: how many rows each expert gets is known when it runs only; take paper_world with a real backend, or a model without experts
#include <heddle/compute/host/host.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/model/paper/backend.hpp>
#include <heddle/model/paper/world.hpp>

namespace md = heddle::model;
using world = md::paper_world<heddle::mesh<heddle::axis<heddle::tp, 2>>>;
using backend = md::paper_backend<heddle::compute::host<>>;
using stage = md::mixtral<float>::stage<world, backend>;
void use(stage& s, const stage::batch_type& b, stage::row x) {
  s.forward(0, b, x, x);
}
