// refuse: heddle: shape<...>: there are more elements than a 64-bit number counts
#include <heddle/core/shape.hpp>

std::int64_t elements() {
  return heddle::shape<(std::int64_t{1} << 40), (std::int64_t{1} << 30)>{}.size();
}
