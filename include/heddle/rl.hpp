// heddle/rl.hpp: reinforcement learning over trainers and engines.
#pragma once

#include <heddle/rl/advantage.hpp>
#include <heddle/rl/completion.hpp>
#include <heddle/rl/experience.hpp>
#include <heddle/rl/objective.hpp>
#include <heddle/rl/policy.hpp>
#include <heddle/rl/rollout.hpp>
#include <heddle/rl/sample.hpp>
#include <heddle/rl/scorer.hpp>
#include <heddle/rl/words.hpp>
