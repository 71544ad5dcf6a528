// refuse: heddle: determinism::mesh_to_mesh is for meshes of data-parallel ranks and pipeline stages: along other axes (tp, ep, cp) sums are cut by the mesh; give those 1 rank
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/mesh_to_mesh.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::tp, 2>>;
using world = hd::world<hd::threads, mesh>;
using trainer =
    hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh, hd::determinism::mesh_to_mesh, hd::zero<1>>, world>;
void train(world& w, const hd::train::options<hd::model::gpt2_config>& o) { trainer t(w, o); }
