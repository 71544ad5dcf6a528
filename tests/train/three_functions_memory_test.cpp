// Three functions whose tensors lie in memory that the host may not touch: the bits of the host's on several meshes.
#include "catch.hpp"
#include "folder.hpp"

#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/core/random.hpp>
#include <heddle/testing/checked_backend.hpp>
#include <heddle/train/save.hpp>
#include <heddle/train/three_functions.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace hd = heddle;
namespace tr = heddle::train;
using Catch::Matchers::Contains;
using hd::dp, hd::tp;
using host = hd::compute::host<>;
using checked = hd::testing::checked_backend<host>;

constexpr std::int64_t vocabulary = 12, width = 8, inner = 16, length = 3;

struct model {
  static constexpr std::array parameters{hd::named_shape{"embed/embedding", {vocabulary, width}},
                                         hd::named_shape{"norm/scale", {width}},
                                         hd::named_shape{"norm/bias", {width}},
                                         hd::named_shape{"mlp/fc1/kernel", {width, inner}},
                                         hd::named_shape{"mlp/fc1/bias", {inner}},
                                         hd::named_shape{"mlp/fc2/kernel", {inner, width}},
                                         hd::named_shape{"lm_head/kernel", {width, vocabulary}}};
};
using first = tr::named_linear<"mlp/fc1/kernel">;
using second = tr::named_linear<"mlp/fc2/kernel">;
using head = tr::named_linear<"lm_head/kernel">;

struct example {
  std::array<std::int32_t, length> tokens{}, targets{};
};
struct batch {
  std::vector<std::int32_t> tokens, targets;
  std::int64_t rows() const { return static_cast<std::int64_t>(tokens.size()); }
};
batch collate(const std::vector<example>& examples) {
  batch b;
  for (const example& e : examples) {
    b.tokens.insert(b.tokens.end(), e.tokens.begin(), e.tokens.end());
    b.targets.insert(b.targets.end(), e.targets.begin(), e.targets.end());
  }
  return b;
}
std::vector<example> examples(int count) {
  std::vector<example> all(static_cast<std::size_t>(count));
  const hd::counter_random random(3, 5);
  std::uint64_t at = 0;
  for (example& e : all)
    for (std::size_t i = 0; i < length; ++i) {
      e.tokens[i] = static_cast<std::int32_t>(random.integer(at++) % vocabulary);
      e.targets[i] = random.integer(at++) % 4 == 0 ? -1 : (5 * e.tokens[i] + 2) % static_cast<std::int32_t>(vocabulary);
    }
  return all;
}

// y = norm(x) + W2 gelu(W1 norm(x) + b1), then a head: a program against the context, which names no memory.
template <class Context>
struct program {
  using T = typename Context::value_type;
  using space = typename Context::space;
  using mesh = typename Context::mesh_type;
  using activations = typename Context::activations;
  using hidden = typename Context::template tensor<2, activations>;
  using table_layout = typename std::remove_cvref_t<
      decltype(std::declval<Context&>().template weight<"embed/embedding">())>::layout_type;
  using embedded =
      std::conditional_t<!table_layout::template is_sharded_on<tp>, activations,
                         std::conditional_t<table_layout::template dim_of<tp> == 0,
                                            hd::layout_if<mesh, hd::shard<0, dp>, hd::partial<hd::plus, tp>>,
                                            hd::layout_if<mesh, hd::shard<0, dp>, hd::shard<1, tp>>>>;

  Context& c;
  const batch& b;
  decltype(c.compute())& k = c.compute();
  hd::buffer<std::int32_t, space> tokens = c.copied_in(std::span(b.tokens));
  hd::buffer<T, space> mean{c.queue(), b.rows()}, rstd{c.queue(), b.rows()};

  static auto row(const auto& x) { return hd::elements_of(x.view()); }
  static auto row(auto& x) { return hd::elements_of(x.view()); }
  template <hd::fixed_string Path>
  auto values() {
    return hd::elements_of(c.template weight<Path>().memory());
  }

  hidden embed() {
    const auto& table = c.template weight<"embed/embedding">();
    auto x = c.template zeros<embedded>(c.make_activations(b.rows(), width).shape());
    hd::compute::run<hd::compute::ops::embedding>(k, row(std::as_const(tokens)), table.local(), table.local_offset()[0],
                                                  x.local());
    return c.template convert<activations>(std::move(x));
  }
  hidden norm(const hidden& x) {
    auto y = c.make_activations(b.rows(), width);
    hd::compute::run<hd::compute::ops::layer_norm>(k, x.local(), values<"norm/scale">(), values<"norm/bias">(), T(1e-5),
                                                   y.local(), row(mean), row(rstd));
    return y;
  }
  // Everything forward; `back(dlogits)` goes backward.
  auto forward() {
    auto x = embed();
    auto n = norm(x);
    auto [h, in] = first::forward(c, c.copy_of(n));
    using columns = typename std::remove_cvref_t<decltype(h)>::layout_type;
    using bias = std::conditional_t<columns::template is_sharded_on<tp>, hd::layout_if<mesh, hd::shard<0, tp>>,
                                    hd::layout_if<mesh, hd::identical<tp>>>;
    const auto b1 = c.template convert<bias>(c.copy_of(c.template weight<"mlp/fc1/bias">()));
    hd::compute::run<hd::compute::ops::add_bias>(k, h.local(), hd::elements_of(b1));
    auto a = c.copy_of(h);
    hd::compute::run<hd::compute::ops::gelu>(k, hd::elements_of(std::as_const(h)), hd::elements_of(a));
    auto [m, out] = second::forward(c, std::move(a));
    auto y = c.template convert<activations>(std::move(m));
    hd::compute::run<hd::compute::ops::add>(k, hd::elements_of(std::as_const(y)), hd::elements_of(std::as_const(n)),
                                            hd::elements_of(y));
    auto [l, last] = head::forward(c, std::move(y));
    auto logits = c.template convert<activations>(std::move(l));
    auto back = [this, x = std::move(x), h = std::move(h), in = std::move(in), out = std::move(out),
                 last = std::move(last)](hidden dlogits) {
      auto dy = c.template convert<activations>(head::backward(c, last, std::move(dlogits)));
      auto dh = c.template convert<hd::dual<columns>>(second::backward(c, out, c.copy_of(dy)));
      hd::compute::run<hd::compute::ops::gelu_backward>(k, hd::elements_of(h), hd::elements_of(std::as_const(dh)),
                                                        hd::elements_of(dh));
      auto db = c.template zeros<hd::dual<bias>>(hd::shape{inner});
      hd::compute::run<hd::compute::ops::add_bias_backward>(k, std::as_const(dh).local(), hd::elements_of(db));
      c.template add_gradient<"mlp/fc1/bias">(std::move(db));
      const auto dn = c.template convert<activations>(first::backward(c, in, std::move(dh)));
      hd::compute::run<hd::compute::ops::add>(k, hd::elements_of(std::as_const(dy)), hd::elements_of(dn),
                                              hd::elements_of(dy));
      norm_backward(x, dy);
    };
    return std::pair(std::move(logits), std::move(back));
  }
  void norm_backward(const hidden& x, const hidden& dy) {
    using g = hd::dual<hd::layout_if<mesh, hd::identical<tp>>>;
    auto dw = c.template zeros<g>(hd::shape{width}), db = c.template zeros<g>(hd::shape{width});
    auto dx = c.make_activations(b.rows(), width);
    hd::compute::run<hd::compute::ops::layer_norm_backward_input>(k, dy.local(), x.local(), values<"norm/scale">(),
                                                                  row(std::as_const(mean)), row(std::as_const(rstd)),
                                                                  dx.local());
    hd::compute::run<hd::compute::ops::layer_norm_backward_weight>(k, dy.local(), x.local(), row(std::as_const(mean)),
                                                                   row(std::as_const(rstd)), hd::elements_of(dw),
                                                                   hd::elements_of(db));
    c.template add_gradient<"norm/scale">(std::move(dw));
    c.template add_gradient<"norm/bias">(std::move(db));
    const auto dt = c.template convert<hd::dual<embedded>>(std::move(dx));
    const auto& table = c.template weight<"embed/embedding">();
    auto gradient = c.template zeros<hd::dual<table_layout>>(table.shape());
    hd::compute::run<hd::compute::ops::embedding_backward>(k, row(std::as_const(tokens)), dt.local(),
                                                           table.local_offset()[0], gradient.local());
    c.template add_gradient<"embed/embedding">(std::move(gradient));
  }
  // Softmax cross-entropy by kernels; what it adds up stays where the tensors are.
  tr::token_loss loss() {
    auto [logits, back] = forward();
    const auto kept = c.copied_in(std::span(b.targets));
    const auto targets = row(kept);
    hd::buffer<T, space> most(c.queue(), b.rows()), sum(c.queue(), b.rows()), picked(c.queue(), b.rows());
    hd::compute::run<hd::compute::ops::row_max>(k, std::as_const(logits).local(), row(most));
    hd::compute::run<hd::compute::ops::row_sum_exp>(k, std::as_const(logits).local(), row(std::as_const(most)),
                                                    row(sum));
    hd::compute::run<hd::compute::ops::pick_target>(k, std::as_const(logits).local(), targets, 0, row(picked));
    hd::compute::run<hd::compute::ops::cross_entropy_loss>(k, row(most), row(std::as_const(sum)),
                                                           row(std::as_const(picked)), targets, c.loss_sum());
    hd::compute::run<hd::compute::ops::cross_entropy_backward>(k, logits.local(), row(std::as_const(most)),
                                                               row(std::as_const(sum)), targets, 0, T(1));
    back(std::move(logits));
    return {0, std::count_if(b.targets.begin(), b.targets.end(), [](std::int32_t t) { return t >= 0; })};
  }
};

struct loss_function {
  bool on_host_too = false;  // a part of the loss that the function adds up itself
  template <class Context>
  tr::token_loss operator()(Context& c, const batch& b) const {
    tr::token_loss l = program<Context>{c, b}.loss();
    if (on_host_too) l.sum += 0.25 * static_cast<double>(l.tokens);
    return l;
  }
};
struct predict_function {
  template <class Context>
  std::vector<double> operator()(Context& c, const batch& b) const {
    program<Context> p{c, b};
    const auto logits = c.on_host(p.forward().first);
    std::vector<double> answers;
    for (std::int64_t r = 0; r < b.rows(); r += length)
      answers.push_back(*std::max_element(&logits.local()(r, 0), &logits.local()(r, 0) + vocabulary));
    return answers;
  }
};

struct outcome {
  std::vector<double> numbers, answers;
  std::vector<std::vector<double>> weights;  // of each rank
  friend bool operator==(const outcome&, const outcome&) = default;
};
struct setup {
  bool on_host_too = false;
  std::string save_to = "", resume_from = "";
  std::int64_t epochs = 3;
};

template <class Mesh, class Backend, class... Policies>
outcome train(const setup& s) {
  outcome o;
  o.weights.resize(static_cast<std::size_t>(Mesh::size()));
  std::mutex lock;
  const auto data = examples(16);
  tr::three_functions_options options{.batch = 8, .per_rank = 2, .epochs = s.epochs};
  options.learning_rate = {.peak = 1e-2};
  options.clip_norm = 0.5;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    using strategy = hd::strategy<Mesh, Backend, Policies...>;
    auto p = tr::three_functions<strategy, model, double>(world, collate, loss_function{s.on_host_too},
                                                          predict_function{}, options);
    if (!s.resume_from.empty()) tr::resume(p.trainer(), s.resume_from);
    std::vector<double> numbers;
    if (s.resume_from.empty()) {
      const auto one = p.loss_and_gradients(data, {0, 1, 2, 3, 4, 5, 6, 7});
      const auto after = p.update(one, 1e-3);
      numbers = {one.loss, after.gradient_norm};
      p.trainer().set_position(0, 0);
    }
    p.run(data, [&](const tr::three_functions_step& step) {
      numbers.insert(numbers.end(), {step.loss, step.gradient_norm});
    });
    const auto answers = p.predict(std::vector<example>(data.begin(), data.begin() + 5));
    if (!s.save_to.empty()) tr::save(p.trainer(), s.save_to);
    auto& queue = hd::compute::queue_of(p.trainer().backend());
    const auto all = p.trainer().stage().weights();
    std::vector<double> mine(static_cast<std::size_t>(all.size()));
    queue.copy(all, mine);
    queue.wait();
    const std::lock_guard hold(lock);
    o.weights[static_cast<std::size_t>(world.rank())] = mine;
    if (world.rank() == 0) {
      o.numbers = numbers;
      o.answers = answers;
    }
  });
  return o;
}

template <int D, int M>
using grid = hd::mesh<hd::axis<dp, D>, hd::axis<tp, M>>;

void equals_one_rank(const outcome& o) {
  static const outcome one = train<grid<1, 1>, host>({});
  REQUIRE(o.numbers.size() == one.numbers.size());
  for (std::size_t i = 0; i < o.numbers.size(); ++i) CHECK(o.numbers[i] == Approx(one.numbers[i]).epsilon(1e-10));
  REQUIRE(o.answers.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(o.answers[i] == Approx(one.answers[i]).epsilon(1e-10));
  CHECK(one.numbers[one.numbers.size() - 2] < one.numbers[2]);  // it learns
}

}  // namespace

TEST_CASE("three functions in memory that the host may not touch train with the host's bits",
          "[train][three_functions][memory]") {
  const auto same = []<class Mesh, class... Policies>(Mesh, hd::type_list<Policies...>) {
    INFO(hd::to_string(Mesh{}));
    const outcome there = train<Mesh, checked, Policies...>({});
    CHECK(there == train<Mesh, host, Policies...>({}));
    equals_one_rank(there);
  };
  same(grid<1, 1>{}, hd::type_list<>{});
  same(grid<1, 2>{}, hd::type_list<>{});
  same(grid<2, 2>{}, hd::type_list<hd::zero<1>>{});
}

TEST_CASE("a loss may be added up by kernels, by the function, or by both", "[train][three_functions][memory]") {
  const outcome there = train<grid<1, 2>, checked>({.on_host_too = true}), plain = train<grid<1, 2>, checked>({});
  CHECK(there.weights == plain.weights);
  CHECK(there == train<grid<1, 2>, host>({.on_host_too = true}));
  for (std::size_t i = 0; i < there.numbers.size(); i += 2)
    CHECK(there.numbers[i] == Approx(plain.numbers[i] + 0.25).epsilon(1e-12));
}

TEST_CASE("a save of three functions goes from the host to other memory and back", "[train][three_functions][memory]") {
  const train_test::folder folder("three-functions-memory");
  const std::string a = folder.path / "a", b = folder.path / "b";
  const outcome first_half = train<grid<1, 2>, host>({.save_to = a});
  CHECK(train<grid<1, 2>, checked>({.save_to = b}) == first_half);
  const outcome from_a = train<grid<1, 2>, checked>({.resume_from = a, .epochs = 5});
  CHECK(from_a == train<grid<1, 2>, host>({.resume_from = b, .epochs = 5}));
  CHECK(from_a.numbers.size() > 0);
}

TEST_CASE("predict has no loss to add to", "[train][three_functions][memory]") {
  const auto asks = [](auto& c, const batch&) { return std::vector<double>{c.loss_sum() == nullptr ? 0.0 : 1.0}; };
  CHECK_THROWS_WITH((hd::launch<hd::threads, grid<1, 1>>([&](auto& world) {
                      auto p = tr::three_functions<model, double>(world, collate, loss_function{}, asks, {});
                      p.predict(examples(1));
                    })),
                    Contains("predict has no loss to add to"));
}
