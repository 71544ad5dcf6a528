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
#include <heddle/train/mixed_optimizer.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16, hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
constexpr hd::model::gpt2_config config{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;
using usual =
    hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>, hd::gradients_in<bf16>, hd::products_in<bf16>>;

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> masters;
  std::int64_t taken_back = 0;  // steps, of all ranks
};

// Losses, norms and owned masters after three steps, the second of which a save follows.
template <class Zero, class Backend = host, class NormCheck = hd::norm_first>
outcome train(const std::string& mesh_text, const std::string& save_to = "", const std::string& resume_from = "") {
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](auto& world) {
    tr::options<hd::model::gpt2_config> o;
    o.model = config;
    o.batch = 6;
    o.microbatches = 2;
    o.steps = 3;
    o.clip_norm = 1.15;
    o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 20};
    o.threads_per_rank = 1;
    tr::trainer<hd::model::gpt2<float>, hd::strategy<mesh_type, Zero, usual, Backend, NormCheck>,
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
    tr::mixed_optimizer<float, Zero, Precision, space> optimizer(queue, table, elements, world.rank(), d);
    hd::buffer<float, space> weights(queue, elements), gradients(queue, elements);
    const auto row = [&](auto& x) { return hd::detail::row_at<space>(x.address(), elements); };
    const auto read = [&](std::vector<double>& to, auto x) {
      const hd::read_on_host<hd::detail::element_of<decltype(x)>, space> here(queue, x);
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
    static_assert(hc::kernel_set<hc::bf16_products<Backend>, float> && hc::half_product_kernels<decltype(backend)> &&
                  hc::grouped_product_kernels<decltype(backend), float>);
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
      const auto groups = hd::detail::row_at<space>(offsets.address(), 4);
      const auto note = [&](auto& from) {
        all.emplace_back(from.size());
        queue.copy(from, all.back());
        queue.wait();
      };
      using enum hc::transpose;
      backend.template matmul<no, no>(a, b, c, 0.0f);
      backend.template matmul<no, yes>(a, b, c, 1.0f);
      backend.template matmul<yes, no>(b, a, c, 1.0f);
      note(y);
      backend.grouped_matmul_backward_weight(a, b, groups, experts, 1.0f);
      note(w);
      backend.template grouped_matmul<yes>(a, groups, experts, c, 1.0f);
      note(y);
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
