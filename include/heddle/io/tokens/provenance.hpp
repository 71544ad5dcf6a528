// heddle/io/tokens/provenance.hpp: file and bytes of a step's samples, and a digest.
#pragma once

#include <heddle/core/random.hpp>
#include <heddle/io/dataset.hpp>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>

namespace heddle::inline v0::io {

/// Bytes [first, first + bytes) of a file.
struct file_range {
  std::filesystem::path file{};
  std::int64_t first = 0, bytes = 0;
};

/// 64 bits of a sample: other pieces, or in another order, give others. `order`: what has `each_piece`, as `gpt_order`,
/// `shard_order` or a `blended_source`. `corpus`: its `fingerprint()`.
template <class Order>
std::uint64_t sample_digest(const Order& order, std::uint64_t corpus, std::int64_t sample) {
  std::uint64_t value = corpus;
  order.each_piece(sample, [&](auto... numbers) {
    (..., (value = counter_random(value, 0x70726f76u).integer(static_cast<std::uint64_t>(numbers))));
  });
  return value;
}

/// The digest of samples [first, first + count), such as a step: the sum modulo 2^64 of theirs. It depends neither on
/// ranks nor on the order within the step: the digests of parts that ranks have add up to that of the whole. A sample
/// that is changed, left out or repeated changes it.
template <class Order>
std::uint64_t digest_of(const Order& order, std::uint64_t corpus, sample_block block) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < block.count; ++i) sum += sample_digest(order, corpus, block.first + i);
  return sum;
}

/// Lines `sample 17: c4.bin bytes 20480 to 22530, document 12 tokens 0 to 1025`, one for each piece of samples [first,
/// first + count). `store`: a `token_store` with `bytes_of(document, first, count)`, such as `megatron_corpus`.
template <class Store, class Order>
  requires requires(const Store& s, std::int64_t n) {
    { s.bytes_of(n, n, n) } -> std::same_as<file_range>;
  }
std::string explain(const Store& store, const Order& order, sample_block block) {
  std::string text;
  for (std::int64_t i = block.first; i < block.first + block.count; ++i)
    order.each_piece(i, [&](std::int64_t document, std::int64_t first, std::int64_t count) {
      const file_range at = store.bytes_of(document, first, count);
      text += "sample " + std::to_string(i) + ": " + at.file.string() + " bytes " + std::to_string(at.first) + " to " +
              std::to_string(at.first + at.bytes) + ", document " + std::to_string(document) + " tokens " +
              std::to_string(first) + " to " + std::to_string(first + count) + "\n";
    });
  return text;
}

}  // namespace heddle::inline v0::io
