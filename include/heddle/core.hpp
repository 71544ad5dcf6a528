// heddle/core.hpp: shapes, splits, monoids, random numbers, errors and observers.
#pragma once

#include <heddle/core/config.hpp>
#include <heddle/core/cores.hpp>
#include <heddle/core/device_runtime.hpp>
#include <heddle/core/durations.hpp>
#include <heddle/core/dyadic.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/file_size_signal.hpp>
#include <heddle/core/fixed_string.hpp>
#include <heddle/core/float8.hpp>
#include <heddle/core/half_precision.hpp>
#include <heddle/core/launch_each.hpp>
#include <heddle/core/min_move_window.hpp>
#include <heddle/core/monoid.hpp>
#include <heddle/core/next_index.hpp>
#include <heddle/core/observer.hpp>
#include <heddle/core/op_traits.hpp>
#include <heddle/core/policy.hpp>
#include <heddle/core/random.hpp>
#include <heddle/core/shape.hpp>
#include <heddle/core/shown_name.hpp>
#include <heddle/core/split.hpp>
#include <heddle/core/static_vector.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_list.hpp>
#include <heddle/core/type_name.hpp>
