#include <heddle/core/config.hpp>

#if __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/engine.hpp>
#include <heddle/infer/text_output.hpp>
#include <heddle/io/tokenizer/load.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace inf = heddle::infer;
namespace io = heddle::io;

namespace {

io::tokenizer gpt2() {
  return io::load_tokenizer(HEDDLE_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json");
}

// The likeliest token at position p is the text's token p.
struct reciting_runner {
  using scalar = float;
  std::vector<std::int32_t> text{};
  inf::step_limits limits() const {
    return {.vocabulary = 60000, .context = 256, .block_rows = 16, .blocks = 64, .max_rows = 64};
  }
  void run(const inf::step& s, std::span<float> logits) {
    std::size_t wanted = 0;
    for (const inf::sequence_rows& q : s.sequences)
      for (; wanted < s.wanted.size() && s.wanted[wanted] < q.first_row + q.rows; ++wanted) {
        const std::span<float> row = logits.subspan(wanted * 60000, 60000);
        std::fill(row.begin(), row.end(), 0.0f);
        const auto next = static_cast<std::size_t>(q.position + s.wanted[wanted] - q.first_row + 1);
        row[next < text.size() ? static_cast<std::size_t>(text[next]) : 0] = 1;
      }
  }
};

struct result {
  std::string text{};
  inf::finish_reason finish = inf::finish_reason::none;
  std::int64_t tokens = 0;
};

template <class Engine>
result recited(Engine& engine, inf::request r, const std::vector<std::string>& stops) {
  result got;
  inf::text_output output(gpt2(), stops);
  engine.submit(std::move(r));
  while (!engine.idle())
    for (const inf::event& e : engine.step()) {
      const inf::text_part part = output.push(e, engine);
      CHECK((!output.ended() || part.finish != inf::finish_reason::none || part.text.empty()));
      got.text += part.text;
      if (part.finish != inf::finish_reason::none) got.finish = part.finish;
    }
  CHECK(output.ended());
  got.tokens = engine.counts().answer_tokens;
  return got;
}

}  // namespace

TEST_CASE("an answer's text ends before a stop string, and the engine ends the request", "[infer][tokenizer]") {
  const std::string all = "One, two, three; caf\u00e9 \u4f60\u597d and a word \U0001F600 more.";
  const io::tokenizer t = gpt2();
  reciting_runner runner;
  for (const io::token_id id : t.encode(all)) runner.text.push_back(static_cast<std::int32_t>(id));
  const inf::request r{
      .prompt = {runner.text[0]}, .max_tokens = std::ssize(runner.text) - 1, .sampling = {.temperature = 0}};
  SECTION("no stop string") {
    inf::engine engine(runner);
    const result got = recited(engine, r, {});
    CHECK(got.text == all.substr(1));
    CHECK(got.finish == inf::finish_reason::length);
  }
  SECTION("a stop string across tokens") {
    inf::engine engine(runner);
    const result got = recited(engine, r, {"zzz", "\u597d and"});
    CHECK(got.text == "ne, two, three; caf\u00e9 \u4f60");
    CHECK(got.finish == inf::finish_reason::stop);
    CHECK(got.tokens < std::ssize(runner.text) - 5);
    CHECK(engine.counts().cache.used == 0);
  }
  SECTION("one that only begins") {
    inf::engine engine(runner);
    const result got = recited(engine, r, {"more.."});
    CHECK(got.text == all.substr(1));
    CHECK(got.finish == inf::finish_reason::length);
  }
  SECTION("a stop token is not part of the text") {
    inf::engine engine(runner, {.end_tokens = {runner.text[3]}});
    const result got = recited(engine, r, {});
    CHECK(got.text == t.decode(std::vector<io::token_id>{static_cast<io::token_id>(runner.text[1]),
                                                         static_cast<io::token_id>(runner.text[2])}));
    CHECK(got.finish == inf::finish_reason::stop);
  }
  SECTION("cut within a character") {
    inf::request cut = r;
    while (t.decode(std::vector<io::token_id>(runner.text.begin() + 1, runner.text.begin() + 1 + cut.max_tokens))
               .find("\ufffd") == std::string::npos)
      --cut.max_tokens;
    inf::engine engine(runner);
    const result got = recited(engine, cut, {});
    CHECK(got.text.ends_with("\ufffd"));
    CHECK(got.finish == inf::finish_reason::length);
  }
}
#endif
