// refuse: heddle: branches exchange a thousandth of their difference, which weights of 16 bits round away: give the strategy precision<masters_in<float>>
#include <heddle/comm/threads.hpp>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/branches.hpp>
#include <heddle/train/precision.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
struct branch {};
using mesh = hd::mesh<hd::axis<hd::dp, 2>>;
using whole = hd::mesh<hd::axis<branch, 2>, hd::axis<hd::dp, 2>>;
using trainer = hd::train::trainer<hd::model::gpt2<float>, hd::strategy<mesh, hd::precision<hd::weights_in<hd::bf16>, hd::masters_in<hd::bf16>>>>;
void draw(trainer& t, hd::world<hd::threads, whole>& world) { hd::train::branches<branch>(t, world); }
