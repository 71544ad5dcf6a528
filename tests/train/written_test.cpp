// tests/train/written_test.cpp: schedules written out with their transfers train as the generated ones do.
#include "catch.hpp"
#include "transport.hpp"

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/schedule/text/parse.hpp>
#include <heddle/train/trainer.hpp>

#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

namespace hd = heddle;

namespace {

using mesh = hd::mesh<hd::axis<hd::dp, 2>, hd::axis<hd::pp, 2>>;

// Loss and norm of three steps.
template <class When>
std::vector<double> train() {
  std::vector<std::uint8_t> tokens(8 * 20 + 1);
  const hd::counter_random random(4, 4);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint8_t>(random.integer(i) % 17);
  const hd::io::dataset data(tokens, {.context = 8, .batch = 4, .validation = 0.0, .seed = 2});
  hd::train::options<hd::model::gpt2_config> options;
  options.model = {.layers = 2, .heads = 2, .width = 8, .context = 8, .vocabulary = 17};
  options.batch = 4;
  options.steps = 3;
  std::vector<double> seen;
  transport_test::launch<mesh>([&](auto& world) {
    hd::train::trainer<hd::model::gpt2<double>, hd::strategy<mesh, When, hd::zero<1>>,
                       std::remove_reference_t<decltype(world)>>
        trainer(world, options);
    trainer.run(data, [&](const hd::train::step_report& r) {
      if (world.rank() != 0) return;
      seen.push_back(r.loss);
      seen.push_back(r.gradient_norm);
    });
  });
  transport_test::tell(seen, 0);
  return seen;
}

// Without REDUCE_GRAD, and with one before the last gradient is sent on.
using plain = hd::schedule::written<
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 | "
    "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1">;
using early = hd::schedule::written<
    "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD | "
    "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1REDUCE_GRAD 1SEND_B1">;

}  // namespace

TEST_CASE("gradients are reduced wherever a table says so, and also where it does not", "[train][ranks]") {
  const auto expected = train<hd::schedule::one_f_one_b<hd::microbatches<2>>>();
  REQUIRE(expected.size() == 6);
  CHECK(train<plain>() == expected);
  CHECK(train<early>() == expected);
}
