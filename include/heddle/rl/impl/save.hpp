// heddle/rl/impl/save.hpp: states of runs in saves, read.
#pragma once

#include <heddle/io/checkpoint.hpp>
#include <heddle/rl/save.hpp>

#include <cstddef>

namespace heddle::inline v0::rl {

namespace detail {
HEDDLE_INLINE std::vector<std::int64_t> words_in_save(const std::filesystem::path& save) {
  const io::checkpoint_reader reader(save);
  for (const io::tensor_entry& e : reader.tensors(0))
    if (e.name == "words") {
      std::vector<std::int64_t> words(static_cast<std::size_t>(e.region.count()));
      reader.read(0, "words", std::span(words));
      return words;
    }
  return {};
}

HEDDLE_INLINE run_state state_of_save(const std::string& save, std::span<const std::int64_t> words) {
  if (words.empty())
    throw config_error("heddle: rl: '" + save + "' is a save of a training that is no run of rl::run: it has no state of one");
  try {
    return run_state_of(words);
  } catch (const config_error& e) {
    throw config_error("heddle: rl: '" + save + "' has no state of a run that can go on: " + e.what());
  }
}
}  // namespace detail

HEDDLE_INLINE run_state state_in_save(const std::filesystem::path& save) {
  return detail::state_of_save(save.string(), detail::words_in_save(save));
}

}  // namespace heddle::inline v0::rl
