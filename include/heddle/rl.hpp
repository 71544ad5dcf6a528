// heddle/rl.hpp: reinforcement learning over trainers and engines.
#pragma once

#include <heddle/rl/advantage.hpp>
#include <heddle/rl/equal_parts.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/reward.hpp>
#include <heddle/rl/row_board.hpp>
#include <heddle/rl/sample_table.hpp>
#include <heddle/rl/transfer_protocol.hpp>
