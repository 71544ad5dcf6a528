// heddle/rl/impl/words.hpp: numbers of samples and states, written and read.
#pragma once

#include <heddle/rl/words.hpp>

#include <bit>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>

namespace heddle::inline v0::rl {

namespace detail {
// What the words of an object are, in their order: `w(member)` writes or reads one.
template <class Words>
void visit(Words& w, segment& s) {
  w(s.version), w(s.first);
}
template <class Words>
void visit(Words& w, sample& s) {
  w(s.id), w(s.group), w(s.finish), w(s.reward), w(s.advantage), w(s.prompt), w(s.tokens), w(s.log_probabilities);
  w(s.proximal), w(s.reference), w(s.advantages), w(s.weights), w(s.mask), w(s.segments), w(s.missing);
}
template <class Words>
void visit(Words& w, rollout_prompt& p) {
  w(p.group), w(p.tokens);
}
template <class Words>
void visit(Words& w, rollout_state& s) {
  rollout_counts& c = s.counts;
  w(s.version), w(s.wanted), w(c.started), w(c.taken), w(c.consumed), w(c.generated), w(c.delivered), w(c.requests);
  w(c.cancelled), w(s.prompts), w(s.groups);
}

class word_writer {
 public:
  explicit word_writer(std::vector<std::int64_t>& to) : to_(&to) {}
  void operator()(std::int64_t x) { to_->push_back(x); }
  void operator()(double x) { to_->push_back(std::bit_cast<std::int64_t>(x)); }
  void operator()(infer::finish_reason x) { to_->push_back(static_cast<std::int64_t>(x)); }
  void operator()(std::string& text) {
    std::vector<std::int64_t> letters(text.begin(), text.end());
    (*this)(letters);
  }
  template <class E>
  void operator()(std::vector<E>& list) {
    to_->push_back(static_cast<std::int64_t>(list.size()));
    for (auto&& x : list)
      if constexpr (requires { visit(*this, x); })
        visit(*this, x);
      else if constexpr (std::is_integral_v<E>)
        to_->push_back(static_cast<std::int64_t>(x));
      else
        (*this)(x);
  }

 private:
  std::vector<std::int64_t>* to_;
};

class word_reader {
 public:
  explicit word_reader(std::span<const std::int64_t> from) : from_(from) {}
  std::span<const std::int64_t> left() const noexcept { return from_; }
  void operator()(std::int64_t& x) { x = next(); }
  void operator()(double& x) { x = std::bit_cast<double>(next()); }
  void operator()(infer::finish_reason& x) {
    x = static_cast<infer::finish_reason>(within(0, static_cast<std::int64_t>(infer::finish_reason::error)));
  }
  void operator()(std::string& text) {
    std::vector<signed char> letters;
    (*this)(letters);
    text.assign(letters.begin(), letters.end());
  }
  template <class E>
  void operator()(std::vector<E>& list) {
    list.clear();
    // Every element has a word at least.
    for (std::int64_t n = within(0, static_cast<std::int64_t>(from_.size()) - 1); n > 0; --n) {
      E x{};
      if constexpr (requires { visit(*this, x); })
        visit(*this, x);
      else if constexpr (std::is_integral_v<E>)
        x = static_cast<E>(within((std::numeric_limits<E>::min)(), (std::numeric_limits<E>::max)()));
      else
        (*this)(x);
      list.push_back(x);
    }
  }

 private:
  std::int64_t next() {
    if (from_.empty()) throw config_error("heddle: rl: words of samples or of a rollout's state end too early");
    const std::int64_t x = from_.front();
    from_ = from_.subspan(1);
    return x;
  }
  std::int64_t within(std::int64_t low, std::int64_t high) {
    const std::int64_t x = next();
    if (x < low || x > high)
      throw config_error("heddle: rl: words of samples or of a rollout's state should have a number from " +
                         std::to_string(low) + " to " + std::to_string(high) + ", got " + std::to_string(x));
    return x;
  }
  std::span<const std::int64_t> from_;
};
}  // namespace detail

HEDDLE_INLINE void append_words(std::vector<std::int64_t>& to, std::span<const sample> samples) {
  std::vector<sample> copy(samples.begin(), samples.end());
  detail::word_writer w(to);
  w(copy);
}

HEDDLE_INLINE std::vector<sample> take_samples(std::span<const std::int64_t>& from) {
  std::vector<sample> samples;
  detail::word_reader r(from);
  r(samples);
  from = r.left();
  return samples;
}

HEDDLE_INLINE std::vector<std::int64_t> to_words(const rollout_state& state) {
  rollout_state copy = state;
  std::vector<std::int64_t> words;
  detail::word_writer w(words);
  visit(w, copy);
  return words;
}

HEDDLE_INLINE rollout_state rollout_state_of(std::span<const std::int64_t> words) {
  rollout_state state;
  detail::word_reader r(words);
  visit(r, state);
  if (!r.left().empty())
    throw config_error("heddle: rl: " + std::to_string(r.left().size()) + " words follow those of a rollout's state");
  return state;
}

}  // namespace heddle::inline v0::rl
