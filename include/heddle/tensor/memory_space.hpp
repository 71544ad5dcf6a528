// heddle/tensor/memory_space.hpp: memory spaces and queues as concepts; the host's space.
#pragma once

#include <heddle/core/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace heddle::inline v0 {

struct host_memory;

namespace detail {
// Elements in a memory space: the least that a queue must take.
template <class T, class Space>
struct some_elements {
  using space = Space;
  T* address() const noexcept { return nullptr; }
  std::size_t size() const noexcept { return 0; }
};

template <class X>
struct space_named_by {
  using type = host_memory;  // spans, vectors, arrays
};
template <class X>
  requires requires { typename X::space; }
struct space_named_by<X> {
  using type = typename X::space;
};

}  // namespace detail

/// Address of the first element of what has `address()`, or of what `std::data` takes.
template <class X>
constexpr auto* first_element(X&& x) noexcept {
  if constexpr (requires { x.address(); })
    return x.address();
  else
    return std::data(x);
}
/// The type of the elements of a buffer, view, span or vector, without const.
template <class X>
using element_of = std::remove_cvref_t<decltype(*first_element(std::declval<X&>()))>;
/// How many elements it has: `size()`, or `std::size` of arrays.
template <class X>
constexpr std::size_t element_count(const X& x) noexcept {
  if constexpr (requires { x.size(); })
    return static_cast<std::size_t>(x.size());
  else
    return std::size(x);
}

namespace detail {
[[noreturn]] inline void throw_copy_of(std::size_t from, std::size_t to) {
  throw layout_error("heddle: a queue copies as many elements as it is given room for: " + std::to_string(from) +
                     " elements do not fit a memory of " + std::to_string(to));
}
}  // namespace detail

/// The space that memory lies in: `X::space` of a buffer, view or tensor; `host_memory` of spans and standard containers.
template <class X>
using space_of = typename detail::space_named_by<std::remove_cvref_t<X>>::type;

/// Elements that lie together in memory space `Space`: `address()`, or `data()` on the host, and `size()`.
template <class X, class Space>
concept elements_in = std::same_as<space_of<X>, Space> && requires(X& x) {
  *first_element(x);
  { element_count(x) } -> std::same_as<std::size_t>;
};

/// A queue of the memory space `Space`: it names a device, a stream or an arena, and all that memory of the space needs goes
/// through it, in the order of the calls, at once or later.
///
/// - `allocate<Alignment>(bytes)` gives an owner of so much memory with any content, or one whose `address()` is null when
///   there is none left. The end of the owner releases the memory after all that any queue was given to do with it.
/// - `zero(x)` sets elements of the space to zero.
/// - `copy(from, to)` copies as many elements, each side in the space or on the host. What lies on the host stays as it is
///   until `wait`. Errors: `layout_error` if the sizes differ.
/// - `wait()` returns when all of it is done. Errors: what the work has thrown.
/// - `run(f, views...)`, where work may be host code (`runs_host_code`): `f` with host views of these views, in its turn.
template <class Q, class Space>
concept memory_queue = requires(Q& q, std::size_t bytes, const detail::some_elements<double, Space>& there,
                                const detail::some_elements<const double, Space>& source, std::span<double> here) {
  { q.template allocate<64>(bytes) } -> std::same_as<typename Space::template allocation<64>>;
  q.zero(there);
  q.copy(source, there);
  q.copy(source, here);
  q.copy(std::span<const double>(here), there);
  q.wait();
};

/// A queue whose work may be host code: `queue.run(f, views...)` calls `f` with the same views, of the host's space, in the
/// order of the queue. What `f` refers to must live until then.
template <class Q>
concept runs_host_code = requires(Q& q) { q.run([] {}); };

/// A queue beside which others of the same memory work: `beside()` is another one, with an order of its own. `record()` is an
/// event, which happens when all that the queue was given so far has been done, or was left out after an error. What a queue
/// is given after `after(event)` begins when the event has happened.
template <class Q>
concept concurrent_queue = requires(Q& q, const Q& k) {
  { k.beside() } -> std::same_as<Q>;
  requires std::copyable<decltype(q.record())>;
  q.after(q.record());
};

/// A memory space: whose memory it is and how it is reached, as a type. `host_accessible` says whether host code may read and
/// write the elements between the operations of queues; `queue` is a `memory_queue`; `allocation<Alignment>` owns memory: it
/// is empty when default-constructed, moves, and has `address()`. Buffers, views and tensors carry their space in their type.
template <class S>
concept memory_space = requires {
  { S::host_accessible } -> std::convertible_to<bool>;
  typename S::queue;
  typename S::template allocation<64>;
  requires std::default_initializable<typename S::template allocation<64>>;
  requires std::movable<typename S::template allocation<64>>;
  requires memory_queue<typename S::queue, S>;
};

namespace detail {
// Whether a queue of the space launches kernels on cores of the host. Memory that the host may use can be a device's all the same.
template <class Space>
constexpr bool kernels_run_on_host() {
  if constexpr (requires { Space::kernels_run_on_host; })
    return Space::kernels_run_on_host;
  else
    return Space::host_accessible;
}
}  // namespace detail

/// A space whose elements host code may touch: only there are `operator[]`, `operator()`, iterators, `data()` and `elements()`.
/// Elsewhere a queue copies them, or runs what touches them.
/// Compilers print the lines of a concept that is not met, with the sentence on it.
// clang-format off
template <class S>
concept host_accessible_space = memory_space<S> &&
  S::host_accessible;  // heddle: host code may not touch the elements of this memory: call kernels of the backend, or copy_to<host_memory>(queue, x)
// clang-format on

/// The memory of the process, the space of everything that names none. Its queue is an empty object that does everything at
/// once: nothing of it is left in the program but the work.
struct host_memory {
  static constexpr bool host_accessible = true;

  template <std::size_t Alignment>
  class allocation {
   public:
    allocation() = default;
    explicit allocation(std::size_t bytes) noexcept
        : memory_(::operator new(bytes, std::align_val_t{Alignment}, std::nothrow)) {}
    void* address() const noexcept { return memory_.get(); }
    /// An owner of memory that `release` gave up, and what gives it up.
    static allocation owner_of(void* memory) noexcept {
      allocation owner;
      owner.memory_.reset(memory);
      return owner;
    }
    void* release() noexcept { return memory_.release(); }

   private:
    struct deleter {
      void operator()(void* p) const noexcept { ::operator delete(p, std::align_val_t{Alignment}); }
    };
    std::unique_ptr<void, deleter> memory_;
  };

  class queue {
   public:
    template <std::size_t Alignment>
    static allocation<Alignment> allocate(std::size_t bytes) noexcept {
      return allocation<Alignment>(bytes);
    }
    template <class X>
      requires elements_in<X, host_memory>
    static void zero(X&& x) {
      std::uninitialized_value_construct_n(first_element(x), element_count(x));
    }
    template <class From, class To>
      requires elements_in<From, host_memory> && elements_in<To, host_memory> &&
               std::same_as<element_of<From>, element_of<To>>
    static void copy(const From& from, To&& to) {
      const std::size_t n = element_count(from);
      if (n != element_count(to)) detail::throw_copy_of(n, element_count(to));
      if (n != 0) std::memmove(first_element(to), first_element(from), n * sizeof(*first_element(from)));
    }
    /// `f(views...)`, now.
    template <class F, class... Views>
    static void run(F&& f, Views&&... views) {
      std::forward<F>(f)(std::forward<Views>(views)...);
    }
    static void wait() noexcept {}
  };
};

}  // namespace heddle::inline v0
