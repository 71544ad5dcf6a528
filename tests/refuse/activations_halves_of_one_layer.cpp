// refuse: heddle: granularity::halves is for blocks that are a sequence of two layers, such as attention and MLP; take granularity::blocks
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
namespace act = hd::activations;
struct without_mlp : hd::model::described<without_mlp, float, hd::model::batch<float>, hd::model::gpt2_config> {
  static constexpr auto describe(const config& c) {
    const auto whole = hd::model::describe_gpt2(c);
    return hd::model::layers::language_model{whole.in, whole.block_name, whole.count, whole.block.first, whole.out};
  }
};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using halves = act::offload<act::file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>,
                            act::granularity::halves>;
using trainer = hd::train::trainer<without_mlp, hd::strategy<mesh, halves>, hd::world<hd::threads, mesh>>;
void train(hd::world<hd::threads, mesh>& w, const hd::train::options<hd::model::gpt2_config>& o) {
  trainer t(w, o);
}
