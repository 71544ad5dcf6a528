// refuse: heddle: a sharding with a context split trains on documents: include <heddle/train/context.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using how = hd::sharding<hd::dim::split<hd::dim::sequence, hd::cp, hd::context<>>>;
using mesh = hd::mesh<hd::axis<hd::cp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float, how>, hd::strategy<mesh>, hd::world<hd::threads, mesh>>;
std::int64_t steps(const trainer& t) { return t.steps_done(); }
