// refuse: heddle: last_logits reads the last row of each sample: a model whose sharding has a context split has none; take the model without it
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/context.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::cp, 2>>;
using model = hd::model::gpt2<float, hd::model::megatron_context<>>;
using trainer = hd::train::trainer<model, hd::strategy<mesh>, hd::world<hd::threads, mesh>>;
void logits(trainer& t, const model::batch& b, std::span<float> to) { t.last_logits(b, to); }
