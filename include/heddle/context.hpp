// heddle/context.hpp: context parallelism: pieces, masks, carriers as tables, execution.
#pragma once

#include <heddle/context/carriers.hpp>
#include <heddle/context/check.hpp>
#include <heddle/context/cost.hpp>
#include <heddle/context/execute.hpp>
#include <heddle/context/kept_tail.hpp>
#include <heddle/context/masks.hpp>
#include <heddle/context/picture.hpp>
#include <heddle/context/pieces.hpp>
#include <heddle/context/program.hpp>
#include <heddle/context/queued_messages.hpp>
#include <heddle/context/shape.hpp>
#include <heddle/context/slices_between.hpp>
#include <heddle/context/started_messages.hpp>
#include <heddle/context/table.hpp>
