// Three functions (collate, loss, predict) train a model whose tensor-parallel layouts follow from its parameters' names.
// run:
// mpi: 4
// prints: mlp/fc_in/kernel: splits dimension 1 (first layer by name: by outputs)
// prints: mlp/fc_out/kernel: splits dimension 0 (second layer by name: by inputs)
// prints: equal on 1, dp2, mp2 and dp2 x mp2: yes
#include <heddle/heddle.hpp>
#include <heddle/train.hpp>
#include <heddle/train/three_functions.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

#include "transport.hpp"

namespace hd = heddle;
namespace op = hd::op;
using hd::dp, hd::tp;

struct model {  // y = gelu(x W1) W2
  static constexpr std::array parameters{hd::named_shape{"mlp/fc_in/kernel", {2, 16}},
                                         hd::named_shape{"mlp/fc_out/kernel", {16, 1}}};
};

struct example {
  double x, y, product;
};  // the model learns to multiply
using batch = std::vector<example>;

// The model and its loss name no axis and no layout; gradients follow.
constexpr hd::auto_redistribute fit{};
constexpr auto network = [](auto w, auto v, auto x) {
  return hd::einsum<"bh,ho->bo">(fit, hd::apply<op::gelu>(hd::einsum<"bi,ih->bh">(fit, x, w)), v);
};
constexpr auto squared_miss = [](auto w, auto v, auto x, auto minus_target) {
  const auto miss = hd::apply<op::add>(fit, network(w, v, x), minus_target);
  return hd::sum(hd::apply<op::multiply>(fit, miss, miss));
};

// A column of numbers for each function of an example.
template <class Context, class... Of>
auto columns(Context& c, const batch& b, Of... of) {
  auto x = c.make_activations(static_cast<std::int64_t>(b.size()), sizeof...(Of));
  auto* at = x.elements().data();
  for (const example& e : b) ((*at++ = of(e)), ...);
  return x;
}
template <class Context>
auto inputs(Context& c, const batch& b) {
  return columns(c, b, [](const example& e) { return e.x; }, [](const example& e) { return e.y; });
}

template <class Mesh>
std::vector<double> losses(const std::vector<example>& data) {
  std::vector<double> all;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    const auto collate = [](const std::vector<example>& some) -> batch { return some; };
    const auto loss = [](auto& c, const batch& b) {
      return c.template loss<"mlp/fc_in/kernel", "mlp/fc_out/kernel">(
          squared_miss, inputs(c, b), columns(c, b, [](const example& e) { return -e.product; }));
    };
    const auto predict = [](auto& c, const batch& b) {
      const auto& [w, v] = c.template weights<"mlp/fc_in/kernel", "mlp/fc_out/kernel">();
      auto made =
          hd::vjp(c.compute(), c.world(), network, hd::constant(w), hd::constant(v), hd::constant(inputs(c, b)));
      const auto y =
          c.template convert<typename std::remove_reference_t<decltype(c)>::activations>(std::move(made.value));
      return std::vector<double>(y.elements().begin(), y.elements().end());
    };
    hd::train::three_functions_options options{.batch = 8, .per_rank = 2, .epochs = 20};
    options.learning_rate = {.peak = 2e-2, .warmup_steps = 5};
    using strategy = hd::strategy<Mesh, hd::zero<1>>;  // without one: three_functions<model, double>(...)
    auto pipeline = hd::train::three_functions<strategy, model, double>(world, collate, loss, predict, options);
    std::vector<double> mine;
    pipeline.run(data, [&](const hd::train::three_functions_step& s) { mine.push_back(s.loss); });
    const std::vector<double> answers = pipeline.predict(std::vector<example>{{.5, .5, 0}, {-.5, .5, 0}, {1, 1, 0}});
    mine.insert(mine.end(), answers.begin(), answers.end());
    if (on::keeps(world.rank())) all = mine;
  });
  return all;
}

template <int D, int M>
using grid = hd::mesh<hd::axis<dp, D>, hd::axis<tp, M>>;

int main(int argc, char** argv) {
  on::begin(argc, argv);
  std::vector<example> data;
  for (int i = 0; i < 64; ++i)
    data.push_back({i % 8 / 3.5 - 1, i / 8 / 3.5 - 1, (i % 8 / 3.5 - 1) * (i / 8 / 3.5 - 1)});
  const auto rules = hd::name_rules(model::parameters, 2);
  for (std::size_t i = 0; i < rules.size(); ++i)
    std::printf("%s: %s\n", std::string(model::parameters[i].path).c_str(), to_string(rules[i]).c_str());

  const std::vector<double> one = losses<grid<1, 1>>(data);
  bool equal = true;
  for (const auto& other : {losses<grid<2, 1>>(data), losses<grid<1, 2>>(data), losses<grid<2, 2>>(data)})
    for (std::size_t i = 0; i < one.size(); ++i) equal = equal && std::abs(other[i] - one[i]) < 1e-9;
  std::printf("loss %.4f -> %.4f; 0.5 x 0.5 = %.2f, -0.5 x 0.5 = %.2f, 1 x 1 = %.2f\n", one.front(),
              one[one.size() - 4], one[one.size() - 3], one[one.size() - 2], one.back());
  std::printf("equal on 1, dp2, mp2 and dp2 x mp2: %s\n", equal ? "yes" : "no");
}
