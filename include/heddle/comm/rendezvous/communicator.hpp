// heddle/comm/rendezvous/communicator.hpp: a rendezvous over a communicator that is there already, such as MPI's.
#pragma once

#include <heddle/comm/communicator.hpp>
#include <heddle/comm/rendezvous.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace heddle::inline v0 {

/// Meets over any communicator, whose messages with tag `tag` it uses: over MPI, for example, to hand round the unique id
/// of NCCL communicators. Members that share several things do so in one order. Failures are the communicator's to
/// tell: `announce` stays on this rank. The communicator must outlive it.
template <communicator C>
class communicator_rendezvous final : public rendezvous {
 public:
  explicit communicator_rendezvous(C& over, int tag = 0x6e63) : over_(over), tag_(tag) {}

  int rank() const noexcept override { return over_.rank(); }
  int size() const noexcept override { return over_.size(); }
  void share(const std::string&, std::span<const int> members, std::span<std::byte> bytes) override {
    if (members.size() < 2) return;
    if (members.front() != rank()) {
      over_.recv(bytes, members.front(), tag_);
      return;
    }
    for (const int to : members.subspan(1)) over_.send(std::span<const std::byte>(bytes), to, tag_);
  }
  void announce(const std::string& text) noexcept override {
    try {
      if (failure_.empty()) failure_ = text;
    } catch (...) {  // no memory for the text
    }
  }
  std::string failure() override { return failure_; }

 private:
  C& over_;
  int tag_;
  std::string failure_;
};

}  // namespace heddle::inline v0
