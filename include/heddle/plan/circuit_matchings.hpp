// heddle/plan/circuit_matchings.hpp: uneven traffic between ranks as matchings of optical circuits.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/mesh/topology.hpp>
#include <heddle/plan/reconfigure.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0::plan {

/// Bytes that each rank sends to each other: row r has those of rank r. What a rank keeps, the diagonal, takes no circuit.
class rank_traffic {
 public:
  /// Errors: `config_error` if there are not ranks times ranks entries, for one below 0, and if a rank sends or
  /// receives more than 2^53 bytes.
  HEDDLE_INLINE rank_traffic(int ranks, std::vector<std::int64_t> bytes);

  int ranks() const noexcept { return ranks_; }
  /// What `from` sends to `to`; 0 where they are one.
  std::int64_t operator()(int from, int to) const noexcept {
    return bytes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(to)];
  }
  const std::vector<std::int64_t>& bytes() const noexcept { return bytes_; }
  /// The most that one rank sends, or one receives.
  std::int64_t most_bytes() const noexcept { return most_bytes_; }
  /// The most ranks that one rank sends to, or that send to one.
  int degree() const noexcept { return degree_; }

 private:
  int ranks_;
  std::vector<std::int64_t> bytes_;  // zeros on the diagonal
  std::int64_t most_bytes_ = 0;
  int degree_ = 0;
};

/// What a rank sends over one circuit.
struct circuit_message {
  int from = 0;
  int to = 0;
  std::int64_t bytes = 0;
  friend constexpr bool operator==(const circuit_message&, const circuit_message&) = default;
};

/// Messages at the same time: each rank sends one at most, and receives one at most.
using matching = std::vector<circuit_message>;

/// Traffic in the fewest matchings of whole messages: as many as its degree. Long messages are together, as far as that
/// number allows. Work: messages times ranks. Source: König 1916, Math. Annalen 77: a bipartite graph's edges need as many colors
/// as its largest degree; the proof's alternating paths, the longest messages first.
[[nodiscard]] HEDDLE_INLINE std::vector<matching> matchings(const rank_traffic& traffic);

/// Traffic in matchings whose longest messages together are as long as the busiest rank's bytes, the least there is:
/// messages are cut. At most (ranks - 1)^2 + 1 matchings, for a fabric that switches in almost no time.
/// Source: Birkhoff 1946; von Neumann 1953; the traffic is filled up until all ranks send and receive the same.
[[nodiscard]] HEDDLE_INLINE std::vector<matching> birkhoff(const rank_traffic& traffic);

/// Traffic in the rounds of a plain all_to_all: in the k-th rank r sends to r + k, around. Rounds without bytes are left
/// out.
[[nodiscard]] HEDDLE_INLINE std::vector<matching> shifts(const rank_traffic& traffic);

/// What matchings take one after the other: each is switched to and takes a circuit's latency and its longest message at
/// the bandwidth of a rank, all of whose ports point at one peer. Units: seconds.
[[nodiscard]] HEDDLE_INLINE double matched_seconds(const std::vector<matching>& rounds, const circuit_switch& fabric);

/// No matchings take less: the bytes of the busiest rank, and a switch and a latency for each of its peers. Units: seconds.
[[nodiscard]] HEDDLE_INLINE double least_matched_seconds(const rank_traffic& traffic, const circuit_switch& fabric);

/// Ways to send uneven traffic.
enum class traffic_way : std::uint8_t {
  fixed,     ///< all messages at once over the links that are there, which is never switched
  fewest,    ///< `matchings`
  birkhoff,  ///< `birkhoff`
  shifts     ///< `shifts`
};
/// The word for a way.
HEDDLE_INLINE std::string to_string(traffic_way way);

/// How traffic is sent.
struct traffic_plan {
  traffic_way way = traffic_way::fixed;  ///< the cheapest; of equal ones the first
  double seconds = 0;
  std::vector<matching> rounds{};      ///< none on fixed links
  std::array<double, 4> seconds_of{};  ///< what each way takes; infinity where a message finds no way
};

/// The cheapest way for traffic on a fabric that stands as `start`; circuits stay as the last matching left them.
/// Errors: `config_error` for a switch that cannot be or another number of ranks in `start`, as in `fabric_states`.
/// Source: Vijaya Kumar, Devraj and Singh 2025, arXiv:2509.15450, for the cost of rounds; the ways are classical.
[[nodiscard]] HEDDLE_INLINE traffic_plan plan_traffic(const rank_traffic& traffic, const topology& start,
                                                      const circuit_switch& fabric);
/// A line for each way, the chosen one first: seconds, matchings, bytes.
HEDDLE_INLINE std::string to_string(const traffic_plan& plan);

}  // namespace heddle::inline v0::plan

#if !defined(HEDDLE_SEPARATE_COMPILATION)
#include <heddle/plan/impl/circuit_matchings.hpp>
#endif
