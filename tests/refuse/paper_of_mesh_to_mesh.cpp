// refuse: heddle: on paper gradients are summed by calls of communicators, and those of determinism::mesh_to_mesh by messages; leave it out there
#include <heddle/model/llama.hpp>
#include <heddle/train/mesh_to_mesh.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, hd::schedule::one_f_one_b<hd::microbatches<2>>,
                              hd::determinism::mesh_to_mesh>;
using step = hd::train::paper_step<hd::model::llama<float>, strategy>;
void use(const step::options_type& o, const step::mesh_type& mesh) { step(o, mesh).rank(0); }
