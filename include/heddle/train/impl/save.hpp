// heddle/train/impl/save.hpp: bodies of heddle/train/save.hpp.
#pragma once

#include <heddle/train/save.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/train/optimizers/by_default.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <unistd.h>

namespace heddle::inline v0::train::detail {

// 128 random bits: no two runs have the same.
HEDDLE_INLINE std::string random_name() {
  std::array<std::uint64_t, 2> random{};  // <random> is a tenth of a second in each unit
  if (::getentropy(random.data(), sizeof random) != 0)
    throw io_error("heddle: the system has no random bytes for the name of a run");
  return io::to_hex(random[0]) + io::to_hex(random[1]);
}

HEDDLE_INLINE io::manifest named_manifest(progress& run, const save_facts& facts, io::manifest m) {
  if (!run.run_name()) run.set_run_name(random_name());
  m.position.consumed = run.samples_consumed();
  m.corpus = facts.corpus;
  if (!facts.order.empty()) m.facts["order"] = facts.order;
  if (!run.run_name()->empty()) m.facts["run"] = *run.run_name();
  return m;
}

HEDDLE_INLINE void note_resumed(progress& run, const io::checkpoint_reader& reader, resume_result& result) {
  const io::manifest& m = reader.manifest();
  run.set_position(m.step, m.position.consumed);
  run.set_run_name(io::detail::run_of(m));
  result.resumed = true;
  result.step = m.step;
  result.mesh = m.mesh;
  result.bytes_read = reader.bytes_read();
}

HEDDLE_INLINE void require_same_training(const io::checkpoint_reader& reader, const std::string& config,
                                         const std::string& plain, const save_facts& facts) {
  const io::manifest& m = reader.manifest();
  const std::string save = "heddle: '" + reader.path().string() + "'";
  const auto rule_of = [](const std::string& words) {  // the default is not named
    constexpr std::string_view key = " optimizer=";
    const std::size_t at = words.rfind(key);
    if (at == std::string::npos) return std::string(optimizers::by_default::name);
    return words.substr(at + key.size(), words.find(' ', at + 1) - at - key.size());
  };
  if (rule_of(m.config) != rule_of(config))
    throw config_error(save + " is a save of a run whose optimizer is " + rule_of(m.config) + "; this run's is " +
                       rule_of(config) + ", which keeps other numbers for each weight");
  if (m.config != config && m.config != plain)
    throw config_error(save + " is a save of " + m.config + "; this run trains " + config);
  const std::int64_t consumed = m.position.consumed;
  if (facts.most_batch > 0 && (consumed < m.step || (consumed + facts.most_batch - 1) / facts.most_batch > m.step))
    throw io_error(save + " says " + std::to_string(consumed) + " samples after " + std::to_string(m.step) +
                   " steps of 1 to " + std::to_string(facts.most_batch) + " samples: that cannot be");
  if (facts.corpus != 0 && m.corpus != 0 && m.corpus != facts.corpus)
    throw config_error(save + " was trained on other data (fingerprint " + io::to_hex(m.corpus) + ", this data has " +
                       io::to_hex(facts.corpus) + "); give the same data, or start anew");
  if (const auto order = m.facts.find("order");
      !facts.order.empty() && order != m.facts.end() && order->second != facts.order)
    throw config_error(save + " drew its samples by " + order->second + "; this run would draw them by " + facts.order +
                       ", and repeat some and lose others");
}

#if defined(HEDDLE_SEPARATE_COMPILATION)
HEDDLE_HOST_SAVES(, float);
HEDDLE_HOST_SAVES(, double);
HEDDLE_THREADS_SAVES();
#endif

}  // namespace heddle::inline v0::train::detail
