// heddle/comm.hpp: the communicator, the world of ranks, and the transport over threads.
#pragma once

#include <heddle/comm/argument_checks.hpp>
#include <heddle/comm/blocks.hpp>
#include <heddle/comm/call_info.hpp>
#include <heddle/comm/collective_calls.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/launch_order.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/comm/rethrow.hpp>
#include <heddle/comm/split_part.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/threads/block_calls.hpp>
#include <heddle/comm/threads/communicator.hpp>
#include <heddle/comm/threads/condition_word.hpp>
#include <heddle/comm/threads/device_calls.hpp>
#include <heddle/comm/threads/fold.hpp>
#include <heddle/comm/threads/group_state.hpp>
#include <heddle/comm/threads/request.hpp>
#include <heddle/comm/threads/shared_state.hpp>
#include <heddle/comm/threads/started.hpp>
#include <heddle/comm/threads/wait_word.hpp>
#include <heddle/comm/threads/work.hpp>
#include <heddle/comm/transport_by_network.hpp>
#include <heddle/comm/wait_all.hpp>
#include <heddle/comm/world.hpp>
