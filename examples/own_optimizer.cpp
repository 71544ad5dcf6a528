// An optimizer of one's own, Lion (arXiv:2302.06675), on dp x pp x tp with ZeRO-3.
// run:
// prints: step  0  loss 5.5
// prints: step 29  loss 5.0
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train.hpp>

#include <cstdint>
#include <cstdio>
#include <string>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>, hd::axis<hd::tp, 2>>;
using model = hd::model::gpt2<float>;

struct lion {
  using kind = hd::optimizer_kind;
  static constexpr const char* name = "lion";
  static constexpr int moments = 1;  // numbers of state for each weight
  struct options {
    double beta = 0.9, forgets = 0.01;
    friend std::string to_string(const options& o) { return hd::number_text(o.beta) + hd::number_text(o.forgets); }
  };
  template <class T>
  struct scalars {
    T rate, beta, forgets;
  };
  template <class T>
  static scalars<T> at(const options& o, double rate, std::int64_t /*step*/, bool /*decays*/) {
    return {static_cast<T>(rate), static_cast<T>(o.beta), static_cast<T>(o.forgets)};
  }
  template <class T>
  HEDDLE_HD static void update(T& w, T g, T* m, const scalars<T>& s) {
    w -= g + s.beta * (m[0] - g) > 0 ? s.rate : -s.rate;
    m[0] += s.forgets * (g - m[0]);
  }
};

int main() {
  std::string squares;
  for (long k = 0; k < 2000; ++k) squares += std::to_string(k * k) + ' ';
  const hd::io::corpus corpus("squares", {squares.begin(), squares.end()});
  const hd::io::dataset data(corpus.tokens(), {.context = 16, .batch = 8, .seed = 1});
  hd::train::options<model::config> options{.steps = 30, .optimizer = lion::options{.beta = 0.95}};
  options.model = {.layers = 2, .heads = 2, .width = 16, .context = 16, .vocabulary = 256};
  hd::launch<hd::threads, mesh>([&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh, lion, hd::zero<3>>>(model{}, world, options);
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (world.rank() == 0) std::printf("step %2d  loss %.4f\n", static_cast<int>(r.step), r.loss);
    });
  });
}
