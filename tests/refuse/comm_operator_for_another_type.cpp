// refuse: heddle: a reduction needs an associative operator with its identity on the element type
#include <heddle/comm/threads.hpp>

#include <vector>

struct join {
  template <class T>
  static T identity() {
    return {};
  }
  float operator()(const float& a, const float& b) const { return a + b; }
};
struct point {
  float x, y;
};

void program(heddle::threads_communicator& c, std::vector<point>& in, std::vector<point>& out) {
  c.reduce_scatter(in, out, join{});
}
