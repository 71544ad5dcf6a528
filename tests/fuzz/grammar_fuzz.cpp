// Regular expressions and JSON schemas that constrain answers: what compiles has no dead ends, a text that it accepts is what it should be (JSON, UTF-8), and what is refused says why.
// The first byte says which of the two it is, eight more choose the text.
#if __has_include(<nlohmann/json.hpp>)
#include <heddle/infer/regex.hpp>
#include <heddle/infer/schema_grammar.hpp>

#include "fuzz.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

HEDDLE_FUZZ_TARGET(grammar) {
  namespace inf = heddle::infer;
  fuzz::bytes in(data, size);
  const bool schema = in.byte() % 2 == 1;
  std::uint64_t choice = 0;
  for (int i = 0; i < 8; ++i) choice = choice << 8 | in.byte();
  const std::string_view text = in.rest();
  constexpr inf::grammar_limits small{.states = 4000, .table_entries = 100'000, .work = 1'000'000};
  std::shared_ptr<const inf::byte_dfa> dfa;
  try {
    if (schema) {
      heddle::io::parse_json(text, "x");  // the server has done so before
      dfa = inf::compile_schema(inf::ordered_schema::parse(text), std::bitset<256>().set(), small);
    } else {
      dfa = inf::compile_regex(text, std::bitset<256>().set(), small);
    }
  } catch (const inf::grammar_error& e) {
    fuzz::require(std::string_view(e.what()).starts_with("heddle: "), "it says why");
    return;
  } catch (const heddle::io_error&) {
    return;
  }
  std::int32_t state = 0;
  std::string taken;
  for (int i = 0; i < 300; ++i) {
    std::vector<unsigned char> possible;
    for (int c = 0; c < 256; ++c)
      if (dfa->next(state, static_cast<unsigned char>(c)) >= 0) possible.push_back(static_cast<unsigned char>(c));
    fuzz::require(!possible.empty() || dfa->accepting(state), "no text is a dead end");
    if (dfa->accepting(state) && schema)
      fuzz::require(nlohmann::json::accept(taken), "a text that is accepted is JSON");
    if (dfa->accepting(state))
      fuzz::require(!nlohmann::json(taken).dump(-1, ' ', false, nlohmann::json::error_handler_t::strict).empty(),
                    "a text that is accepted is UTF-8");
    if (possible.empty()) break;
    choice = choice * 6364136223846793005u + 1442695040888963407u;
    const unsigned char c = possible[(choice >> 33) % possible.size()];
    state = dfa->next(state, c);
    taken += static_cast<char>(c);
  }
}
#endif
