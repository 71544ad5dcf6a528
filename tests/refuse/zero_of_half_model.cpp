// refuse: heddle: zero<2> and zero<3> lend weights and gradients the same memory, and those of a model of bf16 are bf16 and float: take zero<0> or zero<1>
#include <heddle/model/gpt2.hpp>
#include <heddle/train/trainer.hpp>

namespace hd = heddle;
using mesh_type = hd::mesh<hd::axis<hd::dp>>;
using strategy = hd::strategy<mesh_type, hd::zero<2>>;
hd::train::trainer<hd::model::gpt2<hd::bf16>, strategy>* trainer;
using stage = decltype(trainer->stage());
