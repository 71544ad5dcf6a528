// The program of docs/ideas.md: who, where, how and when of one small step, each as a type.
// run:
// mpi: 4
// prints: who: pp=2 x tp=2, 4 ranks
// prints: where: 8 x 6 of 8 x 12
// prints: sends 192 bytes
// prints: 0F0 0F1 0B0
#include <heddle/heddle.hpp>
#include <heddle/schedule/text/print.hpp>
#include <cstdio>

namespace hd = heddle;
using hd::pp, hd::tp;

// Who: four ranks, two pipeline stages of two.
using mesh = hd::mesh<hd::axis<pp, 2>, hd::axis<tp, 2>>;

// Where: columns of a weight over tp; what a product with rows leaves is still a sum over tp.
using column = hd::layout<mesh, hd::shard<1, tp>>;
using row = hd::layout<mesh, hd::shard<0, tp>>;
using copy = hd::layout<mesh>;
using hidden = hd::propagate<"bi,ih->bh", copy, column>;
using terms = hd::propagate<"bh,ho->bo", hidden, row>;
static_assert(std::same_as<terms, hd::layout<mesh, hd::partial<hd::plus, tp>>>);

// How: the plan that closes the sum, and what it sends.
constexpr auto plan = hd::redistribution<terms, copy>;
static_assert(plan.bytes_sent_per_rank(hd::shape{8, 6}, sizeof(float)) == 192);

// When: a table of forwards and backwards, checked before anything runs.
using when = hd::schedule::one_f_one_b<hd::microbatches<4>>;
static_assert(hd::schedule::valid<when, mesh> && hd::schedule::deadlock_free<when, mesh>);

int main(int argc, char** argv) {
  return hd::launch<hd::threads, mesh>(argc, argv, [](auto& world) {
    hd::sharded<float, 2, column> w({}, hd::shape{8, 12}, world.rank());
    hd::sharded<float, 2, terms> y({}, hd::shape{8, 6}, world.rank());
    for (float& v : y.elements()) v = 1;
    const auto closed = hd::redistribute<copy>(std::move(y), world);
    if (world.rank() != 0) return;
    std::printf("who: %s, %d ranks\n", to_string(mesh{}).c_str(), world.size());
    std::printf("where: %s of %s\n", to_string(w.local_shape()).c_str(), to_string(w.shape()).c_str());
    std::printf("how: %s sends 192 bytes, 1 + 1 = %g\n", to_string(plan).c_str(), closed.elements()[0]);
    std::printf("when:\n%s", hd::schedule::to_text(hd::schedule::table_of<when, 2>).c_str());
  });
}
