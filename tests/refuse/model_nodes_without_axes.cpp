// refuse: heddle: send_to_nodes<Axes...> names the axes inside a node: at least one
#include <heddle/model/layers/expert_policies.hpp>

const heddle::model::layers::send_to_nodes<> dispatch{};
