// heddle/io/documents.hpp: a stream of tokens as documents of any length, in an endless order.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/io/permutation.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace heddle::inline v0::io {

/// How documents are held out and ordered.
struct documents_options {
  double validation = 0.0;  ///< part of the documents, the last ones, that training never sees
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::int64_t longest = 0;  ///< longer documents are cut into parts of so many tokens, each a document; 0: none is cut
};

/// Documents of a token stream, for trainers whose sharding has a context split (`train::document_source`). Every epoch visits each
/// training document once, in an order computed from (seed, epoch). A document's last token learns the separator behind it, or
/// nothing where there is none. Documents without tokens are left out and counted. The tokens are not copied: they must outlive this.
template <class Token>
class basic_documents {
 public:
  /// The target of a token that learns nothing.
  static constexpr std::int32_t ignored = -100;

  /// Documents are what lies between separators. Errors: `config_error` for options, `io_error` if no document is left.
  basic_documents(std::span<const Token> tokens, Token separator, documents_options options = {})
      : tokens_(tokens), options_(checked(options)) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t begin = 0; begin < size;) {
      const auto end = std::find(tokens.begin() + begin, tokens.end(), separator) - tokens.begin();
      add(begin, end, end < size);
      begin = end + 1;
    }
    finish();
  }
  /// Document d has the tokens [starts[d], starts[d + 1]). Errors: `io_error` for starts that fall or leave the tokens; as above.
  basic_documents(std::span<const Token> tokens, std::span<const std::int64_t> starts, documents_options options = {})
      : tokens_(tokens), options_(checked(options)) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const std::int64_t before = i == 0 ? 0 : starts[i - 1];
      if (starts[i] < before || starts[i] > size)
        throw io_error("heddle: document " + std::to_string(i) + " begins at token " + std::to_string(starts[i]) +
                       "; expected " + std::to_string(before) + " to " + std::to_string(size) +
                       ", behind the one before and within the tokens");
      if (i > 0) add(before, starts[i], false);
    }
    finish();
  }

  const documents_options& options() const noexcept { return options_; }
  /// Those of one training epoch.
  std::int64_t documents() const noexcept { return static_cast<std::int64_t>(ends_.size()) - held_out_; }
  std::int64_t validation_samples() const noexcept { return held_out_; }
  /// How many had no tokens.
  std::int64_t empty() const noexcept { return empty_; }
  std::int64_t longest() const noexcept { return longest_; }

  /// The document that is number `i` of the endless training order. Constant time.
  std::int64_t train_document(std::int64_t i) const noexcept {
    const std::int64_t n = documents();
    if (!options_.shuffle) return i % n;
    return permutation(n, options_.seed, static_cast<std::uint64_t>(i / n))(i % n);
  }
  /// The document that is held-out number `i`; these are not shuffled.
  std::int64_t validation_document(std::int64_t i) const noexcept { return documents() + i; }

  std::int64_t length(std::int64_t document) const noexcept {
    const extent& e = ends_[static_cast<std::size_t>(document)];
    return e.end - e.begin;
  }
  /// Tokens [first, first + inputs.size()) of a document and, for each, the token behind it.
  /// Shapes: as many targets as inputs. Errors: `config_error` if these are not in the document.
  template <class Id>
  void fill(std::int64_t document, std::int64_t first, std::span<Id> inputs, std::span<Id> targets) const {
    const auto n = static_cast<std::int64_t>(inputs.size());
    if (document < 0 || document >= static_cast<std::int64_t>(ends_.size()) || first < 0 ||
        n > length(document) - first || targets.size() != inputs.size())
      throw config_error("heddle: tokens " + std::to_string(first) + " to " + std::to_string(first + n) +
                         " and as many targets of document " + std::to_string(document) + " asked, got room for " +
                         std::to_string(targets.size()) + " targets; there are " + std::to_string(ends_.size()) +
                         " documents" +
                         (document >= 0 && document < static_cast<std::int64_t>(ends_.size())
                              ? ", this one of " + std::to_string(length(document)) + " tokens"
                              : std::string()));
    const extent& e = ends_[static_cast<std::size_t>(document)];
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = e.begin + first + i;
      inputs[static_cast<std::size_t>(i)] = static_cast<Id>(tokens_[static_cast<std::size_t>(at)]);
      targets[static_cast<std::size_t>(i)] =
          at + 1 < e.end || e.goes_on ? static_cast<Id>(tokens_[static_cast<std::size_t>(at + 1)]) : Id(ignored);
    }
  }

 private:
  struct extent {
    std::int64_t begin = 0, end = 0;
    bool goes_on = false;  // whether the token behind the last is learned
  };
  static const documents_options& checked(const documents_options& o) {
    if (!(o.validation >= 0.0 && o.validation < 1.0))
      throw config_error("heddle: the validation part must be in [0, 1), got " + number_text(o.validation));
    if (o.longest < 0)
      throw config_error("heddle: documents' longest must be at least 1 token, or 0 to cut none, got " +
                         std::to_string(o.longest));
    return o;
  }
  void add(std::int64_t begin, std::int64_t end, bool goes_on) {
    if (begin == end) ++empty_;
    while (begin < end) {
      const std::int64_t stop = options_.longest > 0 ? (std::min)(end, begin + options_.longest) : end;
      ends_.push_back({begin, stop, stop < end || goes_on});
      longest_ = (std::max)(longest_, stop - begin);
      begin = stop;
    }
  }
  void finish() {
    const auto n = static_cast<std::int64_t>(ends_.size());
    const std::int64_t needed = options_.validation > 0.0 ? 2 : 1;
    if (n < needed)
      throw io_error("heddle: the data has " + std::to_string(n) + " documents with tokens in them; expected at least " +
                     std::to_string(needed));
    if (options_.validation > 0.0)
      held_out_ = std::clamp(static_cast<std::int64_t>(static_cast<double>(n) * options_.validation), std::int64_t{1},
                             n - 1);
  }

  std::span<const Token> tokens_;
  documents_options options_;
  std::vector<extent> ends_{};
  std::int64_t held_out_ = 0, empty_ = 0, longest_ = 0;
};

/// Of token ids of 32 bits, 16 bits and bytes.
template <class Token, class How>
basic_documents(std::span<Token>, How, documents_options = {}) -> basic_documents<std::remove_const_t<Token>>;

}  // namespace heddle::inline v0::io
