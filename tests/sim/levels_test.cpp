#include <heddle/mesh/topologies.hpp>
#include <heddle/sim/levels.hpp>
#include <heddle/sim/network.hpp>

#include "catch.hpp"

#include <cstdint>
#include <vector>

namespace hd = heddle;
namespace sim = heddle::sim;

namespace {

struct levels_x {};
struct levels_y {};
struct levels_z {};
using what = hd::comm_operation;

// The rounds of a ring (or of an exchange at all distances) of all groups along Tags at once, by world ranks.
template <class... Tags, class Mesh>
hd::round_table levels_rounds(const Mesh& mesh, what operation) {
  const int p = mesh.template group_size<Tags...>(), n = mesh.size();
  const bool exchange = operation == what::all_to_all;
  hd::round_builder rounds(what::all_gather, n, 0, p, 1);
  const int count = operation == what::all_reduce ? 2 * (p - 1) : p - 1;
  for (int k = 0; k < count; ++k)
    for (int r = 0; r < n; ++r) {
      const int i = mesh.template group_index<Tags...>(r);
      rounds.send(k, r, mesh.template group_member<Tags...>(r, (i + (exchange ? k + 1 : 1)) % p))
          .block((i - k + 2 * p) % p);
    }
  return rounds.take();
}

template <class... Tags, class Mesh>
void levels_agree(const Mesh& mesh, const sim::levels& where, const hd::topology& network, what operation) {
  const int p = mesh.template group_size<Tags...>();
  const std::int64_t elements = std::int64_t{p} * 12345;
  const auto rounds = levels_rounds<Tags...>(mesh, operation);
  const double slow = sim::simulate(rounds, network, elements, 8, {}, hd::routing::single).seconds;
  CHECK(slow > 0);
  CHECK(sim::call_seconds<Tags...>(where, mesh, operation, static_cast<double>(8 * elements)) ==
        Approx(slow).epsilon(1e-9).margin(0));
}

}  // namespace

TEST_CASE("rings of all groups on a fat tree of 64 ranks take what the simulated network says", "[sim][network]") {
  const hd::link_class inside{1e-6, 4e11}, between{5e-6, 5e10}, core{2e-5, 1.5e11};
  for (const int cards : {1, 2, 8}) {
    const auto network = hd::topologies::fat_tree(2, 4, 8, inside, between, core, cards);
    const auto where = sim::fat_tree_levels(4, 8, inside, between, core, cards);
    CAPTURE(cards);
    const auto each = [&](const auto& mesh) {
      CAPTURE(hd::to_string(mesh));
      for (const what operation : {what::all_gather, what::all_reduce, what::reduce_scatter}) {
        levels_agree<levels_x>(mesh, where, network, operation);
        levels_agree<levels_y>(mesh, where, network, operation);
        levels_agree<levels_z>(mesh, where, network, operation);
        levels_agree<levels_x, levels_z>(mesh, where, network, operation);
      }
    };
    each(hd::mesh<hd::axis<levels_x>, hd::axis<levels_y>, hd::axis<levels_z>>{2, 4, 8});
    each(hd::mesh<hd::axis<levels_x>, hd::axis<levels_y>, hd::axis<levels_z>>{4, 8, 2});
    each(hd::mesh<hd::axis<levels_x>, hd::axis<levels_y>, hd::axis<levels_z>>{16, 2, 2});
  }
  // One ring over all.
  const hd::mesh<hd::axis<levels_x, 64>> line;
  levels_agree<levels_x>(line, sim::fat_tree_levels(4, 8, inside, between, core),
                         hd::topologies::fat_tree(2, 4, 8, inside, between, core), what::all_reduce);
}

TEST_CASE("an exchange of nodes on one switch takes what the simulated network says", "[sim][network]") {
  const hd::link_class inside{1e-6, 4e11}, between{5e-6, 5e10};
  const auto network = hd::topologies::nodes(4, 4, inside, between, 1);
  const sim::levels where(
      {{1, inside.seconds, inside.bytes_per_second}, {4, between.seconds, between.bytes_per_second}});
  const hd::mesh<hd::axis<levels_x, 4>, hd::axis<levels_y, 4>> mesh;
  levels_agree<levels_x>(mesh, where, network, what::all_to_all);
  levels_agree<levels_y>(mesh, where, network, what::all_to_all);
}

TEST_CASE("levels follow an order of ranks, and refuse what is no cluster", "[sim]") {
  const std::vector<sim::level> parts{{1, 1, 10}, {2, 3, 5}};
  const hd::mesh<hd::axis<levels_x, 2>, hd::axis<levels_y, 2>> mesh;
  // By hand: along y inside a part, along x between parts, where two groups share an exit; and the other way round.
  CHECK(sim::call_seconds<levels_y>(sim::levels(parts), mesh, what::all_gather, 100) == 1 + 50.0 / 10);
  CHECK(sim::call_seconds<levels_x>(sim::levels(parts), mesh, what::all_gather, 100) == 3 + 2 * 50.0 / 5);
  const sim::levels turned(parts, {0, 2, 1, 3});
  CHECK(sim::call_seconds<levels_x>(turned, mesh, what::all_gather, 100) == 1 + 50.0 / 10);
  CHECK(sim::call_seconds<levels_y>(turned, mesh, what::all_gather, 100) == 3 + 2 * 50.0 / 5);
  CHECK(sim::call_seconds<levels_y>(turned, hd::mesh<hd::axis<levels_y, 1>>{}, what::all_reduce, 100) == 0);
  CHECK_THROWS_AS(sim::levels({{4, 0, 1}, {6, 0, 1}}), hd::mesh_error);
  CHECK_THROWS_AS(sim::levels({{4, 0, 1, 3}}), hd::mesh_error);
  CHECK_THROWS_AS(sim::levels({{4, 0, 0}}), hd::mesh_error);
  CHECK_THROWS_AS(sim::levels(parts, {0, 0}), hd::mesh_error);
  CHECK_THROWS_AS(sim::call_seconds<levels_x>(sim::levels(parts, {1, 0}), mesh, what::all_gather, 1), hd::mesh_error);
  CHECK_THROWS_AS(sim::call_seconds<levels_x>(sim::levels(parts), mesh, what::broadcast, 1), hd::comm_error);
}
