// refuse: heddle: elastic: heads of a block should be one run: take a backend whose attention reads a cache by_head, such as compute::host
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/elastic_llama.hpp>

namespace hd = heddle;
struct by_token : hd::compute::host<> {
  static constexpr bool takes_blocks_by_head = false;
};
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::tp>>>;
template class hd::infer::elastic<hd::model::elastic_llama<float>, world, by_token, 1, 4>;
