// heddle/heddle.hpp: the vocabulary of a parallel program: meshes, layouts, schedules, tensors.
#pragma once

#include <heddle/version.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/split.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/layout/gradient.hpp>
#include <heddle/layout/layout.hpp>
#include <heddle/layout/propagate.hpp>
#include <heddle/layout/redistribution.hpp>
#include <heddle/comm/communicator.hpp>
#include <heddle/comm/launch.hpp>
#include <heddle/comm/threads.hpp>
#include <heddle/comm/world.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/named.hpp>
#include <heddle/tensor/buffer.hpp>
#include <heddle/tensor/gradient.hpp>
#include <heddle/tensor/redistribute.hpp>
#include <heddle/tensor/sharded.hpp>
#include <heddle/tensor/view.hpp>
