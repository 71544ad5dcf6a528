// refuse: heddle: order_rows: rows have an order of their own where split<dim::sequence, ...> cuts them into parts, and layers keep no states and no windows
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/cached_stage.hpp>
#include <heddle/infer/rows_by_experts.hpp>
#include <heddle/model/mixtral.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::ep, 2>>>;
using stage = hd::infer::cached_stage<hd::model::mixtral<float>, world, hd::compute::host<>>;
void in_order(stage& s, hd::infer::rows_by_experts order) {
  s.order_rows(order);
}
