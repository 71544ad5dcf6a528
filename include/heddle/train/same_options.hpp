// heddle/train/same_options.hpp: finds ranks with different options before training starts.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/schedule/table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace heddle::inline v0::train {

/// A number that tells tables apart, as good as surely: FNV-1a of all that a table says.
constexpr std::uint64_t fingerprint(schedule::table_view t) noexcept {
  std::uint64_t h = 14695981039346656037u;
  const auto add = [&](int value) { h = (h ^ static_cast<std::uint32_t>(value)) * 1099511628211u; };
  add(t.microbatches());
  add(t.chains());
  for (const int r : t.rank_of_stage()) add(r);
  for (const int s : t.next_table()) add(s);
  for (int r = 0; r < t.ranks(); ++r)
    for (const schedule::action& a : t.list(r)) {
      add(r);
      add(static_cast<int>(a.kind));
      add(a.stage);
      add(a.microbatch);
      add(a.overlaps_next ? 1 : 0);
    }
  return h;
}

/// Compares what this rank was told, in words, with what rank 0 was. Called on all ranks of `all` together.
/// Errors: `config_error` on the ranks that differ.
template <communicator Communicator>
void require_same_options(Communicator& all, const std::string& mine) {
  std::string first = mine;
  auto length = static_cast<std::int64_t>(first.size());
  all.broadcast(std::span<std::int64_t>(&length, 1), 0);
  first.resize(static_cast<std::size_t>(length));
  all.broadcast(std::span<char>(first), 0);
  if (first == mine) return;
  throw config_error(
      text_of({"heddle: rank ", all.rank(), " has other options than rank 0: ", mine, "; rank 0: ", first}));
}

}  // namespace heddle::inline v0::train
