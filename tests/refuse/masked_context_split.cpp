// refuse: heddle: a context split divides causal attention: train a masked model, whose rows see later ones, without context<...> in its sharding
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/masked.hpp>
#include <heddle/train/context.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::cp, 2>>>;
using stage = hd::model::llada<float, hd::model::megatron_context<>>::stage<world, hd::compute::host<>>;
std::int64_t bytes(const stage& s) { return s.deferred_bytes(); }
