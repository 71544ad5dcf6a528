// refuse: heddle: a step on paper is of a language model, whose batches are tokens and targets
#include <heddle/model/llama.hpp>
#include <heddle/train/paper_rank.hpp>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
// A Llama whose batches are of another type.
struct of_pairs : hd::model::llama<float> {
  struct batch {
    int samples = 1;
  };
};
using strategy = hd::strategy<hd::mesh<hd::axis<hd::dp, 2>>, hd::schedule::one_f_one_b<hd::microbatches<2>>>;
using step = hd::train::paper_step<of_pairs, strategy>;
void use(const step::options_type& o, const step::mesh_type& mesh) { step(o, mesh).rank(0); }
