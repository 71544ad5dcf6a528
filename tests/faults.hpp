// tests/faults.hpp: whether the system refuses a read.
#pragma once

#include <csetjmp>
#include <csignal>

namespace fault_test {

inline sigjmp_buf before_fault;
inline void leave(int) {
  siglongjmp(before_fault, 1);
}
/// Whether the system refuses a read of this byte.
inline bool faults(const volatile void* at) {
  struct sigaction with{}, before{}, bus{};
  with.sa_handler = leave;
  sigemptyset(&with.sa_mask);
  sigaction(SIGSEGV, &with, &before);
  sigaction(SIGBUS, &with, &bus);
  volatile bool refused = true;
  if (sigsetjmp(before_fault, 1) == 0) {
    static_cast<void>(*static_cast<const volatile char*>(at));
    refused = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  sigaction(SIGBUS, &bus, nullptr);
  return refused;
}

}  // namespace fault_test
