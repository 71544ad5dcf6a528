// refuse: heddle: with post_validation a step may be done again behind the documents of the next one, which are loaded by then: leave post_validation or the context split out
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/context.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::cp, 2>, hd::axis<hd::pp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float, hd::model::megatron_context<>>,
                                   hd::strategy<mesh, hd::post_validation, hd::zero<1>>, hd::world<hd::threads, mesh>>;
std::int64_t steps(const trainer& t) { return t.steps_done(); }
