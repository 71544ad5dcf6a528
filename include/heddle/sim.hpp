// heddle/sim.hpp: execution of plans and schedules in virtual time.
#pragma once

#include <heddle/sim/action_table.hpp>
#include <heddle/sim/activation_offload.hpp>
#include <heddle/sim/actor_graph.hpp>
#include <heddle/sim/clairvoyant.hpp>
#include <heddle/sim/gantt.hpp>
#include <heddle/sim/long_prompt.hpp>
#include <heddle/sim/mfu.hpp>
#include <heddle/sim/nccl_model.hpp>
#include <heddle/sim/network.hpp>
#include <heddle/sim/rl_flow.hpp>
#include <heddle/sim/serial_nodes.hpp>
#include <heddle/sim/slice_cluster.hpp>
#include <heddle/sim/speculation.hpp>
#include <heddle/sim/temporal_fusion.hpp>
#include <heddle/sim/visits_svg.hpp>
