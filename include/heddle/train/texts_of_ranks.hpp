// heddle/train/texts_of_ranks.hpp: gives each rank the texts of all.
#pragma once

#include <heddle/comm/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0::train::detail {

// All ranks' texts, one after another, on each of them.
template <communicator Communicator>
std::string texts_of_ranks(Communicator& all, const std::string& mine) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(all.size()));
  const auto count = static_cast<std::int64_t>(mine.size());
  all.all_gather(std::span<const std::int64_t>(&count, 1), std::span<std::int64_t>(bytes));
  std::int64_t sum = 0;
  for (const std::int64_t n : bytes) sum += n;
  std::string text(static_cast<std::size_t>(sum), '\0');
  all.all_gather_v(std::span<const char>(mine), std::span<char>(text), std::span<const std::int64_t>(bytes));
  return text;
}

}  // namespace heddle::inline v0::train::detail
