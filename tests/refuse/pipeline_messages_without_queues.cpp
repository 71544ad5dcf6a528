// refuse: heddle: this communicator takes no memory of the host, so what travels between stages is sent in the order of queues
// and: devices_only
#include <heddle/model/pipeline/boundary_messages.hpp>
#include <heddle/testing/checked_memory.hpp>

struct devices_only {
  static constexpr bool host_memory = false;  // and no beside()
};
constexpr bool queued = heddle::model::detail::messages_are_queued<devices_only, heddle::testing::checked_memory>();
