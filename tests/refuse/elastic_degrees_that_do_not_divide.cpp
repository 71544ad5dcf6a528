// refuse: heddle: elastic: degrees should be 1 and others that each divide the next; take 1, 2, 4
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/infer/elastic.hpp>
#include <heddle/model/elastic_llama.hpp>

namespace hd = heddle;
using world = hd::world<hd::threads, hd::mesh<hd::axis<hd::tp>>>;
template class hd::infer::elastic<hd::model::elastic_llama<float>, world, hd::compute::host<>, 1, 2, 3>;
