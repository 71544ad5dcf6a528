// refuse: heddle: a policy that moves activations elsewhere (activations::offload) has nowhere to move them to on paper: take activations::keep or recompute
#include <heddle/model/llama.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, hd::schedule::one_f_one_b<hd::microbatches<2>>,
                              hd::activations::offload<>>;
using step = hd::train::paper_step<hd::model::llama<float>, strategy>;
void use(const step::options_type& o, const step::mesh_type& mesh) { step(o, mesh).rank(0); }
