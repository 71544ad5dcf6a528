// tests/train/precision_zero_test.cpp: shares of gradients and weights in element types of their own, on the host and in memory that
// it may not touch.
#include "folder.hpp"
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/bf16_products.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/model/parameters.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/host_copy.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/schedule/routed.hpp>
#include <heddle/schedule/table_schedule.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16, hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr hd::model::gpt2_config config{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;
using usual = hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::gradients_in<bf16>>;

// `products_in<bf16>` with a switch: weights are rounded once for the passes of a step, or at each product. Counts casts of products.
std::atomic<bool> rounds_once{true};
std::atomic<std::int64_t> casts{0};
template <class Backend>
struct counts_casts : Backend {
  using Backend::Backend;
  template <class Op, class T, class... V>
    requires hd::compute::offered<Op, Backend, T>
  void run(const V&... v) {
    casts += std::string_view(Op::name) == "cast";
    hd::compute::run<Op>(static_cast<Backend&>(*this), v...);
  }
};
template <class Backend>
struct products_of_bf16 : hd::compute::bf16_products<counts_casts<Backend>> {
  using base = hd::compute::bf16_products<counts_casts<Backend>>;
  using base::base;
  void weights_stay(hd::row_view<const float, hd::space_of<Backend>> weights) {
    if (rounds_once) base::weights_stay(weights);
  }
};
struct at_each_product {
  at_each_product() { rounds_once = false; }
  ~at_each_product() { rounds_once = true; }
};
static_assert(hd::compute::weight_keeper<hd::compute::bf16_products<host>, float> &&
              !hd::compute::weight_keeper<hd::compute::bf16_products<host>, double> &&
              !hd::compute::weight_keeper<host, float>);

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> masters;
  std::int64_t taken_back = 0;  // steps, of all ranks
  // Of each rank: bytes for weights, gradients and moments, and of copies of weights; trained weights.
  struct memory {
    std::int64_t peak = 0, predicted = 0, rounded = 0, released = 0, elements = 0;
  };
  std::vector<memory> ranks;
};

// Losses, norms and owned masters after three steps, the second of which a save follows.
template <class Zero, class Backend = host, class NormCheck = hd::norm_first>
outcome train(const std::string& mesh_text, const std::string& save_to = "", const std::string& resume_from = "",
              const std::string& schedule = "1f1b") {
  outcome all;
  all.ranks.resize(static_cast<std::size_t>(hd::parse_mesh<mesh_type>(mesh_text).size()));
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](auto& world) {
    tr::options<hd::model::gpt2_config> o;
    o.model = config;
    o.batch = 6;
    o.microbatches = 2;
    o.steps = 3;
    o.schedule = schedule;
    o.clip_norm = 1.15;
    o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 20};
    o.threads_per_rank = 1;
    tr::trainer<hd::model::gpt2<float>,
                hd::strategy<mesh_type, hd::schedule::named, Zero, usual, products_of_bf16<Backend>, NormCheck>,
                std::remove_reference_t<decltype(world)>>
        trainer(world, o);
    if (!resume_from.empty()) tr::resume(trainer, resume_from);
    while (trainer.steps_done() < 3) {
      const auto r = trainer.step(train_test::random_tokens<config.context, config.vocabulary>{});
      if (world.rank() == 0) {
        all.losses.push_back(r.loss);
        all.norms.push_back(r.gradient_norm);
      }
      if (trainer.steps_done() == 2 && !save_to.empty()) tr::save(trainer, save_to);
    }
    const std::lock_guard lock(guard);
    all.taken_back += trainer.steps_taken_back();
    auto& memory = trainer.parameter_memory();
    outcome::memory& mine = all.ranks[static_cast<std::size_t>(world.rank())];
    mine = {memory.peak_bytes(), memory.predicted_peak_bytes(), memory.bytes().rounded, 0, 0};
    memory.release_kept();
    mine.released = memory.bytes().rounded;
    for (int k = 0; k < trainer.stages(); ++k) mine.elements += trainer.stage(k).flat_elements();
    for (int k = 0; k < trainer.stages(); ++k) {
      const auto masters = tr::detail::read_of_stage(trainer.stage(k), trainer.optimizer_state(k).masters());
      for (const auto& p : trainer.stage(k).parameters()) {
        auto& whole = all.masters[p.name];
        whole.resize(static_cast<std::size_t>(p.global_count()));
        tr::detail::for_owned_part(p, trainer.optimizer_state(k), [&](auto first, auto count, auto in_share) {
          hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i)
              if (local + i >= first && local + i < first + count)
                whole[static_cast<std::size_t>(global + i)] =
                    masters.elements()[static_cast<std::size_t>(in_share + local + i - first)];
          });
        });
      }
    }
  });
  return all;
}

// Weights after three steps of one optimizer on each of d ranks, and of each rank its moments and masters, if it keeps some.
template <class Zero, class Precision, class Backend>
std::vector<std::vector<double>> steps(int d) {
  using space = typename Backend::space;
  hd::model::parameter p;
  p.name = "w";
  p.id = 3;
  p.shape = p.logical = p.local = {9, 41};
  p.start = {0, 0};
  p.count = 9 * 41;
  p.decay = true;
  const std::vector<hd::model::parameter> table{p};
  const std::int64_t elements = p.count + 15;
  const auto drawn = [&](int what) {
    std::vector<float> x(static_cast<std::size_t>(elements), 0.0f);
    for (std::int64_t i = 0; i < p.count; ++i)
      x[static_cast<std::size_t>(i)] = static_cast<float>(
          hd::counter_random(17, static_cast<std::uint64_t>(what)).normal(static_cast<std::uint64_t>(i)));
    return x;
  };
  std::vector<std::vector<double>> all(static_cast<std::size_t>(2 * d));
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(d), [&](auto& world) {
    auto& group = world.template along<dp>();
    Backend backend(1);
    auto& queue = hd::compute::queue_of(backend);
    tr::sharded_optimizer<float, hd::optimizers::adamw, Precision, Zero, space> optimizer(queue, table, elements,
                                                                                          world.rank(), d);
    hd::buffer<float, space> weights(queue, elements), gradients(queue, elements);
    const auto row = [&](auto& x) { return hd::row_at<space>(x.address(), elements); };
    const auto read = [&](std::vector<double>& to, auto x) {
      const hd::read_on_host<hd::element_of<decltype(x)>, space> here(queue, x);
      for (const auto value : here.elements()) to.push_back(static_cast<double>(value));
    };
    std::vector<float> given = drawn(0);
    queue.copy(given, weights);
    optimizer.start(backend, row(weights), 5);
    queue.wait();
    for (std::int64_t step = 1; step <= 3; ++step) {
      given = drawn(static_cast<int>(10 * step) + world.rank());
      queue.copy(given, gradients);
      optimizer.reduce(group, row(gradients), 0, 100);
      optimizer.reduce(group, row(gradients), 100, elements);
      if (step == 2 && !std::is_same_v<Backend, host>) {  // there and back: what follows has the bits of who stayed
        optimizer.remember(row(weights));
        optimizer.update(backend, row(weights), row(gradients), tr::adamw_options{}, 1e-1, step, 1.0);
        optimizer.restore(row(weights));
      }
      optimizer.update(backend, row(weights), row(gradients), tr::adamw_options{}, 1e-2, step, 0.5);
      optimizer.gather(group, row(weights));
      queue.wait();
    }
    const auto rank = static_cast<std::size_t>(world.rank());
    read(all[2 * rank], row(weights));
    std::vector<double>& state = all[2 * rank + 1];
    read(state, optimizer.first_moment());
    read(state, optimizer.second_moment());
    if constexpr (requires { optimizer.masters(); }) read(state, optimizer.masters());
  });
  return all;
}
template <class Zero, class Precision>
void compare_steps(int d) {
  INFO(d << " ranks, zero " << Zero::stage);
  const auto expected = steps<Zero, Precision, host>(d), got = steps<Zero, Precision, checked>(d);
  for (int r = 1; r < d; ++r) CHECK(expected[static_cast<std::size_t>(2 * r)] == expected[0]);
  CHECK(expected[1] != std::vector<double>(expected[1].size(), 0.0));
  CHECK(got == expected);
}

}  // namespace

TEST_CASE("an optimizer of several element types has the bits of the host's in memory that it may not touch",
          "[train][precision][memory]") {
  using narrow = hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::gradients_in<bf16>,
                               hd::masters_in<bf16>, hd::moments_in<bf16, hd::rounding::stochastic>>;
  using wide = hd::precision<hd::weights_in<bf16>, hd::masters_in<double>, hd::moments_in<bf16>>;
  for (const int d : {1, 3, 7}) {
    compare_steps<hd::zero<0>, narrow>(d);
    compare_steps<hd::zero<1>, narrow>(d);
    compare_steps<hd::zero<1>, wide>(d);
  }
}

TEST_CASE("products of operands rounded to bf16 have the bits of the host's in memory that it may not touch",
          "[train][precision][memory]") {
  namespace hc = hd::compute;
  const auto products = []<class Backend>(std::type_identity<Backend>) {
    using space = typename Backend::space;
    hc::bf16_products<Backend> backend(1);
    static_assert(hc::kernel_set<hc::bf16_products<Backend>, float> &&
                  hc::offered<hc::half_product_facet, decltype(backend), hd::bf16> &&
                  hc::offered<hc::grouped_product_facet, decltype(backend), float>);
    auto& queue = hc::queue_of(static_cast<Backend&>(backend));
    std::vector<std::vector<float>> all;
    for (const std::int64_t n : {9, 31, 4}) {  // the operands' room grows, and is used again
      std::vector<float> drawn(static_cast<std::size_t>(2 * n * n));
      for (std::size_t i = 0; i < drawn.size(); ++i)
        drawn[i] = static_cast<float>(hd::counter_random(3, 1).normal(static_cast<std::uint64_t>(i)));
      const std::vector<std::int64_t> parts{0, n / 3, n / 3, n};
      hd::buffer<float, space> x(queue, 2 * n * n), y(queue, n * n), w(queue, 3 * n * n);
      hd::buffer<std::int64_t, space> offsets(queue, 4);
      queue.copy(drawn, x);
      queue.copy(parts, offsets);
      using matrix = hd::matrix_view<float, space>;
      using stack = hd::view<float, hd::dynamic_shape<3>, space>;
      const hd::dynamic_shape<2> square(n, n);
      const matrix a(x.address(), square), b(x.address() + n * n, square), c(y.address(), square);
      const stack experts(w.address(), hd::dynamic_shape<3>(3, n, n));
      const auto groups = hd::row_at<space>(offsets.address(), 4);
      const auto note = [&](auto& from) {
        all.emplace_back(from.size());
        queue.copy(from, all.back());
        queue.wait();
      };
      using enum hc::transpose;
      hc::matmul<no, no>(backend, a, b, c, 0.0f);
      hc::matmul<no, yes>(backend, a, b, c, 1.0f);
      hc::matmul<yes, no>(backend, b, a, c, 1.0f);
      note(y);
      hc::run<hc::ops::grouped_matmul_backward_weight>(backend, a, b, groups, experts, 1.0f);
      note(w);
      hc::grouped_matmul<yes>(backend, a, groups, experts, c, 1.0f);
      note(y);
      // Weights that stay: a product reads their copy until it is told that they were written, or that anyone may write.
      using row = hd::row_view<const float, space>;
      const row stay = hd::row_at<space>(static_cast<const float*>(x.address()), 2 * n * n);
      const auto product = [&] {
        hc::matmul<no, yes>(backend, a, b, c, 0.0f);
        note(y);
      };
      product();
      backend.weights_stay(stay);
      product();
      queue.zero(x);
      product();
      backend.weights_written(hd::row_at<space>(static_cast<const float*>(y.address()), n * n));
      product();
      backend.weights_written(hd::row_at<space>(static_cast<const float*>(x.address()) + n * n, 1));
      product();
      queue.copy(drawn, x);
      product();
      backend.weights_go(stay);
      product();
      CHECK(backend.rounded_weight_bytes() == 4 * n * n);
      const std::size_t first = all.size() - 7;
      for (const std::size_t same : {1u, 2u, 3u, 6u}) CHECK(all[first + same] == all[first]);
      for (const std::size_t zeros : {4u, 5u})
        CHECK(all[first + zeros] == std::vector<float>(static_cast<std::size_t>(n * n), 0.0f));
    }
    return all;
  };
  const auto expected = products(std::type_identity<host>{}), got = products(std::type_identity<checked>{});
  CHECK(expected[0] != std::vector<float>(expected[0].size(), 0.0f));
  CHECK(got == expected);
}

TEST_CASE("zero<2> and zero<3> with bf16 weights and gradients give the bits of zero<1>", "[train][precision][zero]") {
  std::int64_t taken_back = 0;
  for (const char* mesh : {"", "dp=2", "dp=3,pp=2", "dp=2,pp=2,tp=2"}) {
    INFO("mesh '" << mesh << "'");
    const train_test::folder saves("precision-zero");
    const outcome one = train<hd::zero<1>>(mesh), two = train<hd::zero<2>>(mesh),
                  three = train<hd::zero<3>>(mesh, saves.path.string());
    {
      const at_each_product rounding;
      CHECK(train<hd::zero<1>>(mesh).masters == one.masters);
    }
    CHECK(two.losses == one.losses);
    CHECK(two.masters == one.masters);
    CHECK(three.losses == one.losses);
    CHECK(three.norms == one.norms);
    CHECK(three.masters == one.masters);
    const outcome resumed = train<hd::zero<3>>(mesh, "", saves.path.string());
    CHECK(resumed.losses == std::vector<double>{one.losses[2]});
    CHECK(resumed.masters == one.masters);
    CHECK(train<hd::zero<1>>(mesh, "", saves.path.string()).masters == one.masters);

    const train_test::folder of_checked("precision-checked");
    const outcome there = train<hd::zero<3>, checked>(mesh, of_checked.path.string());
    CHECK(there.losses == one.losses);
    CHECK(there.norms == one.norms);
    CHECK(there.masters == one.masters);
    const outcome ahead = train<hd::zero<1>, checked, hd::post_validation_with_copy>(mesh);
    CHECK(ahead.masters == one.masters);
    taken_back += ahead.taken_back;
    CHECK(train<hd::zero<1>, checked, hd::post_validation_with_copy>(mesh, "", of_checked.path.string()).masters ==
          one.masters);
    CHECK(train<hd::zero<3>, checked>(mesh, "", saves.path.string()).masters == one.masters);
  }
  CHECK(taken_back > 0);
}

TEST_CASE("copies of weights in bf16 are counted, and predicted to the byte", "[train][precision][zero][memory]") {
  const auto check = []<class Zero, class Backend>(Zero, std::type_identity<Backend>) {
    for (const char* schedule : {"1f1b", "interleaved:4", "zb-v"})
      for (const char* mesh : {"", "pp=2", "dp=2,pp=2", "dp=2,tp=2"}) {
        const bool pipelined = std::string(mesh).find("pp") != std::string::npos;
        if (!pipelined && std::string(schedule) != "1f1b") continue;
        INFO("zero " << Zero::stage << ", mesh '" << mesh << "', " << schedule);
        const outcome got = train<Zero, Backend>(mesh, "", "", schedule);
        std::int64_t counted = 0, of_all = 0;
        for (const outcome::memory& m : got.ranks) {
          CHECK(m.peak == m.predicted);
          CHECK(m.rounded > 0);
          CHECK(m.released == 0);
          counted += m.rounded;
          of_all += 2 * m.elements;
        }
        // Of more stages than are whole at a time the copies are not there all at once.
        if (Zero::stage == 3 && std::string(schedule) == "interleaved:4")
          CHECK(counted < of_all);
        else
          CHECK(counted == of_all);
        const at_each_product rounding;
        const outcome without = train<Zero, Backend>(mesh, "", "", schedule);
        for (std::size_t r = 0; r < got.ranks.size(); ++r) {
          CHECK(without.ranks[r].rounded == 0);
          CHECK(got.ranks[r].peak - without.ranks[r].peak >= got.ranks[r].rounded);
        }
      }
  };
  check(hd::zero<1>{}, std::type_identity<host>{});
  check(hd::zero<2>{}, std::type_identity<host>{});
  check(hd::zero<3>{}, std::type_identity<host>{});
  check(hd::zero<3>{}, std::type_identity<checked>{});
}

namespace {
constexpr hd::model::gpt2_config model_of_formula = config;
template <int Stages, int Dp>
struct shape {
  static constexpr hd::model::gpt2_config config = model_of_formula;
  static constexpr int stages = Stages, dp = Dp, tp = 1;
  static constexpr std::int64_t samples = 1;
};
}  // namespace

TEST_CASE("the formula has the copies of weights in bf16", "[train][precision][zero][memory]") {
  const auto check = []<int Dp, class Zero>(std::integral_constant<int, Dp>, Zero, const char* mesh) {
    using keep = hd::activations::keep;
    using with = tr::gpt2_with_state<float, shape<1, Dp>, Zero, keep, hd::precision<hd::products_in<bf16>>>;
    using without = tr::gpt2_with_state<float, shape<1, Dp>, Zero, keep>;
    const std::int64_t copies =
        with::state_bytes(0) + with::gathered_bytes(0) - without::state_bytes(0) - without::gathered_bytes(0);
    CHECK(copies == train<Zero>(mesh).ranks[0].rounded);
  };
  check(std::integral_constant<int, 1>{}, hd::zero<1>{}, "");
  check(std::integral_constant<int, 2>{}, hd::zero<1>{}, "dp=2");
  check(std::integral_constant<int, 1>{}, hd::zero<3>{}, "");
  check(std::integral_constant<int, 2>{}, hd::zero<3>{}, "dp=2");
  using in_double = tr::gpt2_with_state<double, shape<1, 1>, hd::zero<1>, hd::activations::keep,
                                        hd::precision<hd::products_in<bf16>>>;
  STATIC_REQUIRE(in_double::rounded_bytes(0) == 0);  // its products are those of double
}

TEST_CASE("weights are rounded once for the passes of a step, with the bits of rounding at each product",
          "[train][precision]") {
  // A step of two microbatches on one rank: of four weights in each of three layers and of the head's, each read in two forwards and two backwards.
  const std::int64_t before = casts;
  const outcome once = train<hd::zero<1>>("");
  const std::int64_t between = casts;
  const at_each_product rounding;
  const outcome each = train<hd::zero<1>>("");
  CHECK(casts - between - (between - before) == 3 * 13 * (4 - 1));
  CHECK(once.masters == each.masters);
  CHECK(once.losses == each.losses);
}

TEST_CASE("weights rounded once are never old where stages are skipped, recomputed and stepped before the norm",
          "[train][precision][skippipe][post_validation]") {
  // Two origins, a stage of two nodes and one of one; skips and a swap.
  hd::schedule::path_table t;
  t.stages = 4;
  t.length = 3;
  t.stage_of_node = {0, 0, 1, 1, 2, 3};
  t.way = {0, 2, 4, 1, 3, 5, 0, 4, 5, 1, 4, 3, 0, 3, 4, 1, 2, 5};
  const hd::schedule::tabled ways(hd::schedule::routed(t), 6);
  const hd::schedule::tabled bubbles(hd::schedule::named{"zb-v", 3}, 2);
  struct result {
    std::vector<std::vector<float>> weights;
    std::vector<double> losses, norms;
    std::int64_t taken_back = 0;
  };
  const auto run = [](const hd::schedule::tabled& when, const mesh_type& mesh, double clip) {
    tr::options<hd::model::gpt2_config> o;
    o.model = {.layers = 6, .heads = 2, .width = 8, .context = 6, .vocabulary = 29};
    o.batch = 15;
    o.steps = 3;
    o.clip_norm = clip;
    o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 20};
    o.threads_per_rank = 1;
    o.recompute = "full";
    result r;
    r.weights.resize(static_cast<std::size_t>(mesh.size()));
    std::mutex guard;
    hd::launch<hd::threads>(mesh, [&](auto& world) {
      const train_test::random_tokens<6, 29> data;
      using strategy = hd::strategy<mesh_type, hd::schedule::tabled, hd::zero<1>, hd::activations::recompute<>,
                                    hd::post_validation, products_of_bf16<host>>;
      tr::trainer<hd::model::gpt2<float>, strategy, std::remove_reference_t<decltype(world)>> trainer(world, o, when);
      std::vector<double> losses, norms;
      trainer.run(data, [&](const tr::step_report& step) {
        losses.push_back(step.loss);
        norms.push_back(step.gradient_norm);
      });
      auto& mine = r.weights[static_cast<std::size_t>(world.rank())];
      for (int k = 0; k < trainer.stages(); ++k) {
        const auto w = trainer.stage(k).weights();
        mine.insert(mine.end(), w.begin(), w.end());
      }
      const std::lock_guard lock(guard);
      r.taken_back += trainer.steps_taken_back();
      if (world.rank() == 0) r.losses = losses, r.norms = norms;
    });
    return r;
  };
  std::int64_t taken_back = 0;
  for (const bool skips : {true, false}) {
    double clip = 1e9;
    for (const bool clips : {false, true}) {
      CAPTURE(skips, clips);
      const mesh_type mesh(skips ? 1 : 2, skips ? 6 : 2, 1);
      const result once = run(skips ? ways : bubbles, mesh, clip);
      const at_each_product rounding;
      const result each = run(skips ? ways : bubbles, mesh, clip);
      CHECK(once.losses == each.losses);
      CHECK(once.weights == each.weights);
      CHECK(once.taken_back == each.taken_back);
      clip = 0.99 * once.norms.at(1);  // no rank alone has as much: the second step is taken back
      taken_back += once.taken_back;
    }
  }
  CHECK(taken_back > 0);
}
