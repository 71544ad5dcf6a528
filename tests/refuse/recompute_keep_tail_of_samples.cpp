// refuse: heddle: activations::keep_tail keeps outputs of attention of the last rows of documents: it needs a sharding with a context split
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
namespace act = heddle::activations;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh, act::recompute<act::full, act::keep_tail<1, 2>>>,
                                   hd::world<hd::threads, mesh>>;
std::int64_t steps(const trainer& t) { return t.steps_done(); }
