// heddle/train/pass_through.hpp: a batch's way forward through all parts of a model, without a schedule.
#pragma once

#include <heddle/model/pipeline/optional_members.hpp>
#include <heddle/schedule/table.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/train/stage_parts.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace heddle::inline v0::train {

/// Takes `batch` through the first replica of each part of the model, in order; every rank that holds one of them calls
/// it. `forward(stage, in, out)` is called for each of them on this rank; `in` is empty for the first part, `out` for the
/// last. `between` are two buffers for the tensors between stages.
template <class Held, class Communicator, class Batch, class T, class Forward>
void pass_through(const stage_parts& parts, schedule::table_view t, Held& held, Communicator& pipeline, int tag,
                  const Batch& batch, std::array<buffer<T>, 2>& between, Forward&& forward) {
  std::size_t next = 0;  // of the two buffers, the one to write
  const int last = parts.parts() - 1;
  const auto first = [&](int part) { return parts.stages_of(part).front(); };
  for (int x = 0; x <= last; ++x) {
    if (!held.has(first(x))) continue;
    auto& stage = held.at(first(x)).stage;
    const auto elements = [&](bool input) {
      return static_cast<std::size_t>(model::of_stage::boundary_elements(stage, batch, input));
    };
    const std::span<T> in = x == 0 ? std::span<T>{} : std::span<T>(between[1 - next].data(), elements(true));
    const std::span<T> out = x == last ? std::span<T>{} : std::span<T>(between[next].data(), elements(false));
    if (x > 0 && !held.has(first(x - 1))) pipeline.recv(in, t.rank_of(first(x - 1)), tag);
    forward(stage, std::span<const T>(in), out);
    if (x < last && !held.has(first(x + 1))) pipeline.send(std::span<const T>(out), t.rank_of(first(x + 1)), tag);
    next = 1 - next;
  }
}

}  // namespace heddle::inline v0::train
