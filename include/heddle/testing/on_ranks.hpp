// heddle/testing/on_ranks.hpp: runs a body on every rank, and returns the results of all.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/testing/report.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {
namespace testing {

/// What the ranks of `on_ranks` gave: a result per rank, and the first error if one threw.
/// Assertions of most test frameworks are not for several threads: let ranks return what they found, and assert here.
template <class R>
struct [[nodiscard]] rank_results {
  /// Empty for a rank that did not get to its end.
  std::vector<std::optional<R>> by_rank{};
  /// "" or the text of the error that ended the ranks: it begins with the rank that failed first.
  std::string error{};
  /// The error itself.
  std::exception_ptr exception{};

  bool ok() const noexcept { return !exception; }
  /// The result of one rank. Errors: rethrows the first error if there is none.
  const R& operator[](int rank) const {
    const auto& result = by_rank.at(static_cast<std::size_t>(rank));
    if (!result && exception) std::rethrow_exception(exception);
    return result.value();
  }
  /// Whether no rank threw and each returned this.
  template <class V>
  bool all_are(const V& value) const {
    for (const auto& result : by_rank)
      if (!result || !(*result == value)) return false;
    return !exception;
  }
};

/// `"all 4 ranks came to their end"`, or the error.
template <class R>
std::string to_string(const rank_results<R>& results) {
  if (!results.ok()) return results.error;
  std::string text = "all ";
  text += std::to_string(results.by_rank.size());
  return text + " ranks came to their end";
}

/// The result of a body that returns none.
struct nothing {
  friend constexpr bool operator==(nothing, nothing) = default;
};

/// The reports of all ranks as one, the first failure preceded by its rank.
inline report joined(const rank_results<report>& results) {
  report all;
  if (!results.ok()) all += failure(results.error, 0);
  for (std::size_t r = 0; r < results.by_rank.size(); ++r) {
    if (!results.by_rank[r]) continue;
    report one = *results.by_rank[r];
    if (!one.ok()) {
      std::string text = "rank ";
      text += std::to_string(r);
      text += ": ";
      one.what = text + one.what;
    }
    all += std::move(one);
  }
  return all;
}

/// Runs `body(world)` on each rank of the mesh, threads of this process on the `threads` transport, and waits for all.
/// Results are kept per rank; a body that returns nothing gives `nothing`. A rank that throws ends all others: it never
/// hangs, and `options.timeout` (10 seconds here) ends a world whose ranks wait for each other.
/// With another transport, `on_ranks<hd::mpi>(mesh, body)`, ranks are processes that all call this: each gets the
/// results of all, which must be trivially copyable, and if a rank throws, the same error and no results.
/// Errors: none is thrown for what the body does; see `rank_results::error`.
template <transport Transport = threads, mesh_like Mesh, class Body>
auto on_ranks(const Mesh& mesh, const launch_options& options, Body&& body) {
  using world_type = world<Transport, Mesh>;
  using returned = std::remove_cvref_t<std::invoke_result_t<Body&, world_type&>>;
  using result = std::conditional_t<std::is_void_v<returned>, nothing, returned>;
  constexpr bool in_one_process = std::is_same_v<Transport, threads>;
  static_assert(
      in_one_process || std::is_trivially_copyable_v<result>,
      "heddle: on_ranks on processes: results of the body travel as bytes; return numbers, or structs of them");
  rank_results<result> all;
  all.by_rank.resize(static_cast<std::size_t>(mesh.size()));
  const auto of_this_rank = [&body](auto& w) {
    if constexpr (std::is_void_v<returned>) {
      body(w);
      return nothing{};
    } else {
      return body(w);
    }
  };
  try {
    launch<Transport>(mesh, options, [&](auto& w) {
      if constexpr (in_one_process) {
        all.by_rank[static_cast<std::size_t>(w.rank())].emplace(of_this_rank(w));
      } else {
        const result mine = of_this_rank(w);
        std::vector<result> results(static_cast<std::size_t>(w.size()), mine);
        w.control().all_gather(std::span(&mine, 1), std::span(results));
        for (std::size_t r = 0; r < results.size(); ++r) all.by_rank[r].emplace(results[r]);
      }
    });
  } catch (const std::exception& e) {
    all.exception = std::current_exception();
    all.error = e.what();
  } catch (...) {
    all.exception = std::current_exception();
    all.error = "an exception that is not a std::exception";
  }
  if constexpr (!in_one_process)
    if (all.exception)
      for (auto& one : all.by_rank) one.reset();
  return all;
}
template <transport Transport = threads, mesh_like Mesh, class Body>
  requires(!std::is_same_v<std::remove_cvref_t<Body>, launch_options>)
auto on_ranks(const Mesh& mesh, Body&& body) {
  launch_options options;
  options.timeout = std::chrono::milliseconds(10'000);
  return on_ranks<Transport>(mesh, options, body);
}

}  // namespace testing
}  // namespace heddle::inline v0
