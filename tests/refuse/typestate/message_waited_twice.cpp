// refuse: while it is in the 'consumed' state
#include <heddle/comm/awaited.hpp>
#include <heddle/comm/threads.hpp>

#include <array>

namespace hd = heddle;
void ask(hd::threads_communicator& comm, const std::array<float, 8>& x) {
  hd::awaited sent(comm.isend(x, 1));
  sent.wait();
  sent.wait();
}
