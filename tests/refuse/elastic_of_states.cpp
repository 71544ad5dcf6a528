// refuse: heddle: elastic: blocks of the cache move, not states that layers keep; take a model whose layers keep keys and values alone
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/spiking_brain.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::tp>>>;
static_assert(sizeof(hd::infer::elastic<hd::model::spiking_brain<float>, world, hd::compute::host<>, 1, 4>) > 0);
