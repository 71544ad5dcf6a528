// refuse: heddle: rows that travel to their experts are counted by kernels: this queue runs no host code, so it must launch kernels (launch_each, see heddle/core/launch_each.hpp; that of a CUDA device does in files that nvcc compiles)
// and: queue_of_stream
#include <heddle/model/layers/exchange_routes.hpp>

namespace detail = heddle::model::layers::detail;
struct queue_of_stream {};
void use(queue_of_stream& queue, const detail::counted_rows& body) {
  detail::run_each(queue, 3, body);
}
