// refuse: heddle: granularity::halves keeps all that a block saves: leave recompute out, or take granularity::blocks
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/activations/offload.hpp>
#include <heddle/train/activations/recompute.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
namespace act = hd::activations;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using halves = act::offload<act::file_store, act::amount::all, act::prefetch::ahead<2>, act::min_bytes<0>,
                            act::granularity::halves>;
using trainer =
    hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh, act::recompute<halves, act::named<"mid">>>,
                       hd::world<hd::threads, mesh>>;
void train(hd::world<hd::threads, mesh>& w, const hd::train::options<hd::model::gpt2_config>& o) {
  trainer t(w, o);
}
