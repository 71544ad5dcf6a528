// A learning rate of one's own: halved every `each` steps, on dp x pp x tp with ZeRO-3.
// run:
// prints: step  9  rate 0.02
// prints: step 10  rate 0.01
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>, hd::axis<hd::tp, 2>>;
using model = hd::model::gpt2<float>;

struct halving {
  double first = 0.02;
  int each = 10;
  double operator()(std::int64_t step) const { return std::ldexp(first, -static_cast<int>(step / each)); }
  void validate() const {
    if (each < 1) throw hd::config_error("halving: each must be at least 1");
  }
  friend std::string to_string(const halving& h) { return hd::number_text(h.first) + "/" + hd::number_text(h.each); }
};

int main() {
  std::string squares;
  for (long k = 0; k < 2000; ++k) squares += std::to_string(k * k) + ' ';
  const hd::io::corpus corpus("squares", {squares.begin(), squares.end()});
  const hd::io::dataset data(corpus.tokens(), {.context = 16, .batch = 8, .seed = 1});
  hd::train::options<model::config, halving> options{.batch = 8, .steps = 20};
  options.model = {.layers = 2, .heads = 2, .width = 16, .context = 16, .vocabulary = 256};
  hd::launch<hd::threads, mesh>([&](auto& world) {
    auto trainer = hd::train::make_trainer<hd::strategy<mesh, hd::zero<3>>>(model{}, world, options);
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (world.rank() == 0) std::printf("step %2d  rate %g\n", static_cast<int>(r.step), r.learning_rate);
    });
  });
}
