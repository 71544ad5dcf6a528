// heddle/nccl/group.hpp: several calls launched as one (not run on a GPU).
#pragma once

#include <heddle/nccl/communicator.hpp>

#include <exception>
#include <memory>
#include <vector>

namespace heddle::inline v0 {

/// Fuses the calls made on these communicators until `launch`, as NCCL's group calls do: less overhead, and calls on
/// several communicators cannot wait for each other. No result is there before `launch`, nor may anything be waited
/// for; other communicators of the rank are refused. Without `launch` the destructor ends the group and the next call
/// throws what went wrong.
///
///     hd::nccl_group together(rows, columns);
///     rows.all_reduce(x, hd::plus{});
///     columns.all_gather(y, z);
///     together.launch();
class nccl_group {
 public:
  template <class... More>
  explicit nccl_group(nccl_communicator& first, More&... more) {
    channels_ = {first.channel(), more.channel()...};
    for (const auto& channel : channels_) {
      channel->connected();
      channel->flush();
    }
    channels_.front()->require_nccl("ncclGroupStart", detail::nccl_open_groups::start());
    for (const auto& channel : channels_) channel->fuse();
  }
  nccl_group(const nccl_group&) = delete;
  nccl_group& operator=(const nccl_group&) = delete;
  ~nccl_group() {
    if (channels_.empty()) return;
    const auto channels = channels_;
    try {
      launch();
    } catch (const std::exception& e) {
      for (const auto& channel : channels) channel->late(e.what());
    }
  }

  /// Launches the calls, and the messages that were started with them.
  void launch() {
    if (channels_.empty()) return;
    const auto channels = std::move(channels_);
    channels_.clear();
    std::exception_ptr problem;
    try {
      for (const auto& channel : channels) channel->flush();
    } catch (...) {  // the group ends all the same
      problem = std::current_exception();
    }
    for (const auto& channel : channels) channel->unfuse();
    const ncclResult_t result = detail::nccl_open_groups::end();
    for (const auto& channel : channels)
      if (channel->usable()) channel->require_nccl("ncclGroupEnd", result);
    if (problem != nullptr) std::rethrow_exception(problem);
  }

 private:
  std::vector<std::shared_ptr<detail::nccl_channel>> channels_;
};

}  // namespace heddle::inline v0
