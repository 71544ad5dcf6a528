// refuse: use algo::dyadic, which always folds the same tree
#include <heddle/collective/collectives.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/gru_operator.hpp>

#include <vector>

using backend = heddle::compute::host<heddle::compute::portable>;

void reduce(heddle::threads::communicator& group, std::vector<float>& x,
            const heddle::model::gru_operator<float, backend>& op) {
  heddle::all_reduce<heddle::algo::ring>(group, x, op);
}
