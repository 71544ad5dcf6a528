// The collectives that rounds.cpp and agreement.cpp have in common.
#pragma once

#include <heddle/collective/algorithm/direct.hpp>
#include <heddle/collective/algorithm/recursive_doubling.hpp>
#include <heddle/collective/algorithm/ring.hpp>
#include <heddle/collective/round_cost.hpp>
#include <heddle/collective/rounds.hpp>

#include <random>
#include <string_view>

namespace agreement {

using heddle::comm_operation;

// 12 rounds of up to 20 messages of 1 to 5 blocks between ranks taken at random, the same in both programs: ranks get
// ahead of each other, and messages of long and short ways meet on links.
inline heddle::round_table random_rounds(int ranks) {
  heddle::round_builder rounds(comm_operation::all_to_all, ranks, 0, ranks * ranks, 1);
  std::mt19937 random(20261121);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int k = 0; k < 12; ++k)
    for (int i = 0; i < 20; ++i) {
      const int from = below(ranks), to = below(ranks), blocks = 1 + below(5);
      if (from == to) continue;
      heddle::round_builder& message = rounds.send(k, from, to);
      for (int b = 0; b < blocks; ++b) message.block(from * ranks + (to + b) % ranks);
    }
  return rounds.take();
}

inline heddle::round_table rounds_of(std::string_view name, int ranks) {
  if (name == "ring") return heddle::algo::ring::rounds<comm_operation::all_reduce>(ranks, 0);
  if (name == "recursive_doubling")
    return heddle::algo::recursive_doubling::rounds<comm_operation::all_reduce>(ranks, 0);
  if (name == "random") return random_rounds(ranks);
  return heddle::algo::scattered<1>::rounds<comm_operation::all_to_all>(ranks, 0);
}

}  // namespace agreement
