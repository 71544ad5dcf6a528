// refuse: heddle: this trainer keeps no master weights: take trainer_weights, or a strategy with precision<weights_in<bf16>, masters_in<float>>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>
#include <heddle/train/trainer_weights.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh, hd::zero<1>>>;
void check(trainer& t) { const hd::train::trainer_masters source(&t); }
