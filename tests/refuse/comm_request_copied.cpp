// refuse: deleted
#include <heddle/comm/threads.hpp>

void program(heddle::threads_request& request) {
  heddle::threads_request copy = request;
}
