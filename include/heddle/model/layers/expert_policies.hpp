// heddle/model/layers/expert_policies.hpp: policies of experts: choices, biases, travel of rows.
#pragma once

#include <heddle/compute/kernels.hpp>
#include <heddle/core/type_list.hpp>

namespace heddle::inline v0::model::layers {

/// Experts take all tokens that choose them.
struct dropless {
  static constexpr bool drops = false;
  static constexpr double factor = 0;
};
/// An expert takes at most factor * (rows * chosen / experts), rounded up, of one rank's rows: those that `Keep` prefers, `compute::keep_heaviest` or
/// `compute::keep_first`. Others lose this choice; the weights of those that they keep stay as they are. Which rows an expert keeps is decided by
/// each rank for its own rows, so it depends on how samples are split.
/// Source: Fedus et al. 2021, arXiv:2101.03961, section 2.2; Liu et al. 2025, arXiv:2504.14960 (dropping in sub-sequences).
template <class Keep = compute::keep_heaviest>
struct capacity {
  using keep = Keep;
  static constexpr bool drops = true;
  double factor = 1;
};

/// The three products of an expert are all of it.
struct no_biases {
  static constexpr bool has = false;
};
/// Each product of an expert has a bias, as GPT-OSS: gate_e(x) = W x + b, with a name for those of all experts.
/// Source: OpenAI 2025, arXiv:2508.10925; Hugging Face `GptOssExperts`.
struct with_biases {
  static constexpr bool has = true;
  const char *gate = "experts.*.gate_proj.bias", *down = "experts.*.down_proj.bias", *up = "experts.*.up_proj.bias";
};

/// Where rows travel to their experts, a copy of a row goes to each expert that it chooses: all-to-all. For few choices and many ranks.
struct send_choices {
  static constexpr bool gathers = false;
  using inside = type_list<>;
};
/// Every rank gets the rows of all ranks (all_gather), and sums of what their experts give go back (reduce_scatter). For more choices than
/// ranks, or routers that prefer few experts: what is sent does not depend on the choices.
/// Source: Liu et al. 2025, arXiv:2504.14960 (the all-gather dispatcher of Megatron-Core).
struct gather_rows {
  static constexpr bool gathers = true;
  using inside = type_list<>;
};
/// A row goes once to each node of ranks that holds one of its experts, however many these are: ranks along `Axes` are those of one node,
/// and rows go by all-to-all along the other axes that rows travel along, between ranks with the same place in their nodes. Inside a node
/// every rank gets all rows that come to it (all_gather); sums of what its experts give (reduce_scatter) go back, once for each row, and
/// are added up where the row comes from. For links between nodes that are slower than those inside.
/// Errors: `Axes` that are not some, but not all, of those along which the sharding lets rows travel do not compile. All of them would make one
/// node of all ranks, which is `gather_rows`.
/// Source: Liu et al. 2025, arXiv:2504.14960 (all-to-all and all-gather dispatchers); DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2
/// (rows sent once to each node).
template <class... Axes>
struct send_to_nodes {
  static constexpr bool gathers = true;
  using inside = type_list<Axes...>;
  static_assert(sizeof...(Axes) > 0, "heddle: send_to_nodes<Axes...> names the axes inside a node: at least one");
};

}  // namespace heddle::inline v0::model::layers
