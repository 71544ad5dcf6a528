// heddle/io/tokens/best_fit.hpp: packs whole documents into samples of one length.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/io/permutation.hpp>
#include <heddle/io/tokens/token_store.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {

/// Bin of each item, with bins numbered from 0, by best fit decreasing: the longest items first, each into the bin with
/// the least room that it fits in, else a new one. At most 11/9 of the fewest bins, and one more.
/// `lengths`: 1 to `capacity`. Time: O(items + capacity / 64) for each item at worst; a few memory accesses as a rule.
/// Errors: `config_error` for a length that is none. Source: Ding et al., "Fewer truncations improve language
/// modeling", ICML 2024, arXiv:2404.10830, section 3.
HEDDLE_INLINE std::vector<std::int32_t> best_fit_bins(std::span<const std::int32_t> lengths, std::int64_t capacity);

/// How documents are packed.
struct best_fit_options {
  std::int64_t context = 2048;  ///< tokens of a pack, at most
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::int64_t first = 0, end = -1;  ///< documents [first, end) of the store; negative: to the last
  std::int64_t held_out = 0;         ///< the last documents of these, packed apart for validation
};

/// Packs of documents, for trainers whose sharding has a context split (`train::document_source`), on an axis of one
/// rank too: a step's `batch` counts packs, and attention stays inside each document. A document longer than the
/// context is cut into pieces of that length and a rest, each a document of its own. Its last token learns nothing.
/// Each epoch visits every pack once, in an order of (seed, epoch); a position counts packs, so the packing is part
/// of the order: it is a pure function of lengths and options. `store` must outlive it.
/// Memory: 24 bytes for each piece.
class packing {
 public:
  /// A piece of a document.
  struct piece {
    std::int64_t document = 0, first = 0;
    std::int32_t count = 0;
    bool goes_on = false;  ///< whether the token behind the last is learned
  };
  /// Errors: `config_error` for settings that cannot be; `io_error` if the documents have no tokens.
  template <token_store Store>
  packing(const Store& store, best_fit_options options) : options_(options) {
    if (options_.end < 0) options_.end = store.documents();
    require(store.documents());
    std::vector<std::int64_t> lengths;
    for (std::int64_t d = options_.first; d < options_.end; ++d) lengths.push_back(store.length(d));
    build(lengths);
  }

  const best_fit_options& options() const noexcept { return options_; }
  /// Of one epoch.
  std::int64_t packs() const noexcept { return train_packs_; }
  std::int64_t held_out_packs() const noexcept { return static_cast<std::int64_t>(begins_.size()) - 1 - train_packs_; }
  std::int64_t pieces() const noexcept { return static_cast<std::int64_t>(pieces_.size()); }
  const piece& piece_at(std::int64_t i) const noexcept { return pieces_[static_cast<std::size_t>(i)]; }
  /// Tokens of all packs, held-out ones too, over the room in them.
  double filled() const noexcept;

  /// Pieces [first, first + count) are in one pack.
  struct range {
    std::int64_t first = 0, count = 0;
  };
  range pack(std::int64_t p) const noexcept {
    const auto i = static_cast<std::size_t>(p);
    return {begins_[i], begins_[i + 1] - begins_[i]};
  }
  /// The pack that is number i of the endless training order. Constant time.
  std::int64_t train_pack(std::int64_t i) const noexcept {
    if (!options_.shuffle) return i % train_packs_;
    return permutation(train_packs_, options_.seed, static_cast<std::uint64_t>(i / train_packs_))(i % train_packs_);
  }
  /// Calls f(document, first, count) for the pieces of number i of that order.
  template <class F>
  void each_piece(std::int64_t i, F&& f) const {
    const range of = pack(train_pack(i));
    for (std::int64_t k = of.first; k < of.first + of.count; ++k)
      f(piece_at(k).document, piece_at(k).first, std::int64_t{piece_at(k).count});
  }
  friend std::string to_string(const packing& p) { return p.text(); }

 private:
  void require(std::int64_t documents) const;
  void build(std::span<const std::int64_t> lengths);
  void add(std::span<const std::int64_t> lengths, std::int64_t first, std::int64_t end);
  std::string text() const;

  best_fit_options options_;
  std::vector<piece> pieces_{};  // of pack after pack
  std::vector<std::int64_t> begins_{0};
  std::int64_t train_packs_ = 0, tokens_ = 0;
};

/// The packs of a store, as `trainer.run` takes them where its sharding has a context split.
template <token_store Store>
class packed_documents {
 public:
  /// The target of a token that learns nothing.
  static constexpr std::int32_t ignored = -100;

  /// `vocabulary`: of the model. Errors: `config_error`, as of `packing`, or if the vocabulary is below 1.
  packed_documents(const Store& store, best_fit_options options, std::int64_t vocabulary)
      : store_(&store), packing_(store, options), vocabulary_(vocabulary) {
    if (vocabulary < 1)
      throw config_error("heddle: a vocabulary has 1 or more tokens, not " + std::to_string(vocabulary));
  }

  const packing& order() const noexcept { return packing_; }
  /// Pieces of documents, those of all packs.
  std::int64_t documents() const noexcept { return packing_.pieces(); }
  std::int64_t length(std::int64_t piece) const noexcept { return packing_.piece_at(piece).count; }
  std::int64_t validation_samples() const noexcept { return packing_.held_out_packs(); }
  /// The pieces of number i of the endless order of packs.
  packing::range train_pack(std::int64_t i) const noexcept { return packing_.pack(packing_.train_pack(i)); }
  packing::range validation_pack(std::int64_t i) const noexcept { return packing_.pack(packing_.packs() + i); }

  /// Shapes: as `basic_documents::fill`. Errors: `config_error` if tokens are not in the piece; `io_error` naming
  /// document and place of a token that is not in the vocabulary.
  template <class Id>
  void fill(std::int64_t number, std::int64_t first, std::span<Id> inputs, std::span<Id> targets) const {
    const auto n = static_cast<std::int64_t>(inputs.size());
    if (number < 0 || number >= documents() || first < 0 || n > length(number) - first ||
        targets.size() != inputs.size())
      throw config_error("heddle: tokens " + std::to_string(first) + " to " + std::to_string(first + n) +
                         " and as many targets of piece " + std::to_string(number) + " of " +
                         std::to_string(documents()) + " asked, got room for " + std::to_string(targets.size()));
    if (n == 0) return;
    const packing::piece& p = packing_.piece_at(number);
    const bool more = first + n < p.count || p.goes_on;
    std::vector<Id> tokens(static_cast<std::size_t>(more ? n + 1 : n));
    store_->copy(p.document, p.first + first, std::span<Id>(tokens));
    for (std::size_t t = 0; t < tokens.size(); ++t)
      if (static_cast<std::int64_t>(tokens[t]) < 0 || static_cast<std::int64_t>(tokens[t]) >= vocabulary_)
        throw io_error("heddle: token " + std::to_string(p.first + first + static_cast<std::int64_t>(t)) +
                       " of document " + std::to_string(p.document) + " is " + std::to_string(tokens[t]) +
                       "; the model's vocabulary has " + std::to_string(vocabulary_));
    if (!more) tokens.push_back(Id(ignored));
    for (std::size_t t = 0; t < inputs.size(); ++t) {
      inputs[t] = tokens[t];
      targets[t] = tokens[t + 1];
    }
  }

 private:
  const Store* store_;
  packing packing_;
  std::int64_t vocabulary_;
};

}  // namespace heddle::inline v0::io

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/io/impl/tokens/best_fit.hpp>
#endif
