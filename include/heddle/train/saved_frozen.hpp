// heddle/train/saved_frozen.hpp: saves frozen parameters that change, such as biases.
#pragma once

#include <heddle/io/checkpoint.hpp>
#include <heddle/tensor/host_copy.hpp>

#include <cstdint>
#include <span>

namespace heddle::inline v0::train {

/// Whether saves of a stage have its frozen parameters, too: where the policy of its description says `saves_frozen`, as
/// `layers::all_but_selection_bias` does and `layers::adapters` does not.
template <class Stage>
inline constexpr bool saves_frozen = requires { requires Stage::trained::saves_frozen; };

namespace detail {

// The same where the stage itself says it (`model::any_weights`).
template <class Stage>
inline constexpr bool may_save_frozen = saves_frozen<Stage> || requires(const Stage& s) { s.has_saved_frozen(); };
template <class Stage>
bool saves_frozen_of([[maybe_unused]] const Stage& stage) {
  if constexpr (requires { stage.has_saved_frozen(); })
    return stage.has_saved_frozen();
  else
    return saves_frozen<Stage>;
}

// Calls f(parameter, row of its elements here) for each frozen parameter that saves have.
template <class Stage, class F>
void each_saved_frozen(Stage& stage, F&& f) {
  for (const auto& p : stage.frozen_parameters())
    if (p.count > 0) f(p, part_of_row<typename Stage::space>(stage.frozen_weights(), p.offset, p.count));
}

// Each logical element once over all ranks. Returns the bytes that this rank wrote.
template <class Stage>
std::int64_t write_frozen([[maybe_unused]] io::part_writer& writer, [[maybe_unused]] Stage& stage,
                          [[maybe_unused]] bool counted = true) {
  std::int64_t bytes = 0;
  if constexpr (may_save_frozen<Stage>) {  // else a stage need not have a memory space and a queue
    if (!saves_frozen_of(stage)) return 0;
    using T = typename Stage::scalar;
    each_saved_frozen(stage, [&](const auto& p, auto here) {
      if (counted && !p.counted) return;
      const auto values = read_on_host<T, typename Stage::space>(stage.queue(), here);
      writer.add("weight/" + p.name, std::span<const T>(values.elements()), {p.logical, p.start, p.local});
      bytes += p.count * static_cast<std::int64_t>(sizeof(T));
    });
  }
  return bytes;
}
// Returns the bytes that this rank read.
template <class Reader, class Stage>
std::int64_t read_frozen([[maybe_unused]] const Reader& reader, [[maybe_unused]] Stage& stage) {
  std::int64_t bytes = 0;
  if constexpr (may_save_frozen<Stage>) {
    if (!saves_frozen_of(stage)) return 0;
    using T = typename Stage::scalar;
    each_saved_frozen(stage, [&](const auto& p, auto here) {
      auto values = written_on_host<T, typename Stage::space>(stage.queue(), here);
      reader.read("weight/" + p.name, values.elements(), {p.logical, p.start, p.local});
      values.finish();
      bytes += p.count * static_cast<std::int64_t>(sizeof(T));
    });
  }
  return bytes;
}

}  // namespace detail
}  // namespace heddle::inline v0::train
