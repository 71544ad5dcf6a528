// refuse: heddle: context<Policies...> takes a carrier, backward<carrier>, an order (a split policy), a mask
#include <heddle/train/context_policies.hpp>

namespace hd = heddle;
auto settings = hd::train::settings_of_context<hd::context<int>>::make("");
