// Answers that a mask constrains to JSON: whatever a model would say, what ends is JSON, with speculation and any company, too.
#include "catch.hpp"

#include "fake_runner.hpp"

#include <heddle/core/random.hpp>
#include <heddle/infer/dfa_mask.hpp>
#include <heddle/infer/json_automaton.hpp>
#include <heddle/infer/regex.hpp>
#include <heddle/infer/token_mask.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace hd = heddle;
namespace inf = heddle::infer;

bool accepts(std::string_view text, bool object = false) {
  inf::json_automaton state(object);
  for (const char c : text)
    if (!state.take(static_cast<unsigned char>(c))) return false;
  return state.complete();
}
bool begins(std::string_view text) {
  inf::json_automaton state(false);
  for (const char c : text)
    if (!state.take(static_cast<unsigned char>(c))) return false;
  return true;
}

// All bytes, and some longer tokens, also ones that begin and end in the middle of things. The last one ends an answer.
std::vector<std::string> words() {
  std::vector<std::string> all;
  for (int c = 0; c < 256; ++c) all.emplace_back(1, static_cast<char>(c));
  for (const char* w :
       {"{\"",   "\":",   "\",\"",    "\"}",      "}}",       "]}",   ": [", "true",       "null,", "-1", "0.5e", "e9",
        "\\u00", "\\ud8", "\xC3\xA9", "\xE2\x82", "\xF0\x9F", "name", "  ",  "1234567890", "Tru",   "[[", "]]"})
    all.emplace_back(w);
  all.emplace_back();
  return all;
}

}  // namespace

TEST_CASE("the automaton accepts JSON and what begins it, and nothing else", "[infer]") {
  for (const char* text : {"{}", "[]", "[1, 2.5e-3,-0]", "{\"a\":{\"b\":[true,false,null]},\"c\":\"\\n\\u00e9\"}", "0",
                           "-12.5", "\"\xE2\x82\xAC\"", " [ ] ", "{ \"a\" : 1 }"}) {
    CAPTURE(text);
    const bool trailing = std::string_view(text).back() == ' ';  // nothing follows a text that is complete
    CHECK(accepts(text) == !trailing);
    CHECK(nlohmann::json::accept(text));
    for (std::size_t n = 0; n < std::string_view(text).size(); ++n) CHECK(begins(std::string_view(text).substr(0, n)));
  }
  for (const char* text : {"{,}",
                           "[1,]",
                           "{\"a\"}",
                           "{\"a\":}",
                           "01",
                           "1.",
                           "+1",
                           "-",
                           ".5",
                           "1e",
                           "tru",
                           "nul l",
                           "\"\x01\"",
                           "\"\\x\"",
                           "\"\xC0\x80\"",
                           "\"\xED\xA0\x80\"",
                           "\"\xF5\x80\x80\x80\"",
                           "[1 2]",
                           "{\"a\":1 \"b\":2}",
                           "}",
                           "]",
                           "[}",
                           "{]",
                           "\"\\ud800\"",
                           "1e999"}) {
    CAPTURE(text);
    CHECK_FALSE(accepts(text));
  }
  CHECK_FALSE(accepts("[]", true));
  CHECK(accepts("{\"a\":[]}", true));
  CHECK_FALSE(begins(std::string(33, '[')));
  CHECK(begins(std::string(32, '[')));
  CHECK_FALSE(begins(std::string(17, ' ')));
}

TEST_CASE("walks that the automaton accepts are JSON", "[infer]") {
  const std::uint64_t seed = 99;
  CAPTURE(seed);
  const hd::counter_random random(seed, 4);
  const std::string_view likely = "{}[]\",:\\u0123456789eE+-.truefalsn \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  std::int64_t complete = 0, wrong = 0;
  std::uint64_t draw = 0;
  for (int walk = 0; walk < 3000; ++walk) {
    inf::json_automaton state(false);
    std::string text;
    for (int tries = 0; tries < 400 && text.size() < 40; ++tries) {
      const auto r = random.integer(draw++);
      const char c = r % 8 == 0 ? static_cast<char>(r / 8 % 256) : likely[r / 8 % likely.size()];
      inf::json_automaton after = state;
      if (!after.take(static_cast<unsigned char>(c))) continue;
      state = after;
      text += c;
      if (state.complete()) {
        ++complete;
        wrong += !nlohmann::json::accept(text);
      }
    }
  }
  CHECK(complete > 1000);
  CHECK(wrong == 0);
}

TEST_CASE("a compact automaton has a blank behind commas and colons at most", "[infer]") {
  const auto compact = [](std::string_view text) {
    inf::json_automaton state(true, true);
    for (const char c : text)
      if (!state.take(static_cast<unsigned char>(c))) return false;
    return state.complete();
  };
  for (const char* text :
       {R"({})", R"({"a":1})", R"({"a": 1, "b": [1, 2,{"c": "  \n"}]})", R"({"a":[[],{}],"b":-0.5})"})
    CHECK(compact(text));
  for (const char* text :
       {R"( {})", R"({ })", R"({ "a":1})", R"({"a" :1})", R"({"a":  1})", "{\"a\":\n1}", R"({"a":1 })",
        R"({"a":1 ,"b":2})", R"({"a":1,  "b":2})", R"({"a":[ 1]})", R"({"a":[1 ]})", R"({"a":[1,	2]})", R"({} )"}) {
    CAPTURE(text);
    CHECK_FALSE(compact(text));
    CHECK(accepts(std::string_view(text).substr(0, std::string_view(text).find_last_of('}') + 1), true));
  }
}

TEST_CASE("every text that the automaton has taken goes on or is complete", "[infer]") {
  const auto goes_on = [](const inf::json_automaton& state) {
    if (state.complete()) return true;
    for (int c = 0; c < 256; ++c)
      if (inf::json_automaton after = state; after.take(static_cast<unsigned char>(c))) return true;
    return false;
  };
  // Numbers as long as they may be, and of each other length, in an object and alone.
  std::int64_t taken = 0;
  for (const std::string begin : {"", "{\"a\":"})
    for (std::size_t digits = 1; digits < 70; ++digits)
      for (const std::string more : {"", ".", ".5", "e", "e+", "e1", "e12", ".5e1"}) {
        const std::string text = begin + "-" + std::string(digits, '7') + more;
        CAPTURE(text);
        inf::json_automaton state(false);
        bool known = true;
        for (const char c : text) known = known && state.take(static_cast<unsigned char>(c));
        if (!known) continue;
        ++taken;
        CHECK(goes_on(state));
      }
  CHECK(taken > 2 * 60 * 8);
  const std::uint64_t seed = 101;
  CAPTURE(seed);
  const hd::counter_random random(seed, 4);
  std::uint64_t draw = 0;
  std::int64_t dead = 0;
  for (int walk = 0; walk < 100; ++walk) {
    inf::json_automaton state(false);
    for (int length = 0; length < 200; ++length) {
      std::vector<unsigned char> next;
      for (int c = 0; c < 256; ++c)
        if (inf::json_automaton after = state; after.take(static_cast<unsigned char>(c)))
          next.push_back(static_cast<unsigned char>(c));
      if (next.empty()) {
        dead += !state.complete();
        break;
      }
      state.take(next[random.integer(draw++) % next.size()]);
    }
  }
  CHECK(dead == 0);
}

TEST_CASE("what the tree finds is what each token alone says", "[infer]") {
  const std::vector<std::string> all = words();
  const inf::vocabulary_trie tree(std::ssize(all),
                                  [&](std::int32_t t) { return std::string_view(all[static_cast<std::size_t>(t)]); });
  for (const char* text :
       {"", "{", "{\"a", "{\"a\":", "{\"a\":1", "{\"a\":[[", "{\"a\":\"\\", "{\"a\":\"\xE2", "{\"a\":\"\\ud", "{}"}) {
    CAPTURE(text);
    inf::json_automaton state;
    for (const char c : std::string_view(text)) REQUIRE(state.take(static_cast<unsigned char>(c)));
    std::vector<bool> found(all.size());
    tree.each_accepted(state, [&](std::int32_t t) { found[static_cast<std::size_t>(t)] = true; });
    for (std::size_t t = 0; t < all.size(); ++t) {
      inf::json_automaton after = state;
      bool taken = !all[t].empty();
      for (const char c : all[t]) taken = taken && after.take(static_cast<unsigned char>(c));
      CAPTURE(t);
      CHECK(found[t] == taken);
    }
  }
}

TEST_CASE("every answer of a random model that ends under the mask is JSON", "[infer]") {
  const std::vector<std::string> all = words();
  const auto end = static_cast<std::int32_t>(all.size() - 1);
  const auto tree = std::make_shared<const inf::vocabulary_trie>(
      std::ssize(all), [&](std::int32_t t) { return std::string_view(all[static_cast<std::size_t>(t)]); });
  inf::step_limits limits = fake::small_limits;
  limits.vocabulary = std::ssize(all);
  limits.context = 200;
  limits.blocks = 300;
  fake::runner runner(limits);
  inf::engine<fake::runner, inf::ngram_speculation<3>> engine(runner, {.max_running = 8, .end_tokens = {end}});
  for (std::int32_t i = 0; i < 60; ++i)
    engine.submit({.prompt = {i, 7},
                   .max_tokens = 150,
                   .sampling = {.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = static_cast<std::uint64_t>(i)},
                   .mask = inf::mask_by(inf::json_automaton(), tree, {end})});
  std::map<inf::request_id, std::string> texts;
  int stopped = 0, wrong = 0, failed = 0;
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      if (e.token) texts[e.id] += all[static_cast<std::size_t>(*e.token)];
      failed += e.finish == inf::finish_reason::error;
      if (e.finish != inf::finish_reason::stop) continue;
      ++stopped;
      const nlohmann::json parsed = nlohmann::json::parse(texts[e.id], nullptr, false);
      wrong += !parsed.is_object();
    }
  // A token that ends answers is no text, even if it has bytes.
  std::vector<double> logits(all.size());
  inf::mask_by(inf::json_automaton(), tree, {'a', end})(std::vector<std::int32_t>{'{', '"'}, logits);
  CHECK(logits['b'] == 0);
  CHECK(logits['a'] < -1e300);
  CHECK(logits[static_cast<std::size_t>(end)] < -1e300);
  CHECK(failed == 0);
  CHECK(wrong == 0);
  CHECK(stopped > 10);
  for (const auto& [id, text] : texts) {
    CAPTURE(id, text);
    CHECK(begins(text));
  }
}

namespace {
// Accepts any text of the letters a to h, and counts its bytes; a state is the last letter.
struct letters {
  unsigned char last = 0;
  static inline std::int64_t taken = 0;
  bool take(unsigned char c) {
    ++taken;
    if (c < 'a' || c > 'h' || c == last) return false;
    last = c;
    return true;
  }
  bool complete() const { return last == 'h'; }
  friend bool operator==(const letters&, const letters&) = default;
};
struct letters_apart : letters {
  friend bool operator==(const letters_apart&, const letters_apart&) = delete;
};
}  // namespace

TEST_CASE("a mask looks through the vocabulary once for each state that comes back", "[infer]") {
  const std::vector<std::string> all = words();
  const auto end = static_cast<std::int32_t>(all.size() - 1);
  const auto tree = std::make_shared<const inf::vocabulary_trie>(
      std::ssize(all), [&](std::int32_t t) { return std::string_view(all[static_cast<std::size_t>(t)]); });
  const inf::logits_mask kept = inf::mask_by(letters{}, tree, {end});
  const inf::logits_mask made = inf::mask_by(letters_apart{}, tree, {end});
  std::vector<std::int32_t> answer;
  const auto masked = [&](const inf::logits_mask& mask) {
    std::vector<double> logits(all.size());
    mask(answer, logits);
    return logits;
  };
  for (int i = 0; i < 40; ++i) {  // nine states, more than are kept
    CAPTURE(i);
    CHECK(masked(kept) == masked(made));
    answer.push_back('a' + i * 5 % 8);
  }
  answer = {'b', 'h'};
  masked(kept);
  const std::int64_t before = letters::taken;
  const std::vector<double> again = masked(kept);
  CHECK(letters::taken - before == 2);  // of the answer alone
  CHECK(again[static_cast<std::size_t>(end)] == 0);
  CHECK(again['h'] < -1e300);
  std::vector<double> fewer(all.size() - 1);
  kept(answer, fewer);  // another number of logits is another set
  CHECK(fewer['b'] == 0);
  CHECK(fewer['z'] < -1e300);
  answer = {'z'};
  for (const double x : masked(kept)) CHECK(x < -1e300);
}

TEST_CASE("masks of several automata share sets within their bytes, and are those of each alone, from several threads",
          "[infer]") {
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  const std::vector<std::string> all = words();
  const auto end = static_cast<std::int32_t>(all.size() - 1);
  const auto tree = std::make_shared<const inf::vocabulary_trie>(
      std::ssize(all), [&](std::int32_t t) { return std::string_view(all[static_cast<std::size_t>(t)]); });
  const auto sets = std::make_shared<inf::token_set_cache>(4000);  // some ten of the sets
  std::vector<std::shared_ptr<const inf::byte_dfa>> automata;
  for (const char* pattern : {"[a-f]{5}(x|y)*z", "([ab]c|d){3,9}", "(name|true){1,4}1", "[0-9]{1,12}"})
    automata.push_back(inf::compile_regex(pattern));
  std::atomic<int> wrong{0}, masked{0}, above{0};
  const auto work = [&](std::uint32_t thread) {
    std::mt19937 random(seed + thread);
    std::vector<std::shared_ptr<inf::dfa_masks>> masks(automata.size());
    for (int i = 0; i < 60; ++i) {
      const std::size_t which = random() % automata.size();
      if (!masks[which] || random() % 8 == 0)  // those of one that goes are forgotten
        masks[which] = std::make_shared<inf::dfa_masks>(automata[which], tree, std::vector<std::int32_t>{end}, sets);
      const inf::logits_mask shared = masks[which]->mask();
      const inf::logits_mask alone = inf::mask_by(inf::dfa_position(*automata[which]), tree, {end});
      std::vector<std::int32_t> answer;
      for (int k = 0; k < 12; ++k) {
        const std::size_t vocabulary = all.size() - random() % 2;
        std::vector<double> logits(vocabulary), expected(vocabulary);
        shared(answer, logits);
        alone(answer, expected);
        wrong += logits != expected;
        above += sets->bytes() > sets->most_bytes();
        ++masked;
        std::vector<std::int32_t> next;
        for (std::int32_t t = 0; t < end; ++t)
          if (static_cast<std::size_t>(t) < vocabulary && expected[static_cast<std::size_t>(t)] == 0) next.push_back(t);
        if (next.empty()) break;
        answer.push_back(next[random() % next.size()]);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(above == 0);
  CHECK(masked > 500);
  CHECK(sets->bytes() == 0);  // nobody is left
}

TEST_CASE("a cache of token sets forgets the longest unused ones, and finds each of the others once", "[infer]") {
  using set = inf::token_set_cache::token_set;
  inf::token_set_cache one_set;
  one_set.get(one_set.new_owner(), 0, 1000, [] { return set(1000); });
  const std::size_t size = one_set.bytes();
  CHECK(size >= 125);
  inf::token_set_cache cache(3 * size + size / 2);
  const std::uint64_t a = cache.new_owner(), b = cache.new_owner();
  CHECK(a != b);
  int made = 0;
  const auto get = [&](std::uint64_t owner, std::int32_t state, std::size_t tokens = 1000) {
    const int before = made;
    const auto found = cache.get(owner, state, tokens, [&] {
      ++made;
      set out(tokens);
      out[static_cast<std::size_t>(state)] = true;
      return out;
    });
    CHECK(found->size() == tokens);
    CHECK(std::count(found->begin(), found->end(), true) == 1);
    CHECK((*found)[static_cast<std::size_t>(state)]);
    return made > before;
  };
  for (const std::int32_t state : {1, 2}) CHECK(get(a, state));
  CHECK(get(b, 1));
  CHECK_FALSE(get(a, 1));
  CHECK(get(b, 2));  // a's 2 goes
  CHECK(cache.sets(a) == 1);
  CHECK(cache.sets(b) == 2);
  CHECK_FALSE(get(a, 1));
  CHECK(get(a, 2));  // b's 1 goes
  CHECK_FALSE(get(b, 2));
  CHECK(cache.bytes() == 3 * size);
  CHECK(get(b, 2, 500));  // of other tokens
  CHECK(cache.bytes() < 3 * size);
  CHECK(get(b, 3, 100'000));  // too large to keep
  CHECK(get(b, 3, 100'000));
  CHECK_FALSE(get(a, 2));
  cache.forget(a);
  CHECK(cache.sets(a) == 0);
  CHECK(cache.sets(b) == 1);
  CHECK_FALSE(get(b, 2, 500));
  cache.forget(b);
  CHECK(cache.bytes() == 0);
}
