// refuse: heddle: in_flight and partial write one answer with several versions of the weights, and this objective does not read the log-probability of what drew a token: take one with importance weights (reinforce, aipo, ppo; reads_behaviour in your own), or add keep_as_is to the pipeline
#include <heddle/rl/pipeline.hpp>

#include <string>

struct plain {
  heddle::rl::term operator()(double log_probability, const heddle::rl::token& t) const {
    return {-t.advantage * log_probability, -t.advantage};
  }
  friend std::string to_string(const plain&) { return "plain"; }
};
constexpr bool fits = heddle::rl::april::takes<plain>();

int main() {}
