// heddle/model/layers/expert_tensors.hpp: tags of the parameters and tensors of a mixture of experts.
#pragma once

namespace heddle::inline v0::model::layers {

struct gate_weights {};      ///< parameter: of each expert, what goes into the nonlinear function
struct up_weights {};        ///< parameter: of each expert, what its result is multiplied with
struct down_weights {};      ///< parameter: of each expert, back to the stream
struct scores {};            ///< activation: the router's logits
struct d_scores {};          ///< gradient of `scores`
struct choice_weights {};    ///< the weight of each chosen expert
struct d_choice_weights {};  ///< gradient of `choice_weights`
struct expert_counts {};     ///< of each own expert, how many rows come from each rank, where rows travel
struct routed_in {};         ///< activation: rows as experts take them, where rows travel
struct routed_out {};        ///< activation: what experts give for each choice of this rank's rows
struct d_routed_out {};      ///< gradient of what experts give, by expert
struct moved {};             ///< scratch: a row for each choice of this rank's rows, by expert
struct by_expert {};         ///< scratch: a row for each choice of this rank's experts, by expert
struct as_received {};       ///< scratch: the same in the order in which they come, or rows between nodes
struct copied_weights {};    ///< scratch: the weight of each chosen expert for each rank that holds a part of it
struct d_copied_weights {};  ///< scratch: gradient of `copied_weights`
struct gathered_choices {};  ///< which experts the rows of all ranks choose, where these are gathered
struct gathered_in {};       ///< activation: the rows of all ranks, where these are gathered
struct gathered_out {};  ///< scratch: what this rank's experts give for the rows of all ranks, or a gradient of these
struct gathered_weights {};  ///< activation: `choice_weights` of the rows of all ranks
struct gate_bias {};         ///< parameter: of each expert, added to its `gate`
struct up_bias {};           ///< parameter: of each expert, added to its `up`
struct down_bias {};         ///< parameter: of each expert, added to what it gives, once
struct ones_of_rows {};      ///< scratch: a one for each row of this rank's experts, which a bias is multiplied with

}  // namespace heddle::inline v0::model::layers
