// heddle/train/forward_pass.hpp: a forward pass of a batch through all stages, without a schedule.
#pragma once

#include <heddle/model/pipeline/boundary_memory.hpp>
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/space_collectives.hpp>
#include <heddle/tensor/view.hpp>
#include <heddle/train/stage_parts.hpp>

#include <cstdint>

namespace heddle::inline v0::train {

/// Takes `batch` through the first replica of each part of the model, in order; every rank that holds one of them calls
/// it. `forward(stage, in, out)` is called for each of them on this rank; `in` is empty for the first part, `out` for the
/// last. `between` are two buffers for the tensors between stages, in their memory. All is done when this returns.
/// Where the communicator sends in the order of queues, all of it is in that of the stages.
template <class Held, class Communicator, class Batch, class T, memory_space Space, class Forward>
void forward_pass(const stage_parts& parts, schedule::table_view t, Held& held, Communicator& pipeline, int tag,
                  const Batch& batch, model::boundary_memory<T, Space>& between, Forward&& forward) {
  using row = row_view<T, Space>;
  constexpr bool queued = model::detail::messages_are_queued<Communicator, Space>();
  int next = 0;  // of the two buffers, the one to write
  const int last = parts.parts() - 1;
  const auto first = [&](int part) { return parts.stages_of(part).front(); };
  for (int x = 0; x <= last; ++x) {
    if (!held.has(first(x))) continue;
    auto& stage = held.at(first(x)).stage;
    const auto elements = [&](bool input) {
      return static_cast<std::int64_t>(model::of_stage::boundary_elements(stage, batch, input));
    };
    const row in = x == 0 ? row{} : between.row(1 - next, elements(true));
    const row out = x == last ? row{} : between.row(next, elements(false));
    if (x > 0 && !held.has(first(x - 1))) {
      if constexpr (queued) {
        recv(stage.queue(), pipeline, in, t.rank_of(first(x - 1)), tag);
      } else {
        pipeline.recv(between.to_receive(1 - next, elements(true)), t.rank_of(first(x - 1)), tag);
        between.received(1 - next, elements(true));
      }
    }
    forward(stage, row_view<const T, Space>(in), out);
    if (x < last && !held.has(first(x + 1))) {
      if constexpr (queued)
        send(stage.queue(), pipeline, out, t.rank_of(first(x + 1)), tag);
      else
        pipeline.send(between.to_send(next, elements(false)), t.rank_of(first(x + 1)), tag);
    }
    next = 1 - next;
  }
  between.wait();
}

}  // namespace heddle::inline v0::train
