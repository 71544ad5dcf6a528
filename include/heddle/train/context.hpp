// heddle/train/context.hpp: context parallelism for trainers: documents of any length.
#pragma once

#include <heddle/compute/host/merge_partials.hpp>
#include <heddle/model/context_batch.hpp>
#include <heddle/model/sharding.hpp>
#include <heddle/train/context_batches.hpp>
#include <heddle/train/context_policies.hpp>

namespace heddle::inline v0::model {

/// `megatron`, and the rows of documents over `Context`: each rank has a part of every document that it shares, and attention brings
/// queries and keys together as `How`, a `context<Policies...>`, says.
/// Source: Liu et al. 2023, arXiv:2310.01889; the systems of the carriers.
template <class Data = dp, class Tensor = tp, class Context = cp, class How = context<>>
using megatron_context =
    sharding<dim::split<dim::samples, Data>, dim::split<dim::heads, Tensor>, dim::split<dim::ffn, Tensor>,
             dim::split<dim::vocabulary, Tensor>, dim::split<dim::sequence, Context, How>>;

}  // namespace heddle::inline v0::model
