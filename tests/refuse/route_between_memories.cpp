// refuse: heddle: a parameter_route runs in one memory space, that of its backend: the source and the target lie in another one
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/testing/checked_memory.hpp>

namespace hd = heddle;
template <class Space>
struct weights {
  using element = float;
  using space = Space;
  std::vector<hd::model::parameter_box> boxes() const;
  std::vector<hd::row_view<float, Space>> rows() const;
  void written() const;
};
void check(const hd::model::parameter_route& route, hd::world<hd::threads, hd::mesh<hd::axis<hd::dp>>>& world,
           hd::compute::host<>& backend, const weights<hd::host_memory>& from, const weights<hd::testing::checked_memory>& to) {
  route.run(world, backend, from, to);
}
