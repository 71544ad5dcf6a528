// refuse: while it is in the 'unknown' state
#include <heddle/comm/awaited.hpp>
#include <heddle/comm/threads.hpp>

#include <array>

namespace hd = heddle;
void ask(hd::threads_communicator& comm, const std::array<float, 8>& x) {
  hd::awaited sent(comm.isend(x, 1));
  if (x[0] > 0) sent.wait();
}
