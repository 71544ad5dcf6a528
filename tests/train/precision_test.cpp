// tests/train/precision_test.cpp: weights, reduced gradients, master weights and moments in element types of their own.
#include "folder.hpp"
#include "random_tokens.hpp"

#include "catch.hpp"

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/compute/bf16_products.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/error.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/language_state.hpp>
#include <heddle/train/post_validation.hpp>
#include <heddle/train/sharded_optimizer.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/products.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hd = heddle;
namespace tr = heddle::train;
using hd::bf16, hd::dp, hd::pp, hd::tp;

namespace {

using mesh_type = hd::mesh<hd::axis<dp>, hd::axis<pp>, hd::axis<tp>>;
using model = hd::model::gpt2<float>;
constexpr hd::model::gpt2_config settings{.layers = 3, .heads = 2, .width = 12, .context = 6, .vocabulary = 29};
using tokens = train_test::random_tokens<settings.context, settings.vocabulary>;
// Random tokens, each with the one target that belongs to it: a loss that falls.
struct learnable_tokens : tokens {
  void fill_train(hd::io::sample_block block, std::span<std::int32_t> in, std::span<std::int32_t> targets) const {
    tokens::fill_train(block, in, targets);
    for (std::size_t i = 0; i < in.size(); ++i) targets[i] = (7 * in[i] + 3) % settings.vocabulary;
  }
};

// Weights and reduced gradients in bf16, masters and moments in float.
using usual = hd::precision<hd::weights_in<bf16>, hd::gradients_in<bf16>>;
// Nothing wider than bf16 is kept, and products are of bf16.
using narrow =
    hd::precision<hd::products_in<bf16>, hd::gradients_in<bf16>, hd::weights_in<bf16, hd::rounding::stochastic>,
                  hd::moments_in<bf16, hd::rounding::stochastic>, hd::masters_in<bf16>>;

// Products of linear layers in 8 bits.
using float8_strategy = hd::strategy<mesh_type, hd::precision<hd::products_in<hd::float8>>, hd::zero<3>>;

using float8_rows_strategy = hd::strategy<mesh_type, hd::precision<hd::products_in<hd::float8_rows>>, hd::zero<1>>;

using plain_strategy = hd::strategy<mesh_type, hd::zero<0>>;
using usual_strategy = hd::strategy<mesh_type, usual, hd::zero<1>>;
// Its steps may be taken back, from copies.
using narrow_strategy = hd::strategy<hd::zero<0>, mesh_type, narrow, hd::post_validation_with_copy>;
template <class Strategy>
using trainer_of = tr::trainer<model, Strategy, hd::world<hd::threads, mesh_type>>;

// A precision of the model's own type is none.
static_assert(std::is_same_v<trainer_of<plain_strategy>::optimizer_type, tr::optimizer<float, hd::zero<0>>>);
static_assert(
    std::is_same_v<tr::detail::optimizer_under<
                       float, hd::strategy<mesh_type, hd::precision<hd::weights_in<float>, hd::masters_in<float>>>>,
                   tr::optimizer<float, hd::zero<0>>>);

static_assert(std::is_same_v<hd::strategy<mesh_type, usual>::backend, hd::compute::host<>> &&
              std::is_same_v<narrow_strategy::backend, hd::compute::bf16_products<hd::compute::host<>>>);
static_assert(
    hd::compute::kernel_set<hd::compute::bf16_products<hd::compute::host<>>, float> &&
    hd::compute::kernel_set<hd::compute::bf16_products<hd::compute::host<>>, double> &&
    hd::compute::offered<hd::compute::grouped_product_facet, hd::compute::bf16_products<hd::compute::host<>>, float> &&
    hd::compute::offered<hd::compute::half_product_facet, hd::compute::bf16_products<hd::compute::host<>>, hd::bf16>);

using rates_of_names = std::vector<std::pair<std::string, double>>;

tr::options<hd::model::gpt2_config> options_of(std::int64_t steps, rates_of_names rates = {}) {
  tr::options<hd::model::gpt2_config> o;
  o.adamw.rates = std::move(rates);
  o.model = settings;
  o.batch = 6;
  o.microbatches = 2;
  o.steps = steps;
  o.clip_norm = 0.7;
  o.learning_rate = {.peak = 1e-2, .minimum = 1e-3, .warmup_steps = 1, .total_steps = 20};
  o.threads_per_rank = 1;
  return o;
}

using tensors = std::map<std::string, std::vector<float>>;

struct outcome {
  std::vector<double> losses, norms;
  tensors weights, masters, first;
  std::int64_t first_step = 0, odd_weights = 0, apart = 0;  // weights that are no bf16, and copies that differ
  std::int64_t reduced = 0, sent_whole = 0, gathered = 0;   // bytes that rank 0 gave to dp in the last step
  std::int64_t taken_back = 0;                              // by any rank
  std::int64_t elements = 0, owned = 0, state_bytes = 0, room_bytes = 0;  // of rank 0
};

// Puts elements [first, first + count) of a rank's part of a parameter where they belong in the whole.
template <class V>
void place(tensors& to, const hd::model::parameter& p, std::int64_t first, std::int64_t count, const V* from,
           std::int64_t* apart = nullptr) {
  std::vector<float>& whole = to[p.name];
  if (whole.empty()) whole.assign(static_cast<std::size_t>(p.global_count()), std::nanf(""));
  hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
    for (std::int64_t k = 0; k < n; ++k) {
      if (local + k < first || local + k >= first + count) continue;
      float& x = whole[static_cast<std::size_t>(global + k)];
      const auto value = static_cast<float>(from[local + k - first]);
      if (apart != nullptr && !std::isnan(x) && x != value) ++*apart;
      x = value;
    }
  });
}

template <class Strategy, class Tokens = tokens>
outcome train(const std::string& mesh_text, std::int64_t steps, const std::string& save_to = "",
              const std::string& resume_from = "", std::int64_t until = 0, const rates_of_names& rates = {}) {
  const auto mesh = hd::parse_mesh<mesh_type>(mesh_text);
  outcome all;
  std::mutex guard;
  hd::launch<hd::threads>(mesh, [&](auto& world) {
    trainer_of<Strategy> trainer(world, options_of(steps, rates));
    const bool tells = world.rank() == 0;
    if (!resume_from.empty()) {
      const auto result = tr::resume(trainer, resume_from);
      if (tells) all.first_step = result.step;
    }
    while (trainer.steps_done() < (until > 0 ? until : steps)) {
      const auto before = trainer.ranks().template along_if<hd::dp>().counters();
      const tr::step_report r = trainer.step(Tokens{});
      const auto after = trainer.ranks().template along_if<hd::dp>().counters();
      if (!tells) continue;
      all.losses.push_back(r.loss);
      all.norms.push_back(r.gradient_norm);
      const auto bytes = [&](hd::comm_operation what) { return after[what].bytes - before[what].bytes; };
      all.reduced = bytes(hd::comm_operation::all_to_all_v);
      all.sent_whole = bytes(hd::comm_operation::all_reduce) + bytes(hd::comm_operation::reduce_scatter_v);
      all.gathered = bytes(hd::comm_operation::all_gather_v);
    }
    if (!save_to.empty()) tr::save(trainer, save_to);
    const std::lock_guard lock(guard);
    all.taken_back += trainer.steps_taken_back();
    for (int k = 0; k < trainer.stages(); ++k) {
      auto& stage = trainer.stage(k);
      auto& optimizer = trainer.optimizer_state(k);
      if (tells) {
        all.elements += static_cast<std::int64_t>(stage.weights().size());
        all.owned += optimizer.owned_end() - optimizer.owned_begin();
        all.state_bytes += optimizer.state_bytes();
        if constexpr (requires { optimizer.room_bytes(); }) all.room_bytes += optimizer.room_bytes();
      }
      for (const float w : stage.weights()) all.odd_weights += static_cast<float>(bf16(w)) != w ? 1 : 0;
      for (const auto& p : stage.parameters()) {
        place(all.weights, p, 0, p.count, stage.weights().data() + p.offset, &all.apart);
        tr::detail::for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
          place(all.first, p, first, count, optimizer.first_moment().data() + in_share);
          if constexpr (requires { optimizer.masters(); })
            place(all.masters, p, first, count, optimizer.masters().data() + in_share);
        });
      }
    }
  });
  return all;
}

// Only the losses, whatever a stage keeps of its weights.
template <class Strategy, class Tokens>
std::vector<double> losses_on(const std::string& mesh_text, std::int64_t steps) {
  std::vector<double> losses;
  hd::launch<hd::threads>(hd::parse_mesh<mesh_type>(mesh_text), [&](auto& world) {
    trainer_of<Strategy> trainer(world, options_of(steps));
    while (trainer.steps_done() < steps) {
      const double loss = trainer.step(Tokens{}).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

tensors rounded(const tensors& x) {
  tensors y = x;
  for (auto& [name, values] : y)
    for (float& v : values) v = static_cast<float>(bf16(v));
  return y;
}
double distance(const tensors& x, const tensors& y) {
  double squares = 0;
  for (const auto& [name, values] : x)
    for (std::size_t i = 0; i < values.size(); ++i) squares += std::pow(double{values[i]} - double{y.at(name)[i]}, 2);
  return std::sqrt(squares);
}
double largest_relative(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size() || a.empty()) return 1e300;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (std::isnan(error) || error > worst) worst = error;
  }
  return worst;
}

// The serial reference: the gradient at rounded weights by a trainer of one rank without a precision, and AdamW on float masters.
// `rate(name)`: the factor of a parameter's learning rate.
template <class Rate>
outcome serial(std::int64_t steps, Rate&& rate) {
  outcome all;
  hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {
    const auto o = options_of(steps);
    trainer_of<plain_strategy> trainer(world, o);
    auto& stage = trainer.stage();
    std::vector<float> master(stage.weights().begin(), stage.weights().end()), m(master.size()), v(master.size());
    hd::compute::host<> backend(1);
    for (std::int64_t step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < master.size(); ++i) stage.weights()[i] = static_cast<float>(bf16(master[i]));
      const auto result = trainer.compute_gradients(tokens{});
      all.losses.push_back(result.loss);
      all.norms.push_back(result.gradient_norm);
      hd::compute::adamw_step hyper{};
      hyper.beta1 = o.adamw.beta1;
      hyper.beta2 = o.adamw.beta2;
      hyper.eps = o.adamw.epsilon;
      hyper.step = step + 1;
      hyper.grad_scale = std::min(1.0, o.clip_norm / (result.gradient_norm + 1e-6)) * result.gradient_scale;
      for (const auto& p : stage.parameters()) {
        hyper.lr = rate(p.name) * o.learning_rate(step);
        hyper.weight_decay = p.decay ? o.adamw.weight_decay : 0.0;
        const auto at = static_cast<std::size_t>(p.offset), n = static_cast<std::size_t>(p.count);
        hd::compute::run<hd::compute::ops::adamw>(
            backend, std::span<float>(master).subspan(at, n), std::span<const float>(stage.gradients().subspan(at, n)),
            std::span<float>(m).subspan(at, n), std::span<float>(v).subspan(at, n), hyper);
      }
      trainer.apply_gradients(result);  // counts the step, so that the next samples come; its weights are written above
    }
    for (const auto& p : stage.parameters()) place(all.masters, p, 0, p.count, master.data() + p.offset);
  });
  all.weights = rounded(all.masters);
  return all;
}
outcome serial(std::int64_t steps) {
  return serial(steps, [](const std::string&) { return 1.0; });
}

// Of `language_with_state`.
struct shape {
  static constexpr hd::model::gpt2_config config = settings;
  static constexpr int stages = 1, dp = 3, tp = 1;
  static constexpr std::int64_t samples = 1;
};

const char* const meshes[] = {"dp=2", "dp=3", "pp=2", "tp=2", "dp=2,pp=3", "dp=2,pp=2,tp=2"};

}  // namespace

TEST_CASE("bf16 weights with float masters train what a serial reference trains, bit for bit on one rank",
          "[train][precision]") {
  const outcome reference = serial(4), got = train<usual_strategy>("", 4);
  CHECK(got.losses == reference.losses);
  CHECK(got.norms == reference.norms);
  CHECK(got.masters == reference.masters);
  CHECK(got.weights == reference.weights);
  CHECK(got.weights != got.masters);
  CHECK(got.odd_weights == 0);
}

TEST_CASE("masters learn at the rates of their parameters' names, as a serial reference does", "[train][precision]") {
  // The first entry that fits counts: block 1 has 0.25, the others 2.
  const rates_of_names rates{{"wte", 4}, {"h.1.", 0.25}, {"h.", 2}, {"ln_f", 0}};
  const outcome plain = serial(4), reference = serial(4, [](const std::string& name) {
                                     if (name.starts_with("wte")) return 4.0;
                                     if (name.starts_with("h.1.")) return 0.25;
                                     if (name.starts_with("h.")) return 2.0;
                                     return name.starts_with("ln_f") ? 0.0 : 1.0;
                                   });
  CHECK(largest_relative(reference.losses, plain.losses) > 1e-3);
  const outcome got = train<usual_strategy>("", 4, "", "", 0, rates);
  CHECK(got.losses == reference.losses);
  CHECK(got.masters == reference.masters);
  for (const char* mesh : {"dp=2", "dp=2,pp=2,tp=2"}) {
    INFO(mesh);
    const outcome many = train<usual_strategy>(mesh, 4, "", "", 0, rates);
    CHECK(largest_relative(many.losses, reference.losses) <= 1e-3);
    CHECK(many.apart == 0);  // the embedding of the last stage learns as that of the first
  }
}

TEST_CASE("rates of names that no parameter has are refused on all ranks", "[train][precision][options]") {
  for (const char* mesh : {"", "dp=2", "pp=2", "pp=3,tp=2"}) {
    INFO(mesh);
    CHECK_NOTHROW(train<usual_strategy>(mesh, 0, "", "", 0, {{"wte.", 2}, {"h.2.", 2}, {"ln_f.b", 2}, {"", 3}}));
    const auto run = [&] { train<usual_strategy>(mesh, 0, "", "", 0, {{"wte.", 2}, {"h.3.", 2}, {"ln_f.b", 2}}); };
    CHECK_THROWS_AS(run(), hd::config_error);
    CHECK_THROWS_WITH(run(), Catch::Matchers::Contains("rates: no trained parameter's name begins with 'h.3.'") &&
                                 Catch::Matchers::Contains("wte.weight, wpe.weight, h.*.ln_1.weight") &&
                                 Catch::Matchers::Contains("ln_f.bias") && !Catch::Matchers::Contains("h.0."));
  }
}

TEST_CASE("steps that are taken back have the greatest of the rates", "[train][precision][options]") {
  auto o = options_of(1, {{"wte", 3}, {"h.", 0.5}});
  o.learning_rate.peak = 0.5;
  o.adamw.weight_decay = 0.5;
  const auto check = [&]<class NormCheck>(NormCheck) {
    using taken = tr::options<hd::model::gpt2_config, tr::any_learning_rate>;
    tr::detail::checked_options<hd::strategy<mesh_type, NormCheck>>(taken(o));
  };
  CHECK_NOTHROW(check(hd::post_validation{}));
  o.adamw.rates[0].second = 4;
  CHECK_THROWS_AS(check(hd::post_validation{}), hd::config_error);
  CHECK_THROWS_WITH(check(hd::post_validation{}), Catch::Matchers::Contains("0.5 times 4 times weight decay 0.5"));
  CHECK_NOTHROW(check(hd::post_validation_with_copy{}));
}

TEST_CASE("bf16 weights and gradients train the same model on every mesh, and copies stay the same bits",
          "[train][precision]") {
  const outcome reference = serial(4);
  for (const char* mesh : meshes) {
    INFO(mesh);
    const outcome got = train<usual_strategy>(mesh, 4);
    // A sum in another order may round a weight to the bf16 beside; gradients over dp have 8 bits.
    CHECK(largest_relative(got.losses, reference.losses) <= 1e-3);
    CHECK(largest_relative(got.norms, reference.norms) <= 1e-2);
    CHECK(std::abs(got.losses[0] - reference.losses[0]) <= 1e-6 * reference.losses[0]);
    CHECK(got.apart == 0);
    CHECK(got.odd_weights == 0);
    CHECK(got.weights == rounded(got.masters));
  }
}

TEST_CASE("bf16 weights and moments without masters train on every mesh", "[train][precision]") {
  const outcome one = train<narrow_strategy>("", 6), plain = train<plain_strategy>("", 6);
  const tensors initial = train<plain_strategy>("", 0).weights;
  // Rounding is a part of what six steps do to the weights.
  CHECK(distance(one.weights, plain.weights) <= 0.2 * distance(initial, plain.weights));
  CHECK(largest_relative(one.losses, plain.losses) <= 2e-2);
  CHECK(one.masters.empty());
  std::int64_t taken_back = 0;
  for (const char* mesh : meshes) {
    INFO(mesh);
    const outcome got = train<narrow_strategy>(mesh, 6);
    CHECK(largest_relative(got.losses, one.losses) <= 2e-2);
    CHECK(distance(got.weights, plain.weights) <= 0.2 * distance(initial, plain.weights));
    CHECK(got.apart == 0);
    CHECK(got.odd_weights == 0);
    taken_back += got.taken_back;
  }
  CHECK(taken_back > 0);
}

TEST_CASE("products of bf16 are of rounded operands, added up in float", "[train][precision]") {
  constexpr std::int64_t m = 5, k = 37, n = 7;
  const auto filled = [](std::int64_t size, std::uint64_t stream) {
    std::vector<float> x(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(hd::counter_random(7, stream).normal(static_cast<std::uint64_t>(i)));
    return x;
  };
  const std::vector<float> a = filled(m * k, 1), b = filled(k * n, 2), before = filled(m * n, 3);
  const auto matrix = [](const std::vector<float>& x, std::int64_t rows, std::int64_t columns) {
    return hd::matrix_view<const float>(x.data(), hd::dynamic_shape<2>(rows, columns));
  };
  hd::compute::bf16_products<hd::compute::host<>> backend(2);
  std::vector<float> c = before;
  const hd::matrix_view<float> out(c.data(), hd::dynamic_shape<2>(m, n));
  heddle::compute::matmul(backend, matrix(a, m, k), matrix(b, k, n), out, 1.0f);
  double rounding = 0;
  const auto check = [&] {
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = before[static_cast<std::size_t>(i * n + j)], size = std::abs(sum), whole = sum;
        for (std::int64_t l = 0; l < k; ++l) {
          const float x = a[static_cast<std::size_t>(i * k + l)], y = b[static_cast<std::size_t>(l * n + j)];
          const double product = double{static_cast<float>(bf16(x))} * static_cast<float>(bf16(y));
          sum += product;
          size += std::abs(product);
          whole += double{x} * y;
        }
        const double got = c[static_cast<std::size_t>(i * n + j)];
        CHECK(std::abs(got - sum) <= (k + 3) * 0x1p-24 * size);
        rounding = std::max(rounding, std::abs(got - whole));
      }
  };
  check();
  CHECK(rounding > 1e-3);  // it is not the product of the operands themselves
  c = before;
  const std::vector<std::int64_t> offsets{0, m};
  heddle::compute::grouped_matmul(backend, matrix(a, m, k), std::span<const std::int64_t>(offsets),
                                  hd::compute::stack_view<const float>(b.data(), hd::dynamic_shape<3>(1, k, n)), out,
                                  1.0f);
  check();
}

TEST_CASE("weights that somebody writes become the masters", "[train][precision]") {
  hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {
    trainer_of<usual_strategy> trainer(world, options_of(1));
    auto& stage = trainer.stage();
    std::fill(stage.weights().begin(), stage.weights().end(), 0.3f);
    tr::adopt_weights(trainer);
    CHECK(stage.weights()[3] == static_cast<float>(bf16(0.3f)));
    CHECK(trainer.optimizer_state().masters()[3] == 0.3f);
  });
}

TEST_CASE("masters and moments that are not finite are not saved", "[train][precision][nonfinite]") {
  const auto fault = []<class Strategy>(Strategy, auto&& poison) {
    hd::launch<hd::threads>(mesh_type(1, 1, 1), [&](auto& world) {
      trainer_of<Strategy> trainer(world, options_of(1));
      tr::require_finite_state(trainer, "before");
      poison(trainer.optimizer_state());
      tr::require_finite_state(trainer, "behind");
    });
  };
  CHECK_THROWS_WITH(
      fault(usual_strategy{}, [](auto& o) { o.masters()[5] = HUGE_VALF; }),
      Catch::Matchers::Contains("behind: master weight") && Catch::Matchers::Contains("inf in element 5"));
  CHECK_THROWS_WITH(fault(narrow_strategy{}, [](auto& o) { o.first_moment()[6] = bf16(std::nanf("")); }),
                    Catch::Matchers::Contains("behind: first moment") && Catch::Matchers::Contains("nan in element 6"));
  CHECK_THROWS_WITH(fault(narrow_strategy{}, [](auto& o) { o.second_moment()[7] = bf16(-1.0f); }),
                    Catch::Matchers::Contains("behind: second moment") && Catch::Matchers::Contains("-1 in element 7"));
}

TEST_CASE("bytes of gradients, weights and state are those of their types", "[train][precision]") {
  for (const int d : {1, 2, 3}) {
    const std::string mesh = d == 1 ? "" : "dp=" + std::to_string(d);
    INFO(mesh);
    const outcome plain = train<plain_strategy>(mesh, 1), a = train<usual_strategy>(mesh, 1),
                  b = train<narrow_strategy>(mesh, 1);
    const std::int64_t n = a.elements, share = hd::balanced_split{n, d}.size(0);
    const bool sends = d > 1;
    CHECK(plain.sent_whole == (sends ? 4 * n : 0));
    // What a rank gives includes its own share: (d - 1) / d of it goes to others.
    CHECK(a.reduced == (sends ? 2 * n : 0));
    CHECK(a.gathered == (sends ? 2 * share : 0));
    CHECK(a.sent_whole == 0);
    CHECK(b.reduced == (sends ? 2 * n : 0));  // zero<0>: the sum is gathered, too
    CHECK(b.gathered == (sends ? 2 * share : 0));
    CHECK(plain.state_bytes == 2 * 4 * n);
    CHECK(a.owned == share);
    CHECK(a.state_bytes - a.room_bytes == (4 + 2 * 4) * share);
    const std::int64_t copies = 3 * 2 * n;  // of weights and moments
    CHECK(b.state_bytes - b.room_bytes == 2 * 2 * n + copies);
    if (d != 3) continue;
    using formula = tr::gpt2_with_state<float, shape, hd::zero<1>, hd::activations::keep, usual>;
    CHECK(a.state_bytes - a.room_bytes == formula::moment_bytes(0) + formula::master_bytes(0));
    using formula_b = tr::gpt2_with_state<float, shape, hd::zero<0>, hd::activations::keep, narrow>;
    CHECK(b.state_bytes - b.room_bytes - copies == formula_b::moment_bytes(0) + formula_b::master_bytes(0));
  }
}

TEST_CASE("a run with a precision that is cut by a save goes on bit for bit, and on another mesh",
          "[train][precision]") {
  for (const bool masters : {true, false})
    for (const char* mesh : {"", "dp=2,pp=2"}) {
      INFO("mesh '" << mesh << "', masters " << masters);
      const train_test::folder saves("precision");
      const std::string to = saves.path.string();
      const auto run = [&](const char* on, const std::string& save_to, const std::string& from, std::int64_t until) {
        return masters ? train<usual_strategy>(on, 5, save_to, from, until)
                       : train<narrow_strategy>(on, 5, save_to, from, until);
      };
      const outcome whole = run(mesh, "", "", 5), cut = run(mesh, to, "", 2), resumed = run(mesh, "", to, 5);
      CHECK(resumed.first_step == 2);
      CHECK(resumed.losses == std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
      CHECK(resumed.weights == whole.weights);
      CHECK(resumed.masters == whole.masters);
      CHECK(resumed.first == whole.first);
      for (const char* other : {"tp=2", "dp=3", "dp=2,pp=3"}) {
        INFO(other);
        const outcome there = run(other, "", to, 2);  // no step: the state is the same bits
        CHECK(there.weights == cut.weights);
        CHECK(there.masters == cut.masters);
        CHECK(there.first == cut.first);
        CHECK(std::abs(run(other, "", to, 3).losses[0] - whole.losses[2]) <= 1e-6 * whole.losses[2]);
      }
    }
}

TEST_CASE("a save without a precision is converted, one with other types is refused", "[train][precision]") {
  const train_test::folder saves("precision-plain"), mixed("precision-mixed");
  const outcome plain = train<plain_strategy>("dp=2", 3, saves.path.string(), "", 2);
  for (const char* mesh : {"", "dp=2,tp=2"}) {
    const outcome got = train<usual_strategy>(mesh, 3, "", saves.path.string(), 2);
    CHECK(got.first_step == 2);
    CHECK(got.masters == plain.weights);
    CHECK(got.weights == rounded(plain.weights));
    CHECK(got.first == plain.first);
    const outcome none = train<narrow_strategy>(mesh, 3, "", saves.path.string(), 2);
    CHECK(none.weights == rounded(plain.weights));
    CHECK(none.first == rounded(plain.first));
  }
  train<usual_strategy>("dp=2", 3, mixed.path.string(), "", 2);
  const std::string from = mixed.path.string();
  CHECK_THROWS_AS(train<plain_strategy>("", 3, "", from), hd::config_error);
  CHECK_THROWS_WITH(train<plain_strategy>("", 3, "", from),
                    Catch::Matchers::Contains("f32 weights=bf16 masters=f32 moments=f32; this run trains"));
  CHECK_THROWS_WITH(train<narrow_strategy>("", 3, "", from), Catch::Matchers::Contains("moments=bf16"));
}

namespace {

// Two parameters, of which the second is held by columns [first, first + columns) of `whole` of them.
struct table {
  std::vector<hd::model::parameter> parameters;
  std::int64_t elements = 0;
  explicit table(std::int64_t first = 0, std::int64_t columns = 40) {
    add("a", 3, {150}, {150}, {0});
    add("b", 7, {9, 40}, {9, columns}, {0, first});
  }
  void add(const char* name, int id, std::vector<std::int64_t> whole, std::vector<std::int64_t> local,
           std::vector<std::int64_t> start) {
    hd::model::parameter p;
    p.name = name;
    p.id = id;
    p.shape = p.logical = whole;
    p.local = local;
    p.start = start;
    p.offset = elements;
    p.count = 1;
    for (const std::int64_t e : local) p.count *= e;
    p.decay = whole.size() > 1;
    elements += (p.count + 15) / 16 * 16;
    parameters.push_back(p);
  }
};
float number(int what, int id, std::int64_t i) {
  return static_cast<float>(
      hd::counter_random(91, static_cast<std::uint64_t>(10 * id + what)).normal(static_cast<std::uint64_t>(i)));
}
template <class F>
std::vector<float> filled(const table& t, F&& value) {
  std::vector<float> x(static_cast<std::size_t>(t.elements), 0.0f);
  for (const auto& p : t.parameters)
    hd::model::for_each_run(p, [&](std::int64_t global, std::int64_t local, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k) x[static_cast<std::size_t>(p.offset + local + k)] = value(p.id, global + k);
    });
  return x;
}

// Weights and first moments after three steps over d ranks, of which each has 1/d of the gradient.
template <class Zero, class Precision>
tensors steps_of(const table& t, int d, std::uint64_t seed) {
  tensors all;
  std::mutex guard;
  hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(d), [&](auto& world) {
    auto& group = world.template along<dp>();
    tr::sharded_optimizer<float, hd::optimizers::adamw, Precision, Zero> optimizer(t.parameters, t.elements,
                                                                                   world.rank(), d);
    hd::compute::host<> backend(1);
    std::vector<float> weights = filled(t, [](int id, std::int64_t i) { return number(0, id, i); });
    optimizer.start(weights, seed);
    for (std::int64_t step = 1; step <= 3; ++step) {
      std::vector<float> gradients = filled(t, [&](int id, std::int64_t i) {
        return static_cast<float>(bf16(number(static_cast<int>(step), id, i))) / static_cast<float>(d);
      });
      optimizer.reduce(group, gradients, 0, 37);
      optimizer.reduce(group, gradients, 37, t.elements);
      optimizer.update(backend, std::span<float>(weights), std::span<const float>(gradients), tr::adamw_options{}, 1e-2,
                       step, 1.0);
      optimizer.gather(group, std::span<float>(weights));
    }
    const std::lock_guard lock(guard);
    for (const auto& p : t.parameters) {
      place(all, p, 0, p.count, weights.data() + p.offset);
      tr::detail::for_owned_part(p, optimizer, [&](std::int64_t first, std::int64_t count, std::int64_t in_share) {
        hd::model::parameter moment = p;
        moment.name += " moment";
        place(all, moment, first, count, optimizer.first_moment().data() + in_share);
      });
    }
  });
  return all;
}

}  // namespace

TEST_CASE("stochastic rounding is a function of seed, step and element, however they are cut", "[train][precision]") {
  // With d a power of two the sum over d ranks of gradients of 8 bits is exact.
  const tensors one = steps_of<hd::zero<0>, narrow>(table(), 1, 5);
  for (const int d : {2, 4, 8}) {
    INFO(d << " ranks");
    CHECK(steps_of<hd::zero<0>, narrow>(table(), d, 5) == one);
    CHECK(steps_of<hd::zero<1>, narrow>(table(), d, 5) == one);
  }
  CHECK(steps_of<hd::zero<0>, narrow>(table(), 1, 6) != one);
  // Columns of a matrix on two ranks.
  for (const std::int64_t first : {0, 13}) {
    const std::int64_t columns = first == 0 ? 13 : 27;
    const tensors part = steps_of<hd::zero<1>, narrow>(table(first, columns), 2, 5);
    for (const char* name : {"b", "b moment"})
      for (std::int64_t r = 0; r < 9; ++r)
        for (std::int64_t c = first; c < first + columns; ++c) {
          const auto i = static_cast<std::size_t>(r * 40 + c);
          REQUIRE(part.at(name)[i] == one.at(name)[i]);
        }
  }
}

TEST_CASE("stochastic rounding of weights is unbiased and differs from step to step", "[train][precision]") {
  const std::uint64_t seed = 20240811;
  INFO("seed " << seed);
  table t;
  t.parameters.clear();
  t.elements = 0;
  constexpr std::int64_t n = 40000;
  t.add("w", 1, {n}, {n}, {0});
  using weights_only = hd::precision<hd::weights_in<bf16, hd::rounding::stochastic>>;
  tr::sharded_optimizer<float, hd::optimizers::adamw, weights_only, hd::zero<0>> optimizer(t.parameters, t.elements, 0,
                                                                                           1);
  hd::compute::host<> backend(1);
  std::vector<float> weights(static_cast<std::size_t>(t.elements), 1.0f), zero(weights.size(), 0.0f);
  // Masters a quarter of the way from 1 to the next bf16, 1 + 2^-7: no gradient moves them.
  std::fill_n(weights.begin(), n, 1.0f + 0x1p-9f);
  optimizer.start(weights, seed);
  CHECK(weights[0] == 1.0f);
  std::vector<float> before;
  for (std::int64_t step = 1; step <= 3; ++step) {
    optimizer.update(backend, std::span<float>(weights), std::span<const float>(zero), tr::adamw_options{}, 1e-3, step,
                     1.0);
    std::int64_t up = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const float w = weights[static_cast<std::size_t>(i)];
      REQUIRE((w == 1.0f || w == 1.0f + 0x1p-7f));
      up += w > 1.0f ? 1 : 0;
    }
    // The mean of n draws with probability 1/4: within five standard deviations.
    CHECK(std::abs(static_cast<double>(up) - 0.25 * n) <= 5 * std::sqrt(n * 0.25 * 0.75));
    CHECK(weights != before);
    before = weights;
  }
  CHECK(optimizer.masters()[7] == 1.0f + 0x1p-9f);
}

TEST_CASE("gradients are rounded once each and added up in the order of the ranks", "[train][precision]") {
  const table t;
  const auto gradient = [&](int rank) {
    return filled(t, [&](int id, std::int64_t i) { return number(20 + rank, id, i); });
  };
  for (const int d : {2, 3, 5}) {
    std::vector<float> sum(static_cast<std::size_t>(t.elements), 0.0f);
    for (int r = 0; r < d; ++r)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(bf16(gradient(r)[i]));
    hd::launch<hd::threads>(hd::mesh<hd::axis<dp>>(d), [&](auto& world) {
      tr::sharded_optimizer<float, hd::optimizers::adamw, usual, hd::zero<1>> shared(t.parameters, t.elements,
                                                                                     world.rank(), d);
      std::vector<float> g = gradient(world.rank());
      shared.reduce(world.template along<dp>(), std::span<float>(g));
      for (std::int64_t i = shared.owned_begin(); i < shared.owned_end(); ++i)
        if (g[static_cast<std::size_t>(i)] != sum[static_cast<std::size_t>(i)]) throw hd::error("wrong sum of a share");
      tr::sharded_optimizer<float, hd::optimizers::adamw, usual, hd::zero<0>> whole(t.parameters, t.elements,
                                                                                    world.rank(), d);
      g = gradient(world.rank());
      whole.reduce(world.template along<dp>(), std::span<float>(g));
      for (std::size_t i = 0; i < g.size(); ++i)
        if (g[i] != static_cast<float>(bf16(sum[i]))) throw hd::error("wrong sum");
    });
  }
  SUCCEED();
}

TEST_CASE("masters of double keep what float would lose, and steps are taken back from copies", "[train][precision]") {
  using wide = hd::precision<hd::masters_in<double>, hd::moments_in<bf16>>;
  const table t;
  tr::sharded_optimizer<float, hd::optimizers::adamw, wide, hd::zero<0>> optimizer(t.parameters, t.elements, 0, 1);
  hd::compute::host<> backend(1);
  std::vector<float> weights = filled(t, [](int, std::int64_t) { return 1.0f; });
  const std::vector<float> gradients = filled(t, [](int, std::int64_t) { return 1.0f; });
  optimizer.start(weights, 1);
  tr::adamw_options constants;
  constants.weight_decay = 0;
  const auto step = [&](std::int64_t s) {
    optimizer.update(backend, std::span<float>(weights), std::span<const float>(gradients), constants, 1e-8, s, 1.0);
  };
  step(1);
  CHECK(weights[0] == 1.0f);  // half a last place is 3e-8
  CHECK(optimizer.masters()[0] == Approx(1.0 - 1e-8).epsilon(1e-12));
  optimizer.remember(weights);
  const std::vector<float> before = weights;
  const std::vector<double> masters(optimizer.masters().begin(), optimizer.masters().end());
  const auto moment = optimizer.first_moment()[5].bits;
  for (std::int64_t s = 2; s <= 9; ++s) step(s);
  CHECK(weights[0] < 1.0f);
  CHECK(optimizer.first_moment()[5].bits != moment);
  optimizer.restore(weights);
  CHECK(weights == before);
  CHECK(std::equal(masters.begin(), masters.end(), optimizer.masters().begin()));
  CHECK(optimizer.first_moment()[5].bits == moment);
}

namespace {
// Weights (or masters) after three steps over shares of d ranks are those of AdamW's formulas, with a rate of each parameter.
template <class Optimizer, class T>
void check_rates(int d) {
  table t;
  t.add("bc", 8, {4, 25}, {4, 25}, {0, 0});
  tr::adamw_options constants;
  constants.rates = {{"bc", 0.5}, {"b", 3}, {"bc", 7}};
  const std::map<std::string, double> rates{{"a", 1}, {"b", 3}, {"bc", 0.5}};
  constexpr double lr = 1e-2;
  const auto values = [&](int what) {
    const std::vector<float> x = filled(t, [&](int id, std::int64_t i) { return number(what, id, i); });
    return std::vector<T>(x.begin(), x.end());
  };
  const std::vector<T> first = values(0);
  std::vector<double> w(first.begin(), first.end()), m(w.size()), v(w.size());
  for (int step = 1; step <= 3; ++step) {
    const std::vector<T> g = values(step);
    for (const auto& p : t.parameters)
      for (std::int64_t k = p.offset; k < p.offset + p.count; ++k) {
        const auto i = static_cast<std::size_t>(k);
        const double rate = rates.at(p.name) * lr, x = double{g[i]};
        m[i] = constants.beta1 * m[i] + (1 - constants.beta1) * x;
        v[i] = constants.beta2 * v[i] + (1 - constants.beta2) * x * x;
        const double m_hat = m[i] / (1 - std::pow(constants.beta1, step));
        const double v_hat = v[i] / (1 - std::pow(constants.beta2, step));
        w[i] -= rate * ((p.decay ? constants.weight_decay : 0) * w[i] + m_hat / (std::sqrt(v_hat) + constants.epsilon));
      }
  }
  double worst = 0;
  std::int64_t owned = 0;
  for (int r = 0; r < d; ++r) {
    Optimizer optimizer(t.parameters, t.elements, r, d);
    hd::compute::host<> backend(1);
    std::vector<T> got = first;
    if constexpr (requires { optimizer.masters(); }) optimizer.start(got, 1);
    for (int step = 1; step <= 3; ++step) {
      const std::vector<T> g = values(step);
      optimizer.update(backend, std::span<T>(got), std::span<const T>(g), constants, lr, step, 1.0);
    }
    for (const auto& p : t.parameters)
      tr::detail::for_owned_part(p, optimizer, [&](std::int64_t begin, std::int64_t count, std::int64_t in_share) {
        for (std::int64_t k = 0; k < count; ++k, ++owned) {
          const auto i = static_cast<std::size_t>(p.offset + begin + k);
          double is = got[i];
          if constexpr (requires { optimizer.masters(); })
            is = optimizer.masters()[static_cast<std::size_t>(in_share + k)];
          worst = std::max(worst, std::abs(is - w[i]));
        }
      });
  }
  CAPTURE(d);
  CHECK(owned == 150 + 360 + 100);
  CHECK(worst < 1e-12);
}
}  // namespace

TEST_CASE("rates of parameters scale their steps and their decay, however shares are cut", "[train][precision]") {
  using wide = hd::precision<hd::weights_in<bf16>, hd::masters_in<double>, hd::moments_in<double>>;
  for (const int d : {1, 2, 3, 7}) {
    check_rates<tr::optimizer<double, hd::zero<1>>, double>(d);
    check_rates<tr::sharded_optimizer<float, hd::optimizers::adamw, wide, hd::zero<1>>, float>(d);
  }
}

namespace {
// Losses of 60 steps are those of float to a part of `most`, and those of other meshes the ones of one rank.
template <class Strategy>
void check_float8(double most) {
  constexpr std::int64_t steps = 60;
  static const auto plain = train<plain_strategy, learnable_tokens>("dp=1", steps).losses;
  const auto alone = losses_on<Strategy, learnable_tokens>("dp=1", steps);
  REQUIRE(plain.size() == static_cast<std::size_t>(steps));
  REQUIRE(plain.back() < 0.75 * plain.front());
  double apart = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double d = std::abs(alone[i] - plain[i]) / plain[i];
    if (!(d <= apart)) apart = d;  // a NaN stays
  }
  CAPTURE(apart, plain.front(), plain.back(), alone.back());
  CHECK(apart < most);
  CHECK(apart > 1e-6);  // it is rounded
  CHECK(alone != plain);
  // Along tp and pp the scales are those of one rank: the same numbers, up to the order of sums and what that rounds otherwise.
  for (const char* mesh : {"tp=2", "dp=2,tp=2", "pp=2,tp=2", "dp=2,pp=2,tp=2"}) {
    CAPTURE(mesh);
    const auto split = losses_on<Strategy, learnable_tokens>(mesh, 3);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(split[i] == Approx(alone[i]).epsilon(std::string(mesh)[0] == 'd' ? 2e-3 : 2e-4));
  }
}
}  // namespace

TEST_CASE("products in 8 bits train close to float, and on every mesh with zero<3> to the same",
          "[train][precision][float8]") {
  check_float8<float8_strategy>(0.02);
}
TEST_CASE("products in 8 bits with a scale for each row train close to float, and on every mesh to the same",
          "[train][precision][float8]") {
  check_float8<float8_rows_strategy>(0.01);
}
