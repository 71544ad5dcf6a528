// refuse: heddle: engines read and make the tokens of a sequence on every rank: take the model without its context split, which has the same parameters
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/context.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::cp, 2>>>;
using stage = hd::infer::cached_stage<hd::model::gpt2<float, hd::model::megatron_context<>>, world, hd::compute::host<>>;
std::int64_t bytes(const stage& s) { return s.cache_bytes(); }
