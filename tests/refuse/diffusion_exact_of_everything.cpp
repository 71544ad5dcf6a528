// refuse: heddle: diffusion: the cache does not fit the model's reach: exact is for model::blocks<Rows>, prefix, dual and vicinity for model::everything, prefix for model::earlier, none for all but that
#include <heddle/infer/diffusion.hpp>

namespace inf = heddle::infer;
inf::diffusion<32, inf::threshold, inf::exact> decoding({}, 1);
