// refuse: heddle: context<Policies...> got two policies of one kind; keep one of them
#include <heddle/train/context_policies.hpp>

namespace hd = heddle;
auto settings = hd::train::settings_of_context<hd::context<hd::carrier::kv_ring, hd::carrier::burst>>::make("");
