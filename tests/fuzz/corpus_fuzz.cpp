// Text as tokens: a file's tokens are its bytes, and every sample lies in it.
#include <heddle/io/corpus.hpp>
#include <heddle/io/dataset.hpp>

#include "fuzz.hpp"

HEDDLE_FUZZ_TARGET(corpus) {
  namespace io = heddle::io;
  static const fuzz::memory_file file;
  fuzz::bytes in(data, size);
  const int context = in.below(40), batch = in.below(9), share = in.below(5);
  const std::uint64_t seed = in.byte();
  file.fill(in.rest());
  fuzz::accepted([&] {
    const io::corpus text(file.path());
    fuzz::require(
        std::string_view(reinterpret_cast<const char*>(text.tokens().data()), text.tokens().size()) == in.rest(),
        "tokens are the bytes of the file");
    const io::dataset all(text.tokens(), {.context = context, .batch = batch, .validation = share / 4.0, .seed = seed});
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(context)), targets(tokens.size());
    for (std::int64_t k = 0; k < 4; ++k) {
      all.fill_train<std::int32_t>({k, 1}, tokens, targets);
      for (std::size_t i = 1; i < tokens.size(); ++i)
        fuzz::require(tokens[i] == targets[i - 1], "a target is the next token");
    }
  });
}
