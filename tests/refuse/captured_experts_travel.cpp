// refuse: (experts whose rows travel between ranks, activations that leave the device): split experts over an axis that splits no samples or sequences, keep activations on the device, or leave captured_steps out
// and: mixtral
#include "captured_parts.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/testing/checked_backend.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>, hd::axis<hd::ep>, hd::axis<hd::pp>, hd::axis<hd::tp>>;
template <class How>
using stage =
    typename hd::model::mixtral<float, How>::template stage<hd::world<hd::threads, mesh>,
                                                            hd::testing::checked_backend<hd::compute::host<>>>;
static_assert(captured_parts::captured<captured_parts::strategy, stage<hd::model::megatron_with_experts<>>>);
bool captured = captured_parts::captured<captured_parts::strategy, stage<hd::model::expert_parallel<>>>;
