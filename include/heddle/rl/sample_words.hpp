// heddle/rl/sample_words.hpp: answers as words, for messages and files.
#pragma once

#include <heddle/rl/sample.hpp>
#include <heddle/rl/words.hpp>

#include <cstddef>

namespace heddle::inline v0::rl {

/// All of an answer that a generator makes: what a trainer adds to it is left out.
inline void put(word_writer& to, const sample& s) {
  to.put(s.id), to.put(s.group);
  to.put(s.prompt), to.put(s.tokens), to.put(s.log_probabilities);
  to.put(s.segments.size());
  for (const segment& x : s.segments) to.put(x.version), to.put(x.first);
  to.put(static_cast<int>(s.finish));
  to.put(s.reward), to.put(s.missing);
}
inline void get(word_reader& from, sample& s) {
  s.id = from.get<std::int64_t>(), s.group = from.get<std::int64_t>();
  from.get(s.prompt), from.get(s.tokens), from.get(s.log_probabilities);
  for (auto n = from.get<std::size_t>(); n > 0; --n) {
    const auto version = from.get<std::int64_t>();
    s.segments.push_back({version, from.get<std::int64_t>()});
  }
  s.finish = static_cast<infer::finish_reason>(from.get<int>());
  s.reward = from.get<double>();
  from.get(s.missing);
}

}  // namespace heddle::inline v0::rl
