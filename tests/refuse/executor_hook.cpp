// refuse: heddle: a hook of model::executor has the wrong parameters: optimizer_step, unshard and reshard take (int stage), recompute, offload and reload take (int stage, int microbatch, int slot), before takes (const schedule::action&)
#include <heddle/model/pipeline/hooks.hpp>

struct hooks {
  void optimizer_step(int) {}
  void offload(int /*stage*/, int /*microbatch*/) {}  // no slot
};

void call(hooks& h, const heddle::schedule::action& a) {
  heddle::model::detail::call_optional_hook(h, a, 0);
}
