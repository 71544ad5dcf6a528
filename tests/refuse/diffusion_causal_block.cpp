// refuse: heddle: diffusion with the reach model::earlier decodes one token at a time: masks behind a token are not seen by it; take a block of 1, or a model that was trained with another reach
#include <heddle/infer/diffusion.hpp>

namespace inf = heddle::infer;
inf::diffusion<32, inf::threshold, inf::prefix, heddle::model::earlier> decoding({}, 1);
