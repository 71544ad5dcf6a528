// heddle/rl/impl/run_state.hpp: states of runs: written, read, checked and dealt out.
#pragma once

#include <heddle/core/text.hpp>
#include <heddle/io/checkpoint.hpp>
#include <heddle/rl/impl/words.hpp>
#include <heddle/rl/run_state.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace heddle::inline v0::rl {

namespace detail {
template <class Words>
void visit(Words& w, fixed_setting& s) {
  w(s.name), w(s.value);
}
template <class Words>
void visit(Words& w, generator_state& s) {
  w(s.next), visit(w, s.answers);
}
template <class Words>
void visit(Words& w, run_state& s) {
  run_result& r = s.result;
  batch_buffer_state& b = s.buffer;
  w(s.settings), w(s.version), w(s.given_up);
  w(r.batches), w(r.version), w(r.groups), w(r.given_up), w(r.skipped), w(r.tokens), w(r.missing), w(r.lags);
  w(b.next), w(b.came), w(b.used), w(b.given_up), w(b.fresh_from), w(b.seen), w(b.numbers), w(b.here), w(s.generators);
}
template <class State>
std::vector<std::int64_t> words_of_state(State copy) {
  std::vector<std::int64_t> words;
  word_writer w(words);
  visit(w, copy);
  return words;
}
template <class State>
State state_of_words(std::span<const std::int64_t> words) {
  State state;
  word_reader r(words);
  visit(r, state);
  if (!r.left().empty())
    throw config_error("heddle: rl: " + std::to_string(r.left().size()) + " words follow those of a state");
  return state;
}

// Every number below a generator's next is in one place.
inline void require_each_once(const run_state& s) {
  const auto fail = [](std::int64_t group, const char* what) {
    throw config_error("heddle: rl: in the state of a run group " + std::to_string(group) + what);
  };
  const auto n = std::ssize(s.generators);
  std::int64_t begun = 0, last = -1, placed = s.buffer.came, most = std::ssize(s.buffer.seen);
  for (const generator_state& g : s.generators) most += std::ssize(g.answers.groups) + std::ssize(g.answers.prompts);
  std::vector<bool> known = s.buffer.seen;
  const auto place = [&](std::int64_t group, std::int64_t next) {
    if (group < 0 || group >= next) fail(group, " is with a generator that has not begun it");
    const auto at = static_cast<std::size_t>(group);
    if (known.size() <= at) known.resize(at + 1);
    if (known[at]) fail(group, " is in two places");
    known[at] = true, ++placed;
  };
  for (std::int64_t g = 0; g < n; ++g) {
    const generator_state& own = s.generators[static_cast<std::size_t>(g)];
    if (own.next < g || (own.next - g) % n != 0) fail(own.next, " is the next of another generator");
    if ((own.next - g) / n > most) fail(own.next, " is the next of a generator, and those before it are nowhere");
    begun += (own.next - g) / n;
    for (const auto& answers : own.answers.groups) place(answers.empty() ? -1 : answers.front().group, own.next);
    for (const rollout_prompt& p : own.answers.prompts) place(p.group, own.next);
  }
  std::int64_t usable = 0;
  if (s.buffer.numbers.size() != s.buffer.here.size()) fail(last, " has no answers, or others no number");
  for (std::size_t i = 0; i < s.buffer.here.size(); ++i) {
    const std::int64_t group = s.buffer.numbers[i];
    if (group <= last || group >= std::ssize(s.buffer.seen) || !s.buffer.seen[static_cast<std::size_t>(group)])
      fail(group, " is in the buffer and did not come");
    last = group;
    usable += s.buffer.here[i].empty() ? 0 : 1;
  }
  if (std::count(s.buffer.seen.begin(), s.buffer.seen.end(), true) != s.buffer.came || placed != begun ||
      s.buffer.came != s.buffer.used + s.buffer.given_up + usable)
    throw config_error("heddle: rl: in the state of a run " + std::to_string(begun) + " groups have begun, " +
                       std::to_string(s.buffer.came) + " came, " + std::to_string(s.buffer.used) + " were used, " +
                       std::to_string(s.buffer.given_up) + " given up, " + std::to_string(usable) +
                       " wait and " + std::to_string(placed - s.buffer.came) +
                       " are with generators: some are lost or twice");
}
}  // namespace detail

HEDDLE_INLINE std::vector<fixed_setting> fixed_settings(const settings& s, const flow& how,
                                                        const std::string& objective) {
  std::string ends;
  for (const std::int32_t t : s.end_tokens) ends += (ends.empty() ? "" : " ") + std::to_string(t);
  constexpr const char* advantages[] = {"group_normalised", "leave_one_out", "reward"};
  constexpr const char* aggregations[] = {"token_mean", "sequence_mean", "constant"};
  return {{"pipeline", to_string(how)},
          {"objective", objective},
          {"settings.prompts", std::to_string(s.prompts)},
          {"settings.answers", std::to_string(s.answers)},
          {"settings.most_tokens", std::to_string(s.most_tokens)},
          {"settings.temperature", number_text(s.temperature)},
          {"settings.end_tokens", "{" + ends + "}"},
          {"settings.seed", std::to_string(s.seed)},
          {"settings.advantage", advantages[static_cast<int>(s.advantage)]},
          {"settings.aggregation", aggregations[static_cast<int>(s.aggregation)]}};
}

HEDDLE_INLINE std::vector<std::int64_t> to_words(const run_state& state) { return detail::words_of_state(state); }
HEDDLE_INLINE std::vector<std::int64_t> to_words(const generator_state& state) { return detail::words_of_state(state); }
HEDDLE_INLINE generator_state generator_state_of(std::span<const std::int64_t> words) {
  return detail::state_of_words<generator_state>(words);
}
HEDDLE_INLINE run_state run_state_of(std::span<const std::int64_t> words) {
  run_state s = detail::state_of_words<run_state>(words);
  detail::require_each_once(s);
  return s;
}

HEDDLE_INLINE generator_state dealt_to(std::span<const generator_state> from, std::int64_t own, std::int64_t count,
                                       const std::function<std::vector<std::int32_t>(std::int64_t)>& prompt) {
  const auto before = std::ssize(from);
  if (before == count) return from[static_cast<std::size_t>(own)];
  std::int64_t end = 0;  // behind all that have begun
  for (const generator_state& g : from) end = (std::max)(end, g.next - before + 1);
  generator_state mine{.next = end + ((own - end) % count + count) % count};
  rollout_state& to = mine.answers;
  for (const generator_state& g : from) {
    to.version = (std::max)(to.version, g.answers.version);
    to.wanted = (std::max)(to.wanted, g.answers.wanted);
    for (const auto& answers : g.answers.groups)
      if (answers.front().group % count == own) to.groups.push_back(answers);
    for (const rollout_prompt& p : g.answers.prompts)
      if (p.group % count == own) to.prompts.push_back(p);
  }
  // All windows begin at the same group when a run goes on, so that none of these is beyond its generator's.
  for (std::int64_t group = own; group < end; group += count)
    if (group >= from[static_cast<std::size_t>(group % before)].next) to.prompts.push_back({group, prompt(group)});
  std::sort(to.groups.begin(), to.groups.end(),
            [](const std::vector<sample>& a, const std::vector<sample>& b) { return a.front().group < b.front().group; });
  std::sort(to.prompts.begin(), to.prompts.end(),
            [](const rollout_prompt& a, const rollout_prompt& b) { return a.group < b.group; });
  to.counts.started = std::ssize(to.groups);
  return mine;
}

HEDDLE_INLINE void require_same_settings(const std::string& save, std::span<const fixed_setting> saved,
                                         std::span<const fixed_setting> own) {
  for (const fixed_setting& s : own) {
    const auto at = std::find_if(saved.begin(), saved.end(), [&](const fixed_setting& o) { return o.name == s.name; });
    // Saves of before runs had a critic say nothing of it.
    const std::string value = at != saved.end() ? at->value : s.name == "critic" ? "none" : "unknown";
    if (at == saved.end() ? value != s.value : at->value != s.value)
      throw config_error("heddle: rl: '" + save + "' is a save of a run with " + s.name + " " + value +
                         "; this run's is " + s.value);
  }
}

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
