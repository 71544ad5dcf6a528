// The collectives that rounds.cpp and agreement.cpp have in common.
#pragma once

#include <heddle/comm/algorithm/direct.hpp>
#include <heddle/comm/algorithm/recursive_doubling.hpp>
#include <heddle/comm/algorithm/ring.hpp>
#include <heddle/comm/round_cost.hpp>
#include <heddle/comm/rounds.hpp>

#include <string_view>

namespace agreement {

using heddle::comm_operation;

inline heddle::round_table rounds_of(std::string_view name, int ranks) {
  if (name == "ring") return heddle::algo::ring::rounds<comm_operation::all_reduce>(ranks, 0);
  if (name == "recursive_doubling")
    return heddle::algo::recursive_doubling::rounds<comm_operation::all_reduce>(ranks, 0);
  return heddle::algo::scattered<1>::rounds<comm_operation::all_to_all>(ranks, 0);
}

}  // namespace agreement
