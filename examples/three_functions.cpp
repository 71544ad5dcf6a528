// Three functions (collate, loss, predict) train a model whose tensor-parallel layouts follow from its parameters' names.
// run:
// mpi: 4
// prints: mlp/fc_in/kernel: splits dimension 1 (first layer by name: by outputs)
// prints: mlp/fc_out/kernel: splits dimension 0 (second layer by name: by inputs)
// prints: equal on 1, dp2, mp2 and dp2 x mp2: yes
#include <heddle/heddle.hpp>
#include <heddle/train.hpp>
#include <heddle/train/named_parameters.hpp>
#include <heddle/train/three_functions.hpp>
#include <cmath>
#include <cstdio>
#include <vector>

#include "transport.hpp"

namespace hd = heddle;
using hd::dp, hd::tp;

struct model {  // y = gelu(x W1) W2
  static constexpr std::array parameters{hd::named_shape{"mlp/fc_in/kernel", {2, 16}},
                                         hd::named_shape{"mlp/fc_out/kernel", {16, 1}}};
};
using first = hd::train::named_linear<"mlp/fc_in/kernel">;
using second = hd::train::named_linear<"mlp/fc_out/kernel">;

struct example { double x, y, product; };  // the model learns to multiply
using batch = std::vector<example>;

// The layers forward; `back(dy)` runs them backward.
template <class Context>
auto forward(Context& c, const batch& b) {
  auto x = c.make_activations(static_cast<std::int64_t>(b.size()), 2);
  for (std::size_t i = 0; i < b.size(); ++i) {
    x.elements()[2 * i] = b[i].x;
    x.elements()[2 * i + 1] = b[i].y;
  }
  auto [h, saved_in] = first::forward(c, std::move(x));  // split by columns where the plan says so
  auto a = hd::train::copy_of(h);
  hd::compute::run<hd::compute::ops::gelu>(c.compute(), h.elements(), a.elements());
  auto [y, saved_out] = second::forward(c, std::move(a));  // a sum over tp is open
  auto out = c.template convert<typename Context::activations>(std::move(y));
  auto back = [&c, h = std::move(h), in = std::move(saved_in), last = std::move(saved_out)](auto dy) {
    auto da = c.template convert<hd::dual<typename std::remove_cvref_t<decltype(h)>::layout_type>>(
        second::backward(c, last, std::move(dy)));
    hd::compute::run<hd::compute::ops::gelu_backward>(c.compute(), h.elements(), std::as_const(da).elements(),
                                                      da.elements());
    first::backward(c, in, std::move(da));
  };
  return std::pair(std::move(out), std::move(back));
}

template <class Mesh>
std::vector<double> losses(const std::vector<example>& data) {
  std::vector<double> all;
  hd::launch<hd::threads, Mesh>([&](auto& world) {
    const auto collate = [](const std::vector<example>& some) -> batch { return some; };
    const auto loss = [](auto& c, const batch& b) {
      auto [y, back] = forward(c, b);
      hd::train::token_loss l;
      for (std::size_t i = 0; i < b.size(); ++i) {
        const double miss = y.elements()[i] - b[i].product;
        l.sum += miss * miss;
        ++l.tokens;
        y.elements()[i] = 2 * miss;  // becomes the gradient
      }
      back(std::move(y));
      return l;
    };
    const auto predict = [](auto& c, const batch& b) {
      const auto y = forward(c, b).first;
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
