// refuse: heddle: what comes is stored in a std::vector<T>: T needs a default constructor, and bool is no element of such; send char instead
#include <heddle/collective/sparse_exchange.hpp>
#include <heddle/comm/threads.hpp>

#include <vector>

void flags(heddle::threads_communicator& comm, const std::vector<heddle::block_to<bool>>& out) {
  static_cast<void>(heddle::sparse_exchange(comm, out));
}
