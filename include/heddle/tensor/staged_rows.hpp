// heddle/tensor/staged_rows.hpp: collectives on device memory, or on copies on the host.
#pragma once

#include <heddle/core/device_runtime.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/memory_space.hpp>
#include <heddle/tensor/view.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {
namespace detail {

// A communicator whose calls take memory of the host, and that says whether they also take that of a space which the host cannot use.
template <class C>
concept stages_messages = requires(C& c, device_runtime runtime, std::string_view space) {
  { c.takes_memory_of(runtime, space) } -> std::same_as<bool>;
};

template <class Space>
constexpr device_runtime runtime_of() noexcept {
  if constexpr (requires { Space::runtime; })
    return Space::runtime;
  else
    return device_runtime::other;
}

// The work of a reduction, with the operator that folds elements.
template <class Op, class Work>
struct folding : Work {
  using operation = Op;
};
template <class Op, class Work>
folding<Op, Work> folds_by(const Op&, Work work) {
  return {std::move(work)};
}
// Whether a communicator does this work without code of the host that reads elements: it folds none, or the transport does.
template <class Comm, class Work, class T>
consteval bool works_beside_host() {
  if constexpr (requires { Comm::template folds_memory_of_devices<T, typename Work::operation>; })
    return Comm::template folds_memory_of_devices<T, typename Work::operation>;
  else
    return true;
}

// Memory of the host for one row of a call, kept for the next: pinned where the queue has such (`staging`), else of this thread.
template <class Queue>
void* staging_memory(Queue& queue, std::size_t slot, std::size_t bytes) {
  if constexpr (requires {
                  { queue.staging(slot, bytes) } -> std::same_as<void*>;
                }) {
    return queue.staging(slot, bytes);
  } else {
    struct room {
      host_memory::allocation<64> memory{};
      std::size_t bytes = 0;
    };
    static thread_local std::array<room, 2> rooms;
    room& r = rooms.at(slot);
    if (r.bytes < bytes) {
      r = {};
      r = {host_memory::allocation<64>(bytes), bytes};
      if (r.memory.address() == nullptr) {
        r = {};
        throw memory_error("heddle: " + std::to_string(bytes) +
                           " bytes for copies of messages on the host: no memory; this process can have " +
                           std::to_string(memory_limit()) + " in all");
      }
    }
    return r.memory.address();
  }
}

// A row's copy on the host: what is read is copied there, what is written is copied back.
template <class Queue, class T, class Space>
class staged_row {
 public:
  staged_row(Queue& queue, std::size_t slot, const vector_view<T, Space>& row, bool reads)
      : row_(row),
        copy_(static_cast<T*>(
                  staging_memory(queue, slot, static_cast<std::size_t>(row.size()) * sizeof(std::remove_const_t<T>))),
              static_cast<std::size_t>(row.size())) {
    if (std::is_const_v<T> || reads)
      queue.copy(vector_view<const T, Space>(row),
                 std::span(const_cast<std::remove_const_t<T>*>(copy_.data()), copy_.size()));
  }
  std::span<T> elements() const noexcept { return copy_; }
  void finish(Queue& queue) const {
    if constexpr (!std::is_const_v<T>) queue.copy(std::span<const T>(copy_), row_);
  }

 private:
  vector_view<T, Space> row_;
  std::span<T> copy_;
};

// Whether the second row has elements of the first. A transport would keep the result apart until the input is read, in memory of the
// host, and copy it by the host.
template <class First, class Second>
bool rows_overlap(const First& x, const Second& y) noexcept {
  const std::less<const void*> before;
  return x.size() > 0 && y.size() > 0 && before(x.address(), y.address() + y.size()) &&
         before(y.address(), x.address() + x.size());
}
template <class Row>
bool rows_overlap(const Row&) noexcept {
  return false;
}

// `work(comm, spans...)` after all that the queue was given; what is given to it later sees the results. The host waits. A row that is
// alone is read and written, of several the constant ones are read and all elements of the others written. An operator that is code of
// the host gets copies, and rows that overlap do.
template <class Queue, class Comm, class Work, class... T, class Space>
void communicate_by_host(Queue& queue, Comm& comm, Work&& work, const vector_view<T, Space>&... rows) {
  static_assert(sizeof...(T) <= 2);
  if constexpr ((works_beside_host<Comm, std::remove_cvref_t<Work>, std::remove_const_t<T>>() && ...)) {
    if (!rows_overlap(rows...) && comm.takes_memory_of(runtime_of<Space>(), type_name<Space>())) {
      queue.wait();
      work(comm, std::span<T>(rows.address(), static_cast<std::size_t>(rows.size()))...);
      return;
    }
  }
  const auto copies = [&]<std::size_t... Slots>(std::index_sequence<Slots...>) {
    return std::tuple<staged_row<Queue, T, Space>...>{
        staged_row<Queue, T, Space>(queue, Slots, rows, sizeof...(T) == 1)...};
  }(std::index_sequence_for<T...>{});
  queue.wait();
  std::apply(
      [&](const auto&... copy) {
        work(comm, copy.elements()...);
        (copy.finish(queue), ...);
      },
      copies);
  queue.wait();  // the copies are the next call's
}

}  // namespace detail
}  // namespace heddle::inline v0
