// Routes of parameters between random meshes that run on threads, against `initialize` of the same seed.
#pragma once

#include "catch.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/model/gpt2_config.hpp>
#include <heddle/model/language_parameters.hpp>
#include <heddle/model/mixtral_config.hpp>
#include <heddle/model/parameter_route.hpp>
#include <heddle/model/stage_types.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace parameter_routes {

namespace hd = heddle;
namespace md = heddle::model;
using hd::dp, hd::pp, hd::tp;

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using backend = hd::compute::host<hd::compute::portable>;

// The parameters of a stage, as it holds them, without the stage.
template <class Model, class Backend = backend>
class held_parameters {
  using types = md::detail::stage_types<Model, hd::world<hd::threads, mesh_type>, Backend, pp>;
  using parameters_type = md::language_parameters<typename Model::scalar, typename types::layouts,
                                                  typename types::description, hd::space_of<Backend>>;

 public:
  using scalar = typename Model::scalar;
  using space = hd::space_of<Backend>;
  using config = typename Model::config;

  held_parameters(Backend& backend, const config& c, const mesh_type& mesh, int rank)
      : held_parameters(backend, c, mesh, rank, part(c, mesh, rank)) {}
  void initialize(std::uint64_t seed) { held_.initialize(queue_, seed); }
  const std::vector<md::parameter>& parameters() const { return held_.store().table(); }
  hd::row_view<scalar, space> weights() { return held_.store().weights(); }
  auto on_host() { return hd::read_on_host<scalar, space>(queue_, weights()); }
  // The table alone.
  static std::vector<md::parameter> table(const config& c, const mesh_type& mesh, int rank) {
    const typename types::description described = Model::describe(c);
    const auto of = md::make_stage_mesh<typename types::mesh_type>(mesh);
    const int place = md::rank_in_stage_mesh<typename types::mesh_type>(mesh, rank);
    typename types::places at(described, {of, place}, 1, 1, c.width, {});
    return parameters_type(at, described, of, place, part(c, mesh, rank), false).store().table();
  }

 private:
  static md::stage_layers part(const config& c, const mesh_type& mesh, int rank) {
    md::stage_layers p = md::split_layers(c.layers, mesh.template coordinate<pp>(rank), mesh.template extent<pp>());
    p.lent_gradients = true;
    return p;
  }
  held_parameters(Backend& backend, const config& c, const mesh_type& mesh, int rank, md::stage_layers p)
      : queue_(hd::compute::queue_of(backend)),
        described_(Model::describe(c)),
        at_(described_,
            {md::make_stage_mesh<typename types::mesh_type>(mesh),
             md::rank_in_stage_mesh<typename types::mesh_type>(mesh, rank)},
            1, 1, c.width, {}),
        held_(queue_, at_, described_, md::make_stage_mesh<typename types::mesh_type>(mesh),
              md::rank_in_stage_mesh<typename types::mesh_type>(mesh, rank), p, nullptr) {}

  typename space::queue& queue_;
  typename types::description described_;
  typename types::places at_;
  parameters_type held_;
};

// With one thread, where it has some.
template <class Backend>
Backend backend_of_rank() {
  if constexpr (std::is_constructible_v<Backend, int>)
    return Backend(1);
  else
    return Backend();
}

// A mesh on ranks of a world.
struct placed_mesh {
  mesh_type mesh{1, 1, 1};
  std::vector<int> ranks;
  int place_of(int rank) const {
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
  }
};
inline std::string text_of(const placed_mesh& m) {
  std::string text = to_string(m.mesh) + " on";
  for (const int r : m.ranks) text += " " + std::to_string(r);
  return text;
}

class drawn {
 public:
  explicit drawn(std::uint64_t seed) : random_(seed, 77) {}
  int below(int n) { return static_cast<int>(random_.integer(at_++) % static_cast<std::uint64_t>(n)); }

 private:
  hd::counter_random random_;
  std::uint64_t at_ = 0;
};

// Two meshes with extents that the model takes, on the same ranks, on some of the same, or on others.
struct two_meshes {
  int ranks;
  placed_mesh from, to;
};
inline two_meshes random_meshes(drawn& random, int most, int most_pp) {
  const auto one = [&](int size) {
    for (;;) {
      const int p = 1 + random.below(most_pp), t = 1 << random.below(3), d = 1 + random.below(3);
      if (p * t * d <= size) return mesh_type(d, p, t);
    }
  };
  two_meshes m;
  m.from.mesh = one(most);
  m.to.mesh = one(most);
  const int kind = random.below(3), a = m.from.mesh.size(), b = m.to.mesh.size();
  m.ranks = kind == 2 ? a + b : (std::max)(a, b) + random.below(2);
  if (m.ranks > most) return random_meshes(random, most, most_pp);
  std::vector<int> order(static_cast<std::size_t>(m.ranks));
  std::iota(order.begin(), order.end(), 0);
  const auto shuffle = [&] {
    for (int i = m.ranks - 1; i > 0; --i)
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random.below(i + 1))]);
  };
  if (random.below(2) != 0) shuffle();
  m.from.ranks.assign(order.begin(), order.begin() + a);
  if (kind == 1) shuffle();
  if (kind == 2)
    m.to.ranks.assign(order.begin() + a, order.end());
  else
    m.to.ranks.assign(order.begin(), order.begin() + b);
  return m;
}

inline constexpr md::gpt2_config gpt2{.layers = 3, .heads = 4, .width = 8, .context = 5, .vocabulary = 11};
inline constexpr md::llama_config few_kv{
    .layers = 3, .heads = 4, .kv_heads = 2, .width = 8, .ffn = 10, .context = 5, .vocabulary = 13};
inline const md::mixtral_config experts(few_kv, 4, 2);

// Routes that run: what a rank wanted is what `initialize` of the source's seed gives there. Returns what is wrong, if anything.
template <class Source, class Target, class Backend>
std::vector<std::string> run_routes(const typename Source::config& c, const two_meshes& m, std::int64_t bucket_bytes) {
  using from_type = held_parameters<Source, Backend>;
  using to_type = held_parameters<Target, Backend>;
  std::vector<std::string> wrong;
  std::mutex mutex;
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(m.ranks), [&](auto& world) {
    const int r = world.rank(), at_from = m.from.place_of(r), at_to = m.to.place_of(r);
    Backend compute = backend_of_rank<Backend>();
    std::unique_ptr<from_type> from;
    std::unique_ptr<to_type> to;
    if (at_from >= 0) (from = std::make_unique<from_type>(compute, c, m.from.mesh, at_from))->initialize(5);
    if (at_to >= 0) (to = std::make_unique<to_type>(compute, c, m.to.mesh, at_to))->initialize(6);
    const md::stage_weights source(from.get());
    const md::stage_weights target(to.get());
    const md::parameter_route route(world, source, target, bucket_bytes);
    const auto before = world.all().counters()[hd::comm_operation::all_to_all_v];
    route.run(world, compute, source, target);
    const auto after = world.all().counters()[hd::comm_operation::all_to_all_v];
    std::string problem;
    const auto expect = [&](bool ok, const char* what) {
      if (!ok) problem += std::string(" ") + what;
    };
    expect(after.bytes - before.bytes == route.bytes(), "bytes");
    expect(after.calls - before.calls == route.buckets(), "calls");
    expect(route.most_outgoing_bytes() <= bucket_bytes && route.most_incoming_bytes() <= bucket_bytes, "buckets");
    expect((route.most_outgoing_bytes() == 0) == (route.sent() == 0), "memory");
    if (to != nullptr) {
      backend alone{1};
      held_parameters<Source> oracle(alone, c, m.to.mesh, at_to);
      oracle.initialize(5);
      std::vector<typename Target::scalar> wanted(oracle.weights().size());
      std::transform(oracle.weights().begin(), oracle.weights().end(), wanted.begin(),
                     [](auto x) { return hd::converted<typename Target::scalar>(x); });
      const auto there = to->on_host();
      for (const md::parameter& p : to->parameters()) {
        // In another element type parameters lie elsewhere in the flat buffer.
        const auto same = std::find_if(oracle.parameters().begin(), oracle.parameters().end(),
                                       [&](const md::parameter& q) { return q.name == p.name && q.start == p.start; });
        const auto mine =
            there.elements().subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
        expect(std::equal(mine.begin(), mine.end(), wanted.begin() + same->offset), p.name.c_str());
      }
    }
    const std::lock_guard lock(mutex);
    if (!problem.empty()) wrong.push_back(to_string(route) + ":" + problem);
  });
  return wrong;
}
template <class Source, class Target = Source, class Backend = backend>
void check_runs(const typename Source::config& c, int pairs, std::uint64_t seed) {
  CAPTURE(seed);
  drawn random(seed);
  for (int i = 0; i < pairs; ++i) {
    const two_meshes m = random_meshes(random, 12, 3);
    const std::int64_t bucket = std::int64_t{64} << random.below(11);
    CAPTURE(i, bucket, text_of(m.from), text_of(m.to));
    REQUIRE(run_routes<Source, Target, Backend>(c, m, bucket).empty());
  }
}

}  // namespace parameter_routes
