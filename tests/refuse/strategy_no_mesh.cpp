// refuse: heddle: strategy<...> needs a mesh: strategy<mesh<axis<dp, 2>>, ...>
#include <heddle/train/strategy.hpp>

namespace hd = heddle;
using nowhere = hd::strategy<hd::zero<1>>;
nowhere n;
