// refuse: heddle: the layers of this model take all rows of a step of inference: take a sharding without split<dim::sequence, ...>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/model/gpt2.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::tp, 2>>>;
using stage =
    hd::infer::cached_stage<hd::model::gpt2<float, hd::model::megatron_sequence<>>, world, hd::compute::host<>>;
std::int64_t bytes(const stage& s) {
  return s.cache_bytes();
}
