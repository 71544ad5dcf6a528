// Routes of parameters between meshes: what each rank receives is what it lacks, and arrives bit for bit.
#include "parameter_routes.hpp"

#include "catch.hpp"

#include <heddle/model/gpt2.hpp>
#include <heddle/model/llama.hpp>
#include <heddle/model/mixtral.hpp>
#include <heddle/testing/checked_backend.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace {
namespace planned_routes {

using namespace parameter_routes;

// What a rank has of each tensor, element by element.
using elements = std::map<std::string, std::vector<char>>;
elements elements_of(const std::vector<md::parameter>& table) {
  elements all;
  for (const md::parameter& p : table) {
    auto& e = all[p.name];
    e.resize(static_cast<std::size_t>(p.global_count()));
    md::for_each_run(p,
                     [&](std::int64_t at, std::int64_t, std::int64_t n) { std::fill_n(e.begin() + at, n, char{1}); });
  }
  return all;
}

// Plans of random pairs against sets of elements.
template <class Model>
void check_counts(const typename Model::config& c, int pairs, std::uint64_t seed) {
  using held = held_parameters<Model>;
  CAPTURE(seed);
  drawn random(seed);
  for (int i = 0; i < pairs; ++i) {
    const two_meshes m = random_meshes(random, 16, 3);
    std::vector<md::boxes_of_rank> boxes(static_cast<std::size_t>(m.ranks));
    std::vector<std::int64_t> lacks(boxes.size()), has(boxes.size());
    for (int r = 0; r < m.ranks; ++r) {
      std::vector<md::parameter> from, to;
      if (const int at = m.from.place_of(r); at >= 0) from = held::table(c, m.from.mesh, at);
      if (const int at = m.to.place_of(r); at >= 0) to = held::table(c, m.to.mesh, at);
      const auto k = static_cast<std::size_t>(r);
      boxes[k] = {md::parameter_boxes(from), md::parameter_boxes(to)};
      const elements mine = elements_of(from);
      for (const auto& [name, wanted] : elements_of(to)) {
        const auto here = mine.find(name);
        for (std::size_t e = 0; e < wanted.size(); ++e)
          if (wanted[e] != 0) ++(here != mine.end() && here->second[e] != 0 ? has : lacks)[k];
      }
    }
    const md::parameter_route route(boxes, 0, {8, 256});
    std::vector<std::int64_t> received, kept;
    std::int64_t sent = 0;
    for (int r = 0; r < m.ranks; ++r) {
      received.push_back(route.received(r));
      kept.push_back(route.kept(r));
      sent += route.sent(r);
    }
    CAPTURE(i, text_of(m.from), text_of(m.to));
    REQUIRE(received == lacks);
    REQUIRE(kept == has);
    REQUIRE(sent == std::accumulate(lacks.begin(), lacks.end(), std::int64_t{0}));
  }
}

// A model of so many layers and columns, cut over pp and tp: all of them in one tensor, whose boxes are counted only.
struct shard {
  int pipeline, tensor;  // this rank's of so many
  int p, t;
};
constexpr int edge = 840;  // 1 to 8 divide it
constexpr std::int64_t whole_model = std::int64_t{edge} * edge;
std::vector<md::parameter_box> boxes_of(const shard& s) {
  const int layers = edge / s.p, columns = edge / s.t;
  return {{"model", {edge, edge}, {s.pipeline * layers, s.tensor * columns}, {layers, columns}, 0, 0}};
}

}  // namespace planned_routes
}  // namespace

using namespace planned_routes;

TEST_CASE("every rank receives exactly what it lacks, on random pairs of meshes", "[model][route]") {
  check_counts<md::gpt2<double>>(gpt2, 500, 1);
  check_counts<md::tied_llama<double>>(few_kv, 500, 2);
  check_counts<md::llama<double>>(few_kv, 500, 3);
  check_counts<md::mixtral<double>>(experts, 500, 4);
}

TEST_CASE("what arrives is what initialize gives there, bit for bit", "[model][route][threads]") {
  check_runs<md::gpt2<double>>(gpt2, 50, 5);
  check_runs<md::tied_llama<double>>(few_kv, 50, 6);
  check_runs<md::llama<double>>(few_kv, 50, 7);
  check_runs<md::mixtral<double>>(experts, 50, 8);
}

TEST_CASE("elements of another type are converted by the sender", "[model][route][threads]") {
  check_runs<md::gpt2<double>, md::gpt2<float>>(gpt2, 10, 9);
  check_runs<md::gpt2<float>, md::gpt2<hd::bf16>>(gpt2, 10, 10);
}

TEST_CASE("routes run in memory that the host may not touch, in the order of a queue", "[model][route][threads]") {
  using checked = hd::testing::checked_backend<backend>;
  check_runs<md::gpt2<float>, md::gpt2<float>, checked>(gpt2, 10, 11);
  check_runs<md::gpt2<float>, md::gpt2<hd::bf16>, checked>(gpt2, 10, 12);
}

TEST_CASE("generation shards that contain the training shards receive (d_g - 1)/(t p) of the model", "[model][route]") {
  int cases = 0;
  for (int p = 1; p <= 8; ++p)
    for (int t = 1; t <= 8; ++t)
      for (int d = 1; d <= 4; ++d)
        for (int pg = 1; pg <= p; ++pg)
          for (int tg = 1; tg <= t; ++tg) {
            if (p % pg != 0 || t % tg != 0) continue;
            // Ranks are dp, pp, tp; generation's are dp, pp, replicas of pp, tp, replicas of tp: the same numbers.
            const int a = t / tg, b = p / pg, ranks = d * p * t;
            std::vector<md::boxes_of_rank> inside, plain, apart(static_cast<std::size_t>(ranks + pg * tg));
            for (int r = 0; r < ranks; ++r) {
              const int ti = r % t, pi = r / t % p;
              inside.push_back({boxes_of({pi, ti, p, t}), boxes_of({pi / b, ti / a, pg, tg})});
              plain.push_back({boxes_of({pi, ti, p, t}), boxes_of({pi % pg, ti % tg, pg, tg})});
              apart[static_cast<std::size_t>(r)].from = inside.back().from;
            }
            for (int r = 0; r < pg * tg; ++r)
              apart[static_cast<std::size_t>(ranks + r)].to = boxes_of({r / tg, r % tg, pg, tg});
            const md::parameter_route in_place(inside, 0);
            bool ok = true;
            for (int r = 0; r < ranks; ++r)
              ok = ok && in_place.received(r) == whole_model * (a * b - 1) / (t * p) &&
                   in_place.kept(r) == whole_model / (t * p);
            if (d == 1) {
              const md::parameter_route vanilla(plain, 0), pushed(apart, 0);
              for (int r = 0; r < pg * tg; ++r) ok = ok && pushed.received(ranks + r) == whole_model / (pg * tg);
              // Of groups of neighbours some rank holds nothing of what it generates with.
              const bool meets = (a == 1 || tg == 1) && (b == 1 || pg == 1);
              std::int64_t most = 0;
              for (int r = 0; r < ranks; ++r) most = (std::max)(most, vanilla.received(r));
              ok = ok && most == (meets ? in_place.received(0) : whole_model / (pg * tg));
            }
            CAPTURE(p, t, d, pg, tg);
            REQUIRE(ok);
            ++cases;
          }
  CHECK(cases > 400);
  const auto share = [](int t, int p, int tg, int pg) {
    std::vector<md::boxes_of_rank> all;
    for (int r = 0; r < t * p; ++r)
      all.push_back({boxes_of({r / t, r % t, p, t}), boxes_of({r / t / (p / pg), r % t / (t / tg), pg, tg})});
    return static_cast<double>(md::parameter_route(all, 0).received()) / static_cast<double>(whole_model);
  };
  CHECK(share(8, 1, 2, 1) == .375);     // 7B
  CHECK(share(8, 1, 4, 1) == .125);     // 13B
  CHECK(share(8, 4, 8, 1) == .09375);   // 34B
  CHECK(share(8, 8, 8, 1) == .109375);  // 70B
}

TEST_CASE("replicas share what there is to send", "[model][route]") {
  // Four ranks hold the model, eight others want it.
  std::vector<md::boxes_of_rank> all(12);
  for (std::size_t r = 0; r < 12; ++r) (r < 4 ? all[r].from : all[r].to) = boxes_of({0, 0, 1, 1});
  const md::parameter_route route(all, 0, {4, std::int64_t{1} << 23});
  for (int r = 0; r < 4; ++r) CHECK(route.sent(r) == 2 * whole_model);
  CHECK(to_string(route) ==
        "rank 0 of 12 keeps 0 parameters, receives 0 and sends 1411200 (5644800 bytes) in 1 bucket");
}

TEST_CASE("a route names the box that nobody holds, and what does not fit", "[model][route][error]") {
  using Catch::Matchers::Contains;
  const md::parameter_box whole{"h.0.w", {4, 6}, {0, 0}, {4, 6}, 0, 0}, left{"h.0.w", {4, 6}, {0, 0}, {4, 3}, 0, 0};
  const auto route = [](const md::parameter_box& from, const md::parameter_box& to, md::route_sizes sizes = {}) {
    const std::vector<md::boxes_of_rank> ranks{{{from}, {}}, {{}, {to}}};
    return md::parameter_route(ranks, 1, sizes);
  };
  CHECK(route(whole, left).received() == 12);
  CHECK_THROWS_AS(route(left, whole), hd::layout_error);
  CHECK_THROWS_WITH(route(left, whole),
                    Contains("no rank holds [0, 4) x [3, 6) of the parameter 'h.0.w' of extents [4, 6], which "
                             "rank 1 wants"));
  md::parameter_box other = whole;
  other.name = "h.1.w";
  CHECK_THROWS_WITH(route(whole, other), Contains("no rank holds [0, 4) x [0, 6) of the parameter 'h.1.w'"));
  other = left;
  other.logical = {4, 3};
  CHECK_THROWS_WITH(route(whole, other),
                    Contains("the parameter 'h.0.w' has extents [4, 6] on rank 0 and [4, 3] on rank 1"));
  other.start = {0};
  CHECK_THROWS_WITH(route(whole, other),
                    Contains("the parameter 'h.0.w' of rank 1 has 2 dimensions and a box of 1 and 2"));
  CHECK_THROWS_AS(route(whole, left, {4, 3}), hd::config_error);
  CHECK_THROWS_WITH(route(whole, left, {4, 3}), Contains("at least one element of 4 bytes, got 3"));

  // Weights that are away, or others than the route was made of.
  const auto run_short = [] {
    hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(1), [](auto& world) {
      backend compute{1};
      held_parameters<md::gpt2<double>> from(compute, gpt2, mesh_type(1, 1, 1), 0),
          to(compute, gpt2, mesh_type(1, 1, 1), 0);
      const md::stage_weights source(&from), target(&to), none(static_cast<decltype(&to)>(nullptr));
      const md::parameter_route route(world, source, target);
      route.run(world, compute, source, none);
    });
  };
  CHECK_THROWS_AS(run_short(), hd::layout_error);
  CHECK_THROWS_WITH(run_short(),
                    Contains("row 0 of a route's target on rank 0 should have at least 2760 elements, it has 0"));
}
