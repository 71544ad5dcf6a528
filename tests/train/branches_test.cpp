// tests/train/branches_test.cpp: branches whose weights are drawn together and merged, against serial programs and closed forms.
#include "catch.hpp"
#include "folder.hpp"
#include "small_network.hpp"
#include "transport.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/pairs.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/branches.hpp>
#include <heddle/train/make_trainer.hpp>
#include <heddle/train/options.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/save.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace hd = heddle;
namespace tr = hd::train;
using Catch::Matchers::Contains;
using hd::dp, hd::pp, hd::tp;

namespace {

struct of_branch {};
using branch_network = train_test::small_network<float>;
using whole_mesh = hd::mesh<hd::axis<of_branch>, hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using inner_mesh = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;

struct branch_points {
  std::vector<float> x, y;
  explicit branch_points(int branch, float shift = 0) {
    const hd::counter_random random(7, static_cast<std::uint64_t>(branch));
    for (std::uint64_t i = 0; i < 256; i += 2) {
      const double a = 2 * random.uniform(i) - 1, b = 2 * random.uniform(i + 1) - 1;
      x.insert(x.end(), {static_cast<float>(a), static_cast<float>(b)});
      y.push_back(static_cast<float>(std::sin(2 * a) * b + (branch == 0 ? 0.3 : -0.3)) + shift);
    }
  }
  hd::io::pairs<float, float> data() const { return {x, y, {.inputs = 2, .targets = 1, .validation = 0.25}}; }
};

tr::options<branch_network::config> branch_settings(int seed = 1) {
  tr::options<branch_network::config> o;
  o.model = {.inputs = 2, .outputs = 1, .layers = 2, .width = 6, .hidden = 10};
  o.batch = 8;
  o.steps = 6;
  o.seed = static_cast<std::uint64_t>(seed);
  o.learning_rate = {.peak = 1e-2, .warmup_steps = 2, .total_steps = 6};
  o.threads_per_rank = 1;
  return o;
}

// f(parameter, global element, element of the kept row) of what this rank's optimizer owns.
template <class Stage, class Optimizer, class F>
void each_kept_element(Stage& stage, Optimizer& optimizer, std::size_t elements, F f) {
  for (const auto& p : stage.parameters()) {
    const auto part = tr::detail::part_in(p.offset, p.count, optimizer.owned_begin(), elements);
    hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) {
        const std::int64_t here = local + i - part.first;
        if (here >= 0 && here < static_cast<std::int64_t>(part.count))
          f(p, static_cast<std::size_t>(global + i), part.at + static_cast<std::size_t>(here));
      }
    });
  }
}

// The kept weights of branches, whole tensors by name, from the ranks of each.
using kept_tensors = std::map<std::string, std::vector<float>>;
struct branches_seen {
  std::vector<kept_tensors> of{2};

  template <class Trainer>
  void note(int branch, Trainer& trainer) {  // one rank at a time
    kept_tensors& all = of[static_cast<std::size_t>(branch)];
    for (int k = 0; k < trainer.stages(); ++k)
      tr::detail::for_each_bucket(
          trainer.stage(k), trainer.optimizer_state(k), [&](auto& stage, auto& optimizer, auto) {
            const auto read = tr::detail::read_of_stage(stage, tr::detail::kept_weights(stage, optimizer));
            for (const auto& p : stage.parameters()) all[p.name].resize(static_cast<std::size_t>(p.global_count()));
            each_kept_element(
                stage, optimizer, read.elements().size(),
                [&](const auto& p, std::size_t at, std::size_t here) { all[p.name][at] = read.elements()[here]; });
          });
  }
};

// Runs `body(trainer, world, branch)` on the branches of a mesh, and says what weights are there behind it.
template <class Strategy, class Body>
branches_seen on_branches(const std::string& mesh, Body body, int seeds_apart = 1) {
  branches_seen seen;
  const auto whole = hd::parse_mesh<whole_mesh>(mesh);
  seen.of.resize(static_cast<std::size_t>(whole.template extent<of_branch>()));
  std::mutex lock;
  transport_test::launch(whole, [&](auto& world) {
    auto own = world.template sub<dp, pp, tp>();
    const int b = world.template along<of_branch>().rank();
    auto trainer = tr::make_trainer<Strategy>(branch_network{}, own, branch_settings(1 + seeds_apart * b));
    body(trainer, world, b);
    const std::scoped_lock hold(lock);
    seen.note(b, trainer);
  });
  for (kept_tensors& of : seen.of)
    transport_test::merge(of, [](kept_tensors& all, kept_tensors&& other) {
      for (const auto& [name, values] : other) {
        std::vector<float>& whole = all[name];
        whole.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
          if (whole[i] == 0) whole[i] = values[i];  // a process has zeros where another owns the weights
      }
    });
  return seen;
}

std::vector<float> flat_of(const kept_tensors& all) {
  std::vector<float> flat;
  for (const auto& [name, values] : all) flat.insert(flat.end(), values.begin(), values.end());
  return flat;
}

// What the exchange is, in a program of one rank.
void draw_serially(std::vector<float>& g, std::vector<float>& b, double keep) {
  const float rho = static_cast<float>(2 * keep - 1);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float mean = (g[i] + b[i]) * 0.5f;
    g[i] = rho == 0 ? mean : mean + rho * (g[i] - mean);
    b[i] = rho == 0 ? mean : mean + rho * (b[i] - mean);
  }
}

double cosine_by_tensors(const kept_tensors& g, const kept_tensors& b) {
  double sum = 0;
  for (const auto& [name, values] : g) {
    const std::vector<float>& other = b.at(name);
    double both = 0, mine = 0, theirs = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      both += static_cast<double>(values[i]) * static_cast<double>(other[i]);
      mine += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      theirs += static_cast<double>(other[i]) * static_cast<double>(other[i]);
    }
    const double size = std::sqrt(mine * theirs);
    sum += size > 0 ? both / size : (mine == theirs ? 1 : 0);
  }
  return sum / static_cast<double>(g.size());
}

constexpr const char* branch_meshes[] = {"of_branch=2,dp=1,pp=1,tp=1", "of_branch=2,dp=2,pp=1,tp=1",
                                         "of_branch=2,dp=3,pp=2,tp=1", "of_branch=2,dp=2,pp=1,tp=2"};

template <class Strategy>
void branches_of_strategy() {
  for (const char* mesh : branch_meshes) {
    if (hd::parse_mesh<whole_mesh>(mesh).size() > transport_test::most_ranks()) continue;
    CAPTURE(mesh);
    const auto begin = on_branches<Strategy>(mesh, [](auto&, auto&, int) {});
    const std::vector<float> g0 = flat_of(begin.of[0]), b0 = flat_of(begin.of[1]);
    REQUIRE(g0.size() == b0.size());
    REQUIRE(g0 != b0);

    // Three exchanges: the bits of a program of two weight vectors; one branch after the other is not that.
    const auto drawn = on_branches<Strategy>(mesh, [](auto& trainer, auto& world, int) {
      auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.9});
      for (int k = 0; k < 3; ++k) exchange(trainer);
      if (exchange.keep() != 0.9) throw std::runtime_error("keep");
    });
    std::vector<float> g = g0, b = b0, in_turn_g = g0, in_turn_b = b0;
    for (int k = 0; k < 3; ++k) {
      draw_serially(g, b, 0.9);
      std::vector<float> unused = in_turn_b;
      draw_serially(in_turn_g, unused, 0.9);
      unused = in_turn_g;
      draw_serially(unused, in_turn_b, 0.9);
    }
    CHECK(flat_of(drawn.of[0]) == g);
    CHECK(flat_of(drawn.of[1]) == b);
    CHECK(in_turn_b != b);

    // d = 1 changes no bit, d = 0.5 makes them equal, a merge by weights is their sum.
    const auto same = on_branches<Strategy>(
        mesh, [](auto& trainer, auto& world, int) { tr::branches<of_branch>(trainer, world, {.keep = 1})(trainer); });
    CHECK(flat_of(same.of[0]) == g0);
    const auto equal = on_branches<Strategy>(
        mesh, [](auto& trainer, auto& world, int) { tr::branches<of_branch>(trainer, world, {.keep = 0.5})(trainer); });
    CHECK(flat_of(equal.of[0]) == flat_of(equal.of[1]));
    const auto weighted = on_branches<Strategy>(mesh, [](auto& trainer, auto& world, int) {
      const std::vector<double> weights{0.75, 0.25};
      tr::branches<of_branch>(trainer, world).merge(trainer, weights);
    });
    const std::vector<float> merged = flat_of(weighted.of[1]);
    CHECK(flat_of(weighted.of[0]) == merged);
    for (std::size_t i = 0; i < merged.size(); ++i) CHECK(merged[i] == 0.75f * g0[i] + 0.25f * b0[i]);

    // The adaptive rule goes by the cosine of tensors, whatever the shards.
    double keep = 0;
    const auto adapted = on_branches<Strategy>(mesh, [&](auto& trainer, auto& world, int) {
      auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.9, .adaptive = true});
      exchange(trainer);
      if (world.rank() == 0) keep = exchange.keep();
    });
    transport_test::tell(keep, 0);
    CHECK(keep == Approx(0.9 + 0.1 * cosine_by_tensors(begin.of[0], begin.of[1])).margin(1e-7));
    g = g0, b = b0;
    draw_serially(g, b, keep);
    CHECK(flat_of(adapted.of[0]) == g);
    CHECK(flat_of(adapted.of[1]) == b);
  }
}

}  // namespace

TEST_CASE("Branches are drawn together with the bits of a serial program on any mesh and ZeRO stage", "[ranks]") {
  branches_of_strategy<hd::strategy<inner_mesh, hd::zero<1>>>();
}
TEST_CASE("Branches are drawn together under zero<3> with a rank's share of the weights", "[ranks]") {
  branches_of_strategy<hd::strategy<inner_mesh, hd::zero<3>>>();
}
TEST_CASE("Branches on memory that the host may not touch are drawn by kernels, with the host's bits") {
  branches_of_strategy<hd::strategy<inner_mesh, hd::zero<0>, hd::testing::checked_backend<hd::compute::host<>>>>();
}

TEST_CASE("Branches are drawn together under zero<0> and zero<2>", "[ranks]") {
  branches_of_strategy<hd::strategy<inner_mesh, hd::zero<0>>>();
  branches_of_strategy<hd::strategy<inner_mesh, hd::zero<2>>>();
}

TEST_CASE("The adaptive rule is NumPy's on 1, 2 and 4 shards of the weights", "[ranks]") {
  // Written by tests/golden/branches_golden.py: d of three exchanges, then sums over both branches with weights of their own.
  constexpr double golden_keeps[] = {0.961128915, 0.966798814, 0.970972884};
  constexpr double golden_sums[] = {5.795162754, 4.878215135};
  const auto first_weight = [](const std::string& name, std::size_t i, int branch) {
    double bytes = 0;
    for (const char c : name) bytes += static_cast<double>(c);
    const double at = static_cast<double>(i);
    return static_cast<float>(std::sin(bytes + 0.7 * at) + 0.8 * branch * std::cos(bytes + 0.3 * at));
  };
  for (const char* mesh : {"of_branch=2,dp=1,pp=1,tp=1", "of_branch=2,dp=2,pp=1,tp=1", "of_branch=2,dp=4,pp=1,tp=1",
                           "of_branch=2,dp=2,pp=1,tp=2"}) {
    if (hd::parse_mesh<whole_mesh>(mesh).size() > transport_test::most_ranks()) continue;
    CAPTURE(mesh);
    std::vector<double> keeps(3);
    const auto end = on_branches<hd::strategy<inner_mesh, hd::zero<1>>>(mesh, [&](auto& trainer, auto& world, int b) {
      tr::detail::for_each_bucket(trainer.stage(), trainer.optimizer_state(), [&](auto& stage, auto& optimizer, auto) {
        const auto row = tr::detail::kept_weights(stage, optimizer);
        each_kept_element(stage, optimizer, row.size(), [&](const auto& p, std::size_t at, std::size_t here) {
          row[here] = first_weight(p.name, at, b);
        });
      });
      trainer.change_weights([](auto) {});  // to the ranks that share them
      auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.6, .adaptive = true});
      for (double& keep : keeps) {
        exchange(trainer);
        const double now = exchange.keep();
        if (world.rank() == 0) keep = now;
      }
    });
    transport_test::tell(keeps, 0);
    for (std::size_t k = 0; k < keeps.size(); ++k) CHECK(keeps[k] == Approx(golden_keeps[k]).margin(1e-6));
    for (std::size_t b = 0; b < 2; ++b) {
      const std::vector<float> all = flat_of(end.of[b]);
      double sum = 0;
      for (std::size_t i = 0; i < all.size(); ++i)
        sum += static_cast<double>(all[i]) * std::cos(static_cast<double>(i));
      CHECK(sum == Approx(golden_sums[b]).epsilon(1e-6));
    }
  }
}

// Each branch steps towards weights of its own, of which W0 = mean + D: the gradient is h (W - W0), h = 1, and the fixed point
// mean + rho eta h D / (1 - rho (1 - eta h)), rho = 2d - 1. W0 is a quarter of the first weights: steps of float stand still where
// eta of the way is less than half a unit in the last place, about 1e-6 from rest for weights of 1.
TEST_CASE("Branches on quadratics come to rest where the closed form says") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  const double eta = 0.1, keep = 0.999, rho = 2 * keep - 1;
  for (const char* mesh : {"of_branch=2,dp=2,pp=1,tp=1", "of_branch=3,dp=1,pp=1,tp=2"}) {
    CAPTURE(mesh);
    const auto begin = on_branches<strategy>(mesh, [](auto&, auto&, int) {});
    const auto end = on_branches<strategy>(mesh, [&](auto& trainer, auto& world, int b) {
      std::vector<std::vector<float>> targets;
      trainer.change_weights([&](auto row) {
        std::vector<float>& target = targets.emplace_back(row.begin(), row.end());
        for (float& w : target) w /= 4;
        for (float& w : row) w += static_cast<float>(b + 1);  // far from rest
      });
      auto exchange = tr::branches<of_branch>(trainer, world, {.keep = keep});
      for (int step = 0; step < 250; ++step) {
        std::size_t bucket = 0;
        trainer.change_weights([&](auto row) {
          const std::vector<float>& target = targets[bucket++];
          for (std::size_t i = 0; i < row.size(); ++i) row[i] -= static_cast<float>(eta) * (row[i] - target[i]);
        });
        exchange(trainer);
      }
    });
    std::vector<std::vector<float>> first, last;
    for (const kept_tensors& of : begin.of) first.push_back(flat_of(of));
    for (auto& of : first)
      for (float& w : of) w /= 4;
    for (const kept_tensors& of : end.of) last.push_back(flat_of(of));
    double worst = 0, moved = 0;
    for (std::size_t i = 0; i < first[0].size(); ++i) {
      double mean = 0;
      for (const auto& of : first) mean += static_cast<double>(of[i]) / static_cast<double>(first.size());
      for (std::size_t b = 0; b < first.size(); ++b) {
        const double apart = static_cast<double>(first[b][i]) - mean;
        const double rest = mean + rho * eta * apart / (1 - rho * (1 - eta));
        worst = (std::max)(worst, std::abs(static_cast<double>(last[b][i]) - rest));
        moved = (std::max)(moved, std::abs(rest - static_cast<double>(first[b][i])));
      }
    }
    CHECK(worst <= 1e-6);
    CHECK(moved > 1e-3);  // the exchange is seen in it
  }
}

TEST_CASE("Branches keep their mean, and their difference shrinks by 2d - 1, over a thousand exchanges") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  const char* mesh = "of_branch=2,dp=2,pp=1,tp=1";
  const auto begin = on_branches<strategy>(mesh, [](auto&, auto&, int) {});
  const std::vector<float> g0 = flat_of(begin.of[0]), b0 = flat_of(begin.of[1]);
  double largest = 0;
  for (const float w : g0) largest = (std::max)(largest, std::abs(static_cast<double>(w)));
  for (const int rounds : {1, 10, 1000}) {
    const auto end = on_branches<strategy>(mesh, [&](auto& trainer, auto& world, int) {
      auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.999});
      for (int k = 0; k < rounds; ++k) exchange(trainer);
    });
    const std::vector<float> g = flat_of(end.of[0]), b = flat_of(end.of[1]);
    const double left = std::pow(0.998, rounds);
    double sums = 0, differences = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double sum0 = static_cast<double>(g0[i]) + static_cast<double>(b0[i]);
      const double d0 = static_cast<double>(g0[i]) - static_cast<double>(b0[i]);
      sums = (std::max)(sums, std::abs(static_cast<double>(g[i]) + static_cast<double>(b[i]) - sum0));
      differences =
          (std::max)(differences, std::abs(static_cast<double>(g[i]) - static_cast<double>(b[i]) - left * d0));
    }
    CAPTURE(rounds, largest);
    CHECK(sums <= 1e-6 * 2 * largest);
    CHECK(differences <= 1e-5);
  }
}

TEST_CASE("What one branch is fed reaches the other by exchanges alone") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  const char* mesh = "of_branch=2,dp=2,pp=1,tp=1";
  const auto run = [&](float shift, double keep, int exchanges) {
    return on_branches<strategy>(
        mesh,
        [&](auto& trainer, auto& world, int b) {
          auto exchange = tr::branches<of_branch>(trainer, world, {.keep = keep});
          const branch_points points(b, b == 1 ? shift : 0);
          const auto data = points.data();
          trainer.step(data);
          for (int k = 0; k < exchanges; ++k) exchange(trainer);
        },
        0);
  };
  const auto plain = run(0, 0.9, 0), other = run(5, 0.9, 0);
  CHECK(flat_of(plain.of[0]) == flat_of(other.of[0]));
  REQUIRE(flat_of(plain.of[1]) != flat_of(other.of[1]));
  const auto plain_drawn = run(0, 0.9, 1), other_drawn = run(5, 0.9, 1);
  const std::vector<float> b1 = flat_of(plain.of[1]), b2 = flat_of(other.of[1]);
  const std::vector<float> g1 = flat_of(plain_drawn.of[0]), g2 = flat_of(other_drawn.of[0]);
  for (std::size_t i = 0; i < g1.size(); ++i)
    CHECK(static_cast<double>(g2[i]) - static_cast<double>(g1[i]) ==
          Approx(0.1 * (static_cast<double>(b2[i]) - static_cast<double>(b1[i]))).margin(1e-6));
}

TEST_CASE("Branches with masters of float lose nothing to weights of 16 bits") {
  using rounded = hd::strategy<inner_mesh, hd::zero<2>, hd::precision<hd::weights_in<hd::bf16>, hd::masters_in<float>>>;
  const char* mesh = "of_branch=2,dp=2,pp=1,tp=1";
  const auto begin = on_branches<rounded>(mesh, [](auto&, auto&, int) {});
  std::vector<float> g = flat_of(begin.of[0]), b = flat_of(begin.of[1]);
  const auto end = on_branches<rounded>(mesh, [&](auto& trainer, auto& world, int) {
    auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.999});
    for (int k = 0; k < 1000; ++k) exchange(trainer);
    for (const float w : trainer.stage().weights())  // the weights are the masters, rounded
      if (static_cast<float>(hd::bf16(w)) != w) throw std::runtime_error("a weight of more than 16 bits");
  });
  for (int k = 0; k < 1000; ++k) draw_serially(g, b, 0.999);
  CHECK(flat_of(end.of[0]) == g);
  CHECK(flat_of(end.of[1]) == b);
}

TEST_CASE("A barrier has the losses of branches and at their mean, and changes nothing") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  double barrier = 0;
  const auto check = [&](auto& trainer, auto& world, int b) {
    auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.999});
    const branch_points points(b);
    const auto data = points.data();
    trainer.run(data, tr::quiet{}, tr::every(1, exchange));
    const tr::branch_losses losses = exchange.barrier(trainer, data);
    if (losses.own[static_cast<std::size_t>(b)] != trainer.validate(data)) throw std::runtime_error("weights changed");
    exchange.merge(trainer);
    if (losses.at_mean[static_cast<std::size_t>(b)] != trainer.validate(data)) throw std::runtime_error("another mean");
    if (world.rank() == 0) barrier = losses.barrier();
  };
  const auto end = on_branches<strategy>("of_branch=2,dp=2,pp=1,tp=1", check, 0);
  CHECK(flat_of(end.of[0]) == flat_of(end.of[1]));
  CHECK(barrier != 0);
  CHECK((tr::branch_losses{{1, 3}, {2, 3}}.barrier()) == 0.5);
}

TEST_CASE("An exchange sends the owned part each way, and a merged save is read by one rank without branches") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  const branch_points points(0);
  const auto data = points.data();
  for (const int shards : {1, 2}) {
    CAPTURE(shards);
    const train_test::folder saves("heddle-test-branches");
    double merged = 0;
    const auto end = on_branches<strategy>(
        "of_branch=2,dp=" + std::to_string(shards) + ",pp=1,tp=1", [&](auto& trainer, auto& world, int b) {
          auto exchange = tr::branches<of_branch>(trainer, world, {.keep = 0.9});
          const hd::comm_counters before = world.template along<of_branch>().counters();
          exchange(trainer);
          const hd::comm_counters after = world.template along<of_branch>().counters();
          const auto owned = trainer.optimizer_state().owned_end() - trainer.optimizer_state().owned_begin();
          const auto spare = shards * owned - static_cast<std::int64_t>(trainer.stage().weights().size());
          if (spare < 1 - shards || spare >= shards) throw std::runtime_error("not a share of the weights");
          constexpr auto what = hd::comm_operation::all_reduce;
          if (after.collectives() - before.collectives() != 1 || after[what].bytes - before[what].bytes != owned * 4)
            throw std::runtime_error("other calls or bytes");
          exchange.merge(trainer);
          const double loss = trainer.validate(data);
          if (b == 0) tr::save(trainer, saves.path, {.corpus = 3});
          if (world.rank() == 0) merged = loss;
        });
    double alone = 0;
    branches_seen read;
    hd::launch<hd::threads>(hd::parse_mesh<inner_mesh>("dp=1,pp=1,tp=1"), [&](auto& world) {
      auto trainer = tr::make_trainer<strategy>(branch_network{}, world, branch_settings(9));
      tr::resume(trainer, saves.path, {.corpus = 3});
      alone = trainer.validate(data);
      read.note(0, trainer);
    });
    CHECK(read.of[0] == end.of[0]);
    CHECK(read.of[0] == end.of[1]);
    if (shards == 1) CHECK(alone == merged);
    CHECK(alone == Approx(merged).epsilon(1e-12));  // two ranks add up the losses of samples in another order than one
  }
}

TEST_CASE("Branches that do not fit are refused") {
  using strategy = hd::strategy<inner_mesh, hd::zero<1>>;
  const auto error_of = [](const std::string& mesh, int layers_apart, const auto& body) {
    std::mutex lock;
    std::string text;
    try {
      hd::launch<hd::threads>(hd::parse_mesh<whole_mesh>(mesh), [&](auto& world) {
        auto own = world.template sub<dp, pp, tp>();
        auto settings = branch_settings();
        settings.model.layers += layers_apart * world.template along<of_branch>().rank();
        auto trainer = tr::make_trainer<strategy>(branch_network{}, own, settings);
        body(trainer, world);
      });
    } catch (const hd::config_error& e) {
      const std::scoped_lock hold(lock);
      text = e.what();
    }
    return text;
  };
  const auto with = [](tr::branch_options o) {
    return [o](auto& trainer, auto& world) { tr::branches<of_branch>(trainer, world, o); };
  };
  CHECK_THAT(error_of("of_branch=2,dp=1,pp=1,tp=1", 0, with({.keep = 0.4})),
             Contains("keep must be 0.5") && Contains("0.4"));
  CHECK_THAT(error_of("of_branch=2,dp=1,pp=1,tp=1", 0, with({.keep = std::nan("")})), Contains("keep must be 0.5"));
  CHECK_THAT(error_of("of_branch=3,dp=1,pp=1,tp=1", 0, with({.adaptive = true})),
             Contains("cosine between two branches; here are 3"));
  CHECK_THAT(error_of("of_branch=2,dp=1,pp=1,tp=1", 1, with({})),
             Contains("branches have other parameters: branch 1 has block.2") && Contains("where branch 0 has out"));
  CHECK_THAT(error_of("of_branch=2,dp=1,pp=1,tp=1", 0,
                      [](auto& trainer, auto& world) {
                        const std::vector<double> weights{0.5, 0.4};
                        tr::branches<of_branch>(trainer, world).merge(trainer, weights);
                      }),
             Contains("must add up to 1, got 0.9"));
}
