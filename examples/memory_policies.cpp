// One training run with several memory policies: saved activations are kept, computed again, or moved to files and back. The
// policy changes memory and time, and no bit of the result.
// run:
// prints: keep
// prints: recompute full
// prints: offload to files
// prints: the same bits: yes
#include <heddle/heddle.hpp>
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train.hpp>
#include <heddle/train/activations/default_file_store.hpp>
#include <heddle/train/activations/offload.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>

namespace hd = heddle;
namespace act = heddle::activations;

using mesh = hd::mesh<hd::axis<hd::pp, 2>>;
using when = hd::schedule::one_f_one_b<hd::microbatches<8>>;
using model = hd::model::gpt2<float>;

// Every layer goes to files behind its forward, and comes back two layers before its backward: through io_uring in a
// program that links the component uring, else by threads.
using to_files = act::offload<act::found_file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>>;

struct outcome {
  double loss = 0;
  std::int64_t saved = 0, moved = 0;  // bytes of activations on rank 0: most at a time, written to files
};

template <class Activations>
outcome train(const char* name, const char* recompute = "") {
  hd::train::options<model::config> options;
  options.model = {.layers = 12, .heads = 4, .width = 128, .context = 64, .vocabulary = hd::io::corpus::vocabulary()};
  options.batch = 8;
  options.steps = 3;
  options.learning_rate = {.peak = 1e-3};
  options.recompute = recompute;
  options.offload.most_waiting_bytes = 1 << 20;  // a layer stays if more than these would wait for a slow disk
  std::string squares;
  for (long k = 0; k < 10000; ++k) squares += std::to_string(k * k) + ' ';
  const hd::io::corpus corpus("squares", {squares.begin(), squares.end()});
  const hd::io::dataset data(corpus.tokens(), {.context = 64, .batch = options.batch, .seed = 1});

  outcome result;
  hd::launch<hd::threads>(mesh{}, [&](auto& world) {
    using strategy = hd::strategy<mesh, when, Activations>;
    auto trainer = hd::train::make_trainer<strategy>(model{}, world, options);
    double loss = 0;
    trainer.run(data, [&](const hd::train::step_report& r) { loss = r.loss; });
    if (world.rank() != 0) return;
    result = {loss, trainer.saved_activation_bytes(), 0};
    if constexpr (std::is_same_v<Activations, to_files>) {
      const act::offload_report moved = trainer.stage().saved_layers().report();
      result.saved = moved.peak_bytes;
      result.moved = moved.store.bytes_written;
    }
  });
  std::printf("%-26s loss %.4f  saved activations %5lld KiB  written to files %6lld KiB\n", name, result.loss,
              static_cast<long long>(result.saved / 1024), static_cast<long long>(result.moved / 1024));
  return result;
}

int main() {
  const outcome keep = train<act::keep>("keep");
  const outcome full = train<act::recompute<>>("recompute full", "full");
  const outcome third = train<act::recompute<>>("recompute every 3", "every 3");
  const outcome named = train<act::recompute<>>("recompute two activations", "mlp.hidden,mlp.activated");
  const outcome files = train<to_files>("offload to files");
  const bool same =
      full.loss == keep.loss && third.loss == keep.loss && named.loss == keep.loss && files.loss == keep.loss;
  std::printf("the same bits: %s\n", same ? "yes" : "no");
}
