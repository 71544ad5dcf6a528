// heddle/rendezvous/impl/rendezvous.hpp: bodies of heddle/rendezvous/rendezvous.hpp.
#pragma once

#include <heddle/rendezvous/rendezvous.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/core/config.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace heddle::inline v0 {
namespace detail {

HEDDLE_INLINE void require_rank_of(const char* what, int rank, int size) {
  if (size > 0 && rank >= 0 && rank < size) return;
  throw comm_error(text_of({"heddle: ", what, ": rank ", rank, " is not one of ", size, " ranks"}));
}

HEDDLE_INLINE std::string absent_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += "rank ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

HEDDLE_INLINE std::string keyed_rendezvous::message_key(const std::string& key, int from, int to) {
  return text_of({key, '@', from, '>', to});
}

HEDDLE_INLINE void keyed_rendezvous::absent(int rank, const deadline& until, const std::string& place,
                                            const std::string& key, int giver) {
  throw comm_error(text_of({"heddle: rank ", rank, " has waited ", until.text(), " at the rendezvous ", place,
                            " for rank ", giver, " to give \"", key, '"'}));
}

}  // namespace detail
}  // namespace heddle::inline v0
