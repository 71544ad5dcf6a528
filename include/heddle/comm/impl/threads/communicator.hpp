// heddle/comm/impl/threads/communicator.hpp: bodies of heddle/comm/threads/communicator.hpp.
#pragma once

#include <heddle/comm/threads/communicator.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/threads/request.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heddle::inline v0 {

HEDDLE_INLINE threads_communicator threads_communicator::split(int color, int key) {
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
  const std::int64_t mine[2] = {color, key};
  all_gather_blocks<std::int64_t>(comm_operation::split, mine, all, equal_blocks{2}, 2, 0);
  detail::split_part part = detail::part_of(*this, all, slot(rank_).number.load(std::memory_order_relaxed));
  return {world_, world_->group(part.label, part.members, false), part.rank, mark_};
}

HEDDLE_INLINE void threads_communicator::exchange(const detail::message_arguments& arguments, const void* device,
                                                  detail::device_move move) {
  detail::message m;
  arguments.fill(m);
  m.device = device;
  m.move = move;
  group_->post(rank_, arguments.call.root, m);
  if (arguments.call.root == rank_ && m.state.load(std::memory_order_relaxed) == detail::message::posted) {
    group_->cancel(m);
    fail(std::string(to_string(arguments.call.what)) +
         ": a rank cannot wait for itself; post the other side first with " +
         (arguments.call.what == comm_operation::send ? "irecv" : "isend"));
  }
  group_->wait(m);
}

HEDDLE_INLINE threads_request threads_communicator::start(const detail::message_arguments& arguments) {
  threads_request r(world_, group_, arguments);
  r.post(rank_);
  return r;
}

#if defined(HEDDLE_SEPARATE_COMPILATION)
HEDDLE_THREADS_COLLECTIVES(, float);
HEDDLE_THREADS_COLLECTIVES(, double);
HEDDLE_THREADS_AGREEMENTS();
#endif

}  // namespace heddle::inline v0
