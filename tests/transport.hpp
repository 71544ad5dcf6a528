// The transport that a test program is for: threads, or with HEDDLE_TEST_MPI the processes that mpirun started. The same
// tests are compiled for both: every process runs all assertions, on results that all of them have been told.
#pragma once

#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/testing/on_ranks.hpp>
#if defined(HEDDLE_TEST_MPI)
#include <heddle/comm/mpi.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace transport_test {

namespace hd = heddle;

// Results as bytes: flat types, texts, lists, maps, pairs, and types whose function `members` ties what they hold.
template <class T>
concept has_members = requires(T& x) { members(x); };
template <class T>
concept is_map = requires { typename T::mapped_type; };

template <class T>
void pack(const T& x, std::string& to) {
  if constexpr (has_members<T>) {
    std::apply([&](auto&... m) { (pack(std::as_const(m), to), ...); }, members(const_cast<T&>(x)));
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    to.append(reinterpret_cast<const char*>(&x), sizeof x);
  } else if constexpr (requires { x.second; }) {
    pack(x.first, to);
    pack(x.second, to);
  } else {
    const std::size_t n = x.size();
    pack(n, to);
    for (const auto& e : x) pack(e, to);
  }
}
template <class T>
void unpack(T& x, const char*& from) {
  if constexpr (has_members<T>) {
    std::apply([&](auto&... m) { (unpack(m, from), ...); }, members(x));
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    std::memcpy(&x, from, sizeof x);
    from += sizeof x;
  } else if constexpr (requires { x.second; }) {
    unpack(x.first, from);
    unpack(x.second, from);
  } else if constexpr (is_map<T>) {
    std::size_t n = 0;
    unpack(n, from);
    for (x.clear(); n > 0; --n) {
      std::pair<typename T::key_type, typename T::mapped_type> e;
      unpack(e, from);
      x.insert(std::move(e));
    }
  } else {
    std::size_t n = 0;
    unpack(n, from);
    if constexpr (requires { x.resize(n); })
      x.resize(n);
    else
      x = T(static_cast<std::int64_t>(n));
    for (auto& e : x) unpack(e, from);
  }
}

#if defined(HEDDLE_TEST_MPI)

using transport = hd::mpi;
inline constexpr bool on_threads = false;

// How many ranks a launch can have here.
inline int most_ranks() {
  hd::detail::mpi_of_this_process(0, nullptr);
  int n = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  return n;
}
inline int process() {
  most_ranks();
  int r = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &r);
  return r;
}

// The kind of an error as a number, and what throws it where only the number and the text are known.
template <class... Kinds>
struct error_kinds {
  static int of(const std::exception& e) {
    int kind = 0;
    (void)((dynamic_cast<const Kinds*>(&e) != nullptr ? false : (++kind, true)) && ...);
    return kind;
  }
  static void raise(int wanted, const std::string& text) {
    int kind = 0;
    ((kind++ == wanted ? throw Kinds(text) : void()), ...);
    throw hd::error(text);
  }
};
using known_errors =
    error_kinds<hd::aborted_error, hd::comm_error, hd::mesh_error, hd::layout_error, hd::schedule_error,
                hd::config_error, hd::numeric_error, hd::memory_error, hd::io_error>;

template <class T>
void tell(T& x, int rank);

// On the first processes, as many as the mesh has ranks; the others pass by. Throws on all of them.
template <class Mesh, class Body>
void launch(const Mesh& mesh, const hd::launch_options& options, Body&& body) {
  const int n = mesh.size();
  if (n > most_ranks()) throw hd::config_error("heddle: this test needs more processes");
  if (n == most_ranks()) return (void)hd::launch<transport>(mesh, options, body);
  MPI_Comm some = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, process() < n ? 0 : MPI_UNDEFINED, 0, &some);
  int kind = -1;
  std::string text;
  if (some != MPI_COMM_NULL) {
    try {
      hd::mpi::run_on(some, mesh, options, body);
    } catch (const std::exception& e) {
      kind = known_errors::of(e);
      text = e.what();
    }
    MPI_Comm_free(&some);
  }
  tell(kind, 0);
  tell(text, 0);
  if (kind >= 0) known_errors::raise(kind, text);
}

// Everyone is told what one rank has.
template <class T>
void tell(T& x, int rank) {
  if (rank >= most_ranks()) return;
  const bool here = process() == rank;
  std::string bytes;
  if (here) pack(static_cast<const T&>(x), bytes);
  std::size_t n = bytes.size();
  MPI_Bcast(&n, sizeof n, MPI_BYTE, rank, MPI_COMM_WORLD);
  bytes.resize(n);
  MPI_Bcast(bytes.data(), static_cast<int>(n), MPI_BYTE, rank, MPI_COMM_WORLD);
  const char* from = bytes.data();
  if (!here) unpack(x, from);
}

// Element r of the vector, which rank r has written, becomes known to everyone.
template <class T>
void share(std::vector<T>& by_rank) {
  for (std::size_t r = 0; r < by_rank.size(); ++r) tell(by_rank[r], static_cast<int>(r));
}

// What all ranks have added to one object becomes known to everyone: `join(x, y)` adds the share of the next process.
template <class T, class Join>
void merge(T& x, Join join) {
  T all = x;
  tell(all, 0);
  for (int r = 1; r < most_ranks(); ++r) {
    T other = x;
    tell(other, r);
    join(all, std::move(other));
  }
  x = std::move(all);
}

#else

using transport = hd::threads;
inline constexpr bool on_threads = true;
inline int most_ranks() {
  return 16;
}
inline int process() {
  return 0;
}
template <class Mesh, class Body>
void launch(const Mesh& mesh, const hd::launch_options& options, Body&& body) {
  hd::launch<transport>(mesh, options, body);
}
template <class T>
void tell(T&, int) {}
template <class T>
void share(std::vector<T>&) {}
template <class T, class Join>
void merge(T&, Join) {}

#endif

// Of texts and lists, what each process has added.
template <class T>
void merge(T& x) {
  merge(x, [](T& all, T&& other) {
    if constexpr (is_map<T>)
      all.merge(other);
    else
      all.insert(all.end(), std::make_move_iterator(other.begin()), std::make_move_iterator(other.end()));
  });
}
inline void merge_largest(double& x) {
  merge(x, [](double& all, double other) { all = all < other ? other : all; });
}

template <class Mesh, class Body>
  requires(!std::is_same_v<std::remove_cvref_t<Body>, hd::launch_options>)
void launch(const Mesh& mesh, Body&& body) {
  launch(mesh, hd::launch_options{}, body);
}
template <class Mesh, class Body>
void launch(Body&& body) {
  launch(Mesh{}, hd::launch_options{}, body);
}
template <class Mesh, class Body>
void launch(const hd::launch_options& options, Body&& body) {
  launch(Mesh{}, options, body);
}

// As heddle::testing::on_ranks; everyone has the results of all ranks.
template <class Mesh, class Body>
auto on_ranks(const Mesh& mesh, Body&& body) {
  using returned = std::remove_cvref_t<std::invoke_result_t<Body&, hd::world<transport, Mesh>&>>;
  using result = std::conditional_t<std::is_void_v<returned>, hd::testing::nothing, returned>;
  hd::launch_options options;
  options.timeout = std::chrono::milliseconds(10'000);
  hd::testing::rank_results<result> all;
  std::vector<std::vector<result>> by_rank(static_cast<std::size_t>(mesh.size()));  // none where the rank failed
  try {
    launch(mesh, options, [&](auto& world) {
      auto& mine = by_rank[static_cast<std::size_t>(world.rank())];
      if constexpr (std::is_void_v<returned>) {
        body(world);
        mine.emplace_back();
      } else {
        mine.push_back(body(world));
      }
    });
  } catch (const std::exception& e) {
    all.exception = std::current_exception();
    all.error = e.what();
  }
  tell(all.error, 0);
  if (!all.error.empty() && !all.exception) all.exception = std::make_exception_ptr(hd::error(all.error));
  share(by_rank);
  for (auto& one : by_rank) all.by_rank.push_back(one.empty() ? std::optional<result>() : std::optional(one[0]));
  return all;
}

using world_request = transport::communicator::request;

// The numbers of ranks in [1, most] that there can be here, or those of a list.
inline std::vector<int> rank_counts(int most) {
  std::vector<int> all;
  for (int p = 1; p <= (std::min)(most, most_ranks()); ++p) all.push_back(p);
  return all;
}
inline std::vector<int> rank_counts(std::vector<int> wanted) {
  std::erase_if(wanted, [](int p) { return p > most_ranks(); });
  return wanted;
}

}  // namespace transport_test
