// heddle/collective/execute_rounds.hpp: runs a round table by a communicator's isend and irecv.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/collective/round_program.hpp>
#include <heddle/core/op_traits.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// The tag of the messages of collectives that run from round tables. One's own messages take another one.
inline constexpr int round_tag = 31'755;

/// Stands for the operator of collectives that fold nothing.
struct no_operator {};

namespace detail {

// Requests of one round: the first few in place, so that common algorithms allocate nothing for them.
template <class R>
class started_messages {
 public:
  template <class Start>
  void start(int most, const Start& start) {
    if (most <= few) {
      near_[static_cast<std::size_t>(count_)] = start();
    } else {
      far_.reserve(static_cast<std::size_t>(most));
      far_.push_back(start());
    }
    ++count_;
  }
  int count() const noexcept { return count_; }
  void wait(int i) { (far_.empty() ? *near_[static_cast<std::size_t>(i)] : far_[static_cast<std::size_t>(i)]).wait(); }
  void clear() {
    if (far_.empty())
      for (int i = 0; i < count_; ++i) near_[static_cast<std::size_t>(i)].reset();
    far_.clear();
    count_ = 0;
  }

 private:
  static constexpr int few = 4;
  std::array<std::optional<R>, few> near_;
  std::vector<R> far_;
  int count_ = 0;
};

// to = a op b; `to` may be a or b, and overlaps neither otherwise. In three forms, so that compilers vectorise them.
template <class T, class Op>
void fold_elements(T* to, const T* a, const T* b, std::int64_t count, const Op& op) {
  if constexpr (!op_traits<Op>::elementwise) {
    const auto n = static_cast<std::size_t>(count);
    std::vector<T> result(a, a + count);
    op(std::span<const T>(a, n), std::span<const T>(b, n), std::span<T>(result));
    std::copy(result.begin(), result.end(), to);
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (to == a) {
      T* __restrict x = to;
      const T* __restrict y = b;
      for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<T>(op(x[i], y[i]));
    } else if (to == b) {
      T* __restrict x = to;
      const T* __restrict y = a;
      for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<T>(op(y[i], x[i]));
    } else {
      T* __restrict x = to;
      for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<T>(op(a[i], b[i]));
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(op(a[i], b[i]));
  }
}

struct aligned_delete {
  std::size_t alignment = 64;
  void operator()(std::byte* p) const noexcept { ::operator delete(p, std::align_val_t{alignment}); }
};

// Bytes for elements of any type, kept from call to call.
class round_memory {
 public:
  template <class T>
  T* elements(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_ || alignof(T) > alignment_) {
      constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;
      memory_.reset();
      memory_ = {static_cast<std::byte*>(::operator new(bytes, std::align_val_t{alignment})),
                 aligned_delete{alignment}};
      bytes_ = bytes;
      alignment_ = alignment;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  std::unique_ptr<std::byte, aligned_delete> memory_;
  std::size_t bytes_ = 0;
  std::size_t alignment_ = 64;
};

}  // namespace detail

/// Runs a bound program on this rank; every rank of the group runs its own. `in`, `out` and `scratch` are the beginnings
/// of the buffers that its addresses count from; `scratch` holds `rounds.scratch` elements. `op` is `no_operator` where
/// nothing is folded.
/// Errors: as the communicator's isend and irecv. Communicators whose buffers are a device's are refused.
template <class T, class Communicator, class Op>
void execute_rounds(Communicator& comm, const bound_rounds& rounds, const T* in, T* out, T* scratch, const Op& op) {
  (void)detail::computes_in_buffers<Communicator>();
  using request = typename Communicator::request;
  detail::started_messages<request> receives, sends;
  int waited = 0;
  const auto from = [&](round_buffer b, std::int64_t at) -> const T* {
    return (b == round_buffer::in ? in : b == round_buffer::out ? out : scratch) + at;
  };
  const auto to = [&](round_buffer b, std::int64_t at) -> T* { return (b == round_buffer::out ? out : scratch) + at; };
  for (const round_step& s : rounds.steps) {
    const auto count = static_cast<std::size_t>(s.count);
    switch (s.what) {
      case round_action::receive: {
        if (waited == receives.count()) {
          receives.clear();
          waited = 0;
        }
        const std::span<T> x(to(s.to_in, s.to), count);
        receives.start(rounds.receives, [&] { return comm.irecv(x, s.peer, round_tag); });
        break;
      }
      case round_action::receive_now:
        comm.recv(std::span<T>(to(s.to_in, s.to), count), s.peer, round_tag);
        break;
      case round_action::send: {
        const std::span<const T> x(from(s.a_in, s.a), count);
        sends.start(rounds.sends, [&] { return comm.isend(x, s.peer, round_tag); });
        break;
      }
      case round_action::send_now:
        comm.send(std::span<const T>(from(s.a_in, s.a), count), s.peer, round_tag);
        break;
      case round_action::wait_receive:
        receives.wait(s.peer);
        ++waited;
        break;
      case round_action::wait_sends:
        for (int i = 0; i < sends.count(); ++i) sends.wait(i);
        sends.clear();
        break;
      case round_action::fold:
        if constexpr (fold_operator<Op, T>)
          detail::fold_elements<T>(to(s.to_in, s.to), from(s.a_in, s.a), from(s.b_in, s.b), s.count, op);
        break;
      case round_action::copy:
        if (to(s.to_in, s.to) != from(s.a_in, s.a))
          std::memcpy(static_cast<void*>(to(s.to_in, s.to)), from(s.a_in, s.a), count * sizeof(T));
        break;
      case round_action::fill:
        if constexpr (requires { op.template identity<T>(); }) {
          const T identity = op.template identity<T>();
          for (T *x = to(s.to_in, s.to), *end = x + s.count; x != end; ++x) *x = identity;
        }
        break;
    }
  }
}

/// Runs this rank's part of a round table once: compiles it, binds it, and allocates its scratch memory.
/// `collective_plans` keeps all of these from call to call.
template <class T, class Communicator, class Op>
void execute_rounds(Communicator& comm, round_view rounds, const T* in, T* out, const block_sizes& sizes, const Op& op,
                    bool in_place = false) {
  const bound_rounds bound = round_program(rounds, comm.rank(), in_place).bind(sizes);
  detail::round_memory memory;
  execute_rounds<T>(comm, bound, in, out, memory.elements<T>(bound.scratch), op);
}

}  // namespace heddle::inline v0
