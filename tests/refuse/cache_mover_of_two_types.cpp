// refuse: heddle: cache_mover: rows that arrive are not converted; both runners should have elements of one type
#include <heddle/infer/move_cache.hpp>

namespace hd = heddle;
template <class Element>
struct stage {
  using T = Element;
  using space = hd::host_memory;
  struct keeps {
    static constexpr bool has_states = false;
  };
};
struct world {};
struct backend {};
hd::infer::cache_mover<world, backend, stage<float>, stage<double>>* mover = nullptr;
std::size_t size() { return sizeof(*mover); }
