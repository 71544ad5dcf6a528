// refuse: heddle: peer_saves<across<Axis>>: the mesh has no such axis; name one along which nodes differ
#include <heddle/comm/threads.hpp>
#include <heddle/compute/host/host.hpp>
#include <heddle/compute/host/portable.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/peer_saves.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
void keep_copies(hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh>>& trainer) {
  hd::train::peer_saves<hd::train::across<hd::pp>> peers(trainer, "/dev/shm/run");
}
