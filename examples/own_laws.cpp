// Tests of a user's own split policy, operator and layouts, without a test framework.
// run:
// mpi: 6
// virtual: 12
// prints: backwards cuts every size: holds in
// prints: louder is a commutative monoid: holds in
// prints: our layouts hold, move and differentiate: holds in
// prints: 1 + 2 + 3 is 6 on every rank: yes
#include <heddle/heddle.hpp>
#include <heddle/testing/gradient_laws.hpp>
#include <heddle/testing/monoid_laws.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/testing/random_cases.hpp>
#include <heddle/testing/split_laws.hpp>

#include <cstdio>

#include "transport.hpp"

namespace hd = heddle;
namespace law = hd::testing;
using hd::dp, hd::tp;

// A split policy of our own: the last part comes first, as in a ring that is filled from its end.
struct backwards {
  using kind = hd::split_kind;
  using same = hd::split::balanced;
  static constexpr bool contiguous = false;  // parts are intervals, but not in the order of the ranks
  static constexpr bool fits(std::int64_t, std::int64_t) { return true; }
  static constexpr std::int64_t size(std::int64_t n, std::int64_t p, std::int64_t r) {
    return same::size(n, p, p - 1 - r);
  }
  static constexpr std::int64_t stored(std::int64_t n, std::int64_t p, std::int64_t r) { return size(n, p, r); }
  static constexpr std::int64_t owner(std::int64_t n, std::int64_t p, std::int64_t g) {
    return p - 1 - same::owner(n, p, g);
  }
  static constexpr std::int64_t to_local(std::int64_t n, std::int64_t p, std::int64_t g) {
    return same::to_local(n, p, g);
  }
  static constexpr std::int64_t to_global(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) {
    return same::to_global(n, p, p - 1 - r, l);
  }
  static constexpr std::int64_t run(std::int64_t n, std::int64_t p, std::int64_t r, std::int64_t l) {
    return size(n, p, r) - l;
  }
};

// An operator of our own: the number with the larger magnitude.
struct louder {
  static constexpr bool commutative = true;
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  constexpr T operator()(const T& a, const T& b) const {
    const T x = a < T(0) ? -a : a, y = b < T(0) ? -b : b;
    return x != y ? (x < y ? b : a) : (a < b ? b : a);  // of -2 and 2, always 2
  }
};

// Our layouts, on a mesh whose extents the tests draw.
using mesh = hd::mesh<hd::axis<dp>, hd::axis<tp>>;
using activations = hd::layout<mesh, hd::shard<0, dp>, hd::shard<1, backwards, tp>>;
using sums = hd::layout<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>;
using copies = hd::layout<mesh, hd::shard<0, dp>, hd::identical<tp>>;

// Laws that the compiler checks: where one breaks, its message shows the element, what was expected, and what came.
HEDDLE_STATIC_LAW(law::split_policy<backwards>(12, 4));
HEDDLE_STATIC_LAW(law::partition(activations{mesh{2, 3}}, hd::shape<3, 7>{}));
static_assert(law::dual_is_an_involution<activations>);

int main(int argc, char** argv) {
  on::begin(argc, argv);
  law::report all;
  const auto say = [&](const char* what, const law::report& r) {
    std::printf("%s: %s\n", what, to_string(r).c_str());
    all += r;
  };
  say("backwards cuts every size", law::check_split_policy<backwards>());
  say("louder is a commutative monoid", law::check_monoid<louder, int>());

  // Random meshes of up to 8 ranks per axis and shapes of up to 64 x 64; a failure is made as small as it gets.
  const law::case_options options{.seed = 2024, .cases = 10, .most_ranks = 8, .most_elements = 500};
  say("our layouts hold, move and differentiate",
      law::for_random_cases<mesh, 2>(options, [](const mesh& m, const auto& shape, std::uint64_t seed) {
        law::report r = law::check_partition(activations{m}, shape);  // every element held once, index maps inverse
        r += law::check_round_trip(activations{m}, shape, seed);      // gather(scatter(x)) is x
        r += law::check_redistribution<activations>(sums{m}, shape, seed);  // value kept, bytes sent are the plan's
        r += law::check_path<sums, copies, activations>(m, shape, seed);    // the way over `copies` gives the same
        r += law::check_adjoint<copies>(sums{m}, shape, seed);              // backward is the adjoint of forward
        return r;
      }));

  // A world inside this process (`hd::mpi`: of processes): each rank returns what it found, one thread looks at it.
  const auto totals = law::on_ranks<hd::threads>(mesh{2, 3}, [](auto& world) {
    hd::sharded<float, 2, sums> x(sums{world.mesh()}, hd::shape{2, 4}, world.rank());
    for (float& e : x.elements()) e = static_cast<float>(1 + world.template coordinate<tp>());
    return hd::redistribute<copies>(x, world).elements()[0];
  });
  std::printf("1 + 2 + 3 is %g on every rank: %s\n", totals[0], totals.all_are(6.0f) ? "yes" : "no");
  return all.ok() && totals.all_are(6.0f) ? 0 : 1;
}
