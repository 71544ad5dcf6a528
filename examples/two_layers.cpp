// A two-layer network on dp x tp: the compiler works out every layout, and which collective joins the two halves.
// run:
// mpi: 4
// prints: all_reduce
// prints: rank 0 holds 4 x 64 of 8 x 64 and sends 1024 bytes: 1 + 2 = 3
#include <heddle/heddle.hpp>
#include <cstdio>

namespace hd = heddle;
using hd::dp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 2>>;   // who: 4 ranks, as a type
using input = hd::layout<mesh, hd::shard<0, dp>>;          // where: rows split over dp, a copy along tp
using column = hd::layout<mesh, hd::shard<1, tp>>;         // first weight, its columns split over tp
using row = hd::layout<mesh, hd::shard<0, tp>>;            // second weight, its rows split over tp
using hidden = hd::propagate<"bi,io->bo", input, column>;  // what a product of the two gives
using output = hd::propagate<"bi,io->bo", hidden, row>;
static_assert(std::same_as<output, hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>>);
constexpr auto how = hd::redistribution<output, input>;  // the sum over tp is open: one all_reduce
static_assert(how.bytes_sent_per_rank(hd::shape{8, 64}, sizeof(float)) == 1024);

int main(int argc, char** argv) {
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {  // the same body on every rank
    // This rank's contribution to the sum that is still open.
    hd::sharded<float, 2, output> y(output{}, hd::shape{8, 64}, world.rank());
    for (float& v : y.elements()) v = 1.0f + static_cast<float>(world.template coordinate<tp>());
    const auto z = hd::redistribute<input>(std::move(y), world);
    if (world.rank() == 0)
      std::printf("%s\nrank 0 holds %s of %s and sends 1024 bytes: 1 + 2 = %g\n", to_string(how).c_str(),
                  to_string(z.local_shape()).c_str(), to_string(z.shape()).c_str(), z.local()(0, 0));
  });
}
