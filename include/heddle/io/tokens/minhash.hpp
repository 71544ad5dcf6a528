// heddle/io/tokens/minhash.hpp: signatures that tell documents alike (MinHash).
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/random.hpp>
#include <heddle/io/checksum.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::io {

/// A signature has `bands` times `rows` numbers; documents with a band alike are candidates.
struct minhash_options {
  int bands = 20, rows = 5;
  std::uint64_t seed = 0;
};

/// The part of document pairs of Jaccard similarity `s` that become candidates: 1 - (1 - s^rows)^bands.
/// Source: Leskovec, Rajaraman, Ullman, "Mining of massive datasets", section 3.4.2.
inline double candidate_probability(double s, const minhash_options& o) noexcept {
  return 1 - std::pow(1 - std::pow(s, o.rows), o.bands);
}

/// Sets of items become signatures: of every hash function the least value over the items. The part of numbers that two
/// signatures have alike estimates the Jaccard similarity of the sets. Source: Broder 1997.
class minhash {
 public:
  /// Errors: `config_error` for bands or rows below 1.
  explicit minhash(minhash_options options = {}) : options_(options) {
    if (options.bands < 1 || options.rows < 1)
      throw config_error("heddle: minhash: bands and rows are 1 or more, not " + std::to_string(options.bands) +
                         " and " + std::to_string(options.rows));
    const counter_random random(options.seed, 0x6d696e68617368u);
    for (std::uint64_t i = 0; i < size(); ++i) {
      factors_.push_back(random.integer(2 * i) | 1);
      terms_.push_back(random.integer(2 * i + 1));
    }
  }
  const minhash_options& options() const noexcept { return options_; }
  /// Numbers of a signature.
  std::size_t size() const noexcept {
    return static_cast<std::size_t>(options_.bands) * static_cast<std::size_t>(options_.rows);
  }

  /// The signature of a set; items may come several times. Items are hashes already, as of `token_shingles`.
  std::vector<std::uint32_t> signature(std::span<const std::uint64_t> items) const {
    std::vector<std::uint32_t> least(size(), (std::numeric_limits<std::uint32_t>::max)());
    for (const std::uint64_t x : items)
      for (std::size_t i = 0; i < least.size(); ++i)
        least[i] = (std::min)(least[i], static_cast<std::uint32_t>((x * factors_[i] + terms_[i]) >> 32));
    return least;
  }
  /// A key for each band: those of two signatures are alike where the bands are.
  std::vector<std::uint64_t> keys(std::span<const std::uint32_t> signature) const {
    std::vector<std::uint64_t> all;
    const auto rows = static_cast<std::size_t>(options_.rows);
    for (std::size_t b = 0; b < static_cast<std::size_t>(options_.bands); ++b) {
      const std::uint64_t band = b;
      all.push_back(checksum64()
                        .update(std::as_bytes(std::span(&band, 1)))
                        .update(std::as_bytes(signature.subspan(b * rows, rows)))
                        .value());
    }
    return all;
  }
  /// The part of the numbers of two signatures that are alike.
  static double alike(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) noexcept {
    std::size_t n = 0;
    for (std::size_t i = 0; i < a.size(); ++i) n += a[i] == b[i] ? 1 : 0;
    return static_cast<double>(n) / static_cast<double>(a.size());
  }

 private:
  minhash_options options_;
  std::vector<std::uint64_t> factors_{}, terms_{};
};

/// A hash of every `n` tokens behind each other; of all tokens, if they are fewer.
template <class Id>
std::vector<std::uint64_t> token_shingles(std::span<const Id> tokens, std::size_t n = 5) {
  const std::size_t one = (std::min)(n, tokens.size());
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; one > 0 && i + one <= tokens.size(); ++i)
    all.push_back(checksum64().update(std::as_bytes(tokens.subspan(i, one))).value());
  return all;
}

}  // namespace heddle::inline v0::io
