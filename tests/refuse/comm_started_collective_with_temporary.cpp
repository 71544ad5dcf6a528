// refuse: heddle: the buffer of a started message or collective must live until it is waited for; pass a named one or a span
#include <heddle/comm/threads.hpp>

#include <vector>

namespace hd = heddle;
void sum(hd::threads_communicator& all) { all.start_all_reduce(std::vector<int>{1, 2}, hd::plus{}).wait(); }
