// refuse: heddle: diffusion<Block, ..., model::blocks<Rows>>: Block must be the model's Rows
#include <heddle/infer/diffusion.hpp>

namespace inf = heddle::infer;
inf::diffusion<32, inf::threshold, inf::exact, heddle::model::blocks<4>> decoding({}, 1);
