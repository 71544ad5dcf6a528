// heddle/testing.hpp: laws, worlds and memories for tests of sharding algebra and pipelines.
#pragma once

#include <heddle/testing/checked_backend.hpp>
#include <heddle/testing/checked_memory.hpp>
#include <heddle/testing/counting_world.hpp>
#include <heddle/testing/gradient_laws.hpp>
#include <heddle/testing/layout_laws.hpp>
#include <heddle/testing/monoid_laws.hpp>
#include <heddle/testing/on_ranks.hpp>
#include <heddle/testing/propagation_laws.hpp>
#include <heddle/testing/random_cases.hpp>
#include <heddle/testing/report.hpp>
#include <heddle/testing/slow_links.hpp>
#include <heddle/testing/split_laws.hpp>
#include <heddle/testing/tensor_laws.hpp>
