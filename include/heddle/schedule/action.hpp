// heddle/schedule/action.hpp: one thing a rank of a pipeline does.
#pragma once

#include <heddle/core/config.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::inline v0::schedule {

/// What an action does. `backward` is `backward_input` and `backward_weight` in one.
/// A transfer names the stage on its own side: `send_forward` of stage s meets `recv_forward` of stage s + 1,
/// `send_backward` of stage s meets `recv_backward` of stage s - 1.
enum class action_kind : std::uint8_t {
  forward,          ///< F: the stage's output from its input
  backward,         ///< B: both gradients
  backward_input,   ///< I: the gradient with respect to the stage's input
  backward_weight,  ///< W: the gradient with respect to the stage's weights
  send_forward,     ///< SEND_F: the stage's output to the next stage
  recv_forward,     ///< RECV_F: the stage's input from the previous stage
  send_backward,    ///< SEND_B: the gradient of the stage's input to the previous stage
  recv_backward,    ///< RECV_B: the gradient of the stage's output from the next stage
  recompute,        ///< RECOMPUTE: the forward again, from what it saved, before the backward that needs the rest
  offload,          ///< OFFLOAD: begin to move the saved activations to a store
  reload,           ///< RELOAD: begin to bring them back
  unshard,          ///< UNSHARD: gather the stage's sharded weights
  reshard,          ///< RESHARD: drop them again, but for this rank's part
  reduce_gradient,  ///< REDUCE_GRAD: the stage's weight gradients are complete; combine them over data-parallel ranks
  optimizer_step    ///< OPTIM: update the stage's weights
};

/// Words for places in schedules and for amounts, as compilers print them in messages.
namespace at {
template <int Rank>
struct rank;  ///< which pipeline rank, from 0
template <int Position>
struct position;  ///< where an action is in the list of its rank, from 0
template <std::size_t Character>
struct character;  ///< where something is in a text, from 0
template <action_kind Kind>
struct action;  ///< which kind of action
template <int Stage>
struct stage;  ///< which stage, from 0
template <int Microbatch>
struct microbatch;  ///< which microbatch, from 0
/// What is missing, expected, or waited for.
template <class... Where>
struct needs;
template <int Ranks>
struct ranks;  ///< an amount: how many ranks
template <int Microbatches>
struct microbatches;  ///< an amount: how many microbatches
template <std::int64_t Bytes>
struct needed;  ///< an amount: bytes that a table needs
template <std::int64_t Bytes>
struct allowed;  ///< an amount: bytes that it may use
}  // namespace at

/// How many kinds of actions there are.
inline constexpr int action_kinds = 15;

/// One entry of a rank's list. Stages and microbatches count from 0; `peer` is the pipeline rank on the other side of a
/// transfer. Fields that do not apply are -1: the peer of a computation, the microbatch of what is done per stage.
/// A computation with `overlaps_next` may run at the same time as the computation behind it; the pair begins when both
/// have their inputs, and what stands behind the pair begins when both have ended.
struct action {
  action_kind kind = action_kind::forward;
  bool overlaps_next = false;
  int stage = -1;
  int microbatch = -1;
  int peer = -1;

  constexpr action() = default;
  constexpr action(action_kind what, int of_stage, int of_microbatch, int with_peer = -1,
                   bool with_next = false) noexcept
      : kind(what), overlaps_next(with_next), stage(of_stage), microbatch(of_microbatch), peer(with_peer) {}

  friend constexpr bool operator==(const action& a, const action& b) noexcept {
    return a.kind == b.kind && a.overlaps_next == b.overlaps_next && a.stage == b.stage &&
           a.microbatch == b.microbatch && a.peer == b.peer;
  }
};

/// Whether it computes: F, B, I or W.
constexpr bool is_compute(action_kind k) noexcept {
  return k <= action_kind::backward_weight;
}
/// Whether it is a send or a receive.
constexpr bool is_transfer(action_kind k) noexcept {
  return k >= action_kind::send_forward && k <= action_kind::recv_backward;
}
/// Whether it sends a tensor to another pipeline rank.
constexpr bool is_send(action_kind k) noexcept {
  return k == action_kind::send_forward || k == action_kind::send_backward;
}
/// Whether it receives a tensor from another pipeline rank.
constexpr bool is_recv(action_kind k) noexcept {
  return k == action_kind::recv_forward || k == action_kind::recv_backward;
}
/// What a forward-only table may have for a microbatch: F and its transfers.
constexpr bool is_of_forward(action_kind k) noexcept {
  return k == action_kind::forward || k == action_kind::send_forward || k == action_kind::recv_forward;
}
/// UNSHARD, RESHARD, REDUCE_GRAD or OPTIM: of a whole stage, not of one microbatch.
constexpr bool is_per_stage(action_kind k) noexcept {
  return k >= action_kind::unshard;
}
/// REDUCE_GRAD or OPTIM: once per stage and step.
constexpr bool is_per_step(action_kind k) noexcept {
  return k >= action_kind::reduce_gradient;
}
/// RECOMPUTE, OFFLOAD or RELOAD: of the activations that one stage saved for one microbatch.
constexpr bool is_of_saved(action_kind k) noexcept {
  return k >= action_kind::recompute && k <= action_kind::reload;
}

/// The spelling of a kind in the text form: "F", "SEND_B", ...
constexpr std::string_view name(action_kind k) noexcept {
  constexpr std::array<std::string_view, action_kinds> names{"F",      "B",       "I",       "W",           "SEND_F",
                                                             "RECV_F", "SEND_B",  "RECV_B",  "RECOMPUTE",   "OFFLOAD",
                                                             "RELOAD", "UNSHARD", "RESHARD", "REDUCE_GRAD", "OPTIM"};
  return names[static_cast<std::size_t>(k)];
}

/// How transfers behave, where a table is checked or simulated.
enum class transfers : std::uint8_t {
  asynchronous,  ///< sends and receives are started in list order; a computation waits for its input
  buffered,      ///< a send returns at once, a receive waits for its message
  rendezvous,    ///< a send waits for its receive and a receive for its send
  grouped        ///< neighbouring transfers of a list start together, the rank waits until all of them have met
};

}  // namespace heddle::inline v0::schedule
