// heddle/rl.hpp: reinforcement learning over trainers and engines.
#pragma once

#include <heddle/rl/advantage.hpp>
#include <heddle/rl/aggregate.hpp>
#include <heddle/rl/completion.hpp>
#include <heddle/rl/equal_parts.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/flow.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/pipeline.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/reward.hpp>
#include <heddle/rl/rollout.hpp>
#include <heddle/rl/row_board.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/rl/sample_table.hpp>
#include <heddle/rl/statistics.hpp>
#include <heddle/rl/transfer_protocol.hpp>
#include <heddle/rl/words.hpp>
