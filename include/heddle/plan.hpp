// heddle/plan.hpp: cost models, searches and placements.
#pragma once

#include <heddle/plan/atomization/broker.hpp>
#include <heddle/plan/atomization/calibration.hpp>
#include <heddle/plan/atomization/clearing.hpp>
#include <heddle/plan/atomization/dispatch.hpp>
#include <heddle/plan/atomization/job.hpp>
#include <heddle/plan/atomization/ledger.hpp>
#include <heddle/plan/atomization/mig.hpp>
#include <heddle/plan/atomization/profile.hpp>
#include <heddle/plan/atomization/protocol.hpp>
#include <heddle/plan/atomization/safety.hpp>
#include <heddle/plan/atomization/stagger.hpp>
#include <heddle/plan/gain_map.hpp>
#include <heddle/plan/layer_partition.hpp>
#include <heddle/plan/offload_amount.hpp>
#include <heddle/plan/reconfigure.hpp>
#include <heddle/plan/skippipe.hpp>
#include <heddle/plan/skippipe/assign.hpp>
#include <heddle/plan/skippipe/conflict_search.hpp>
#include <heddle/plan/skippipe/exchange.hpp>
#include <heddle/plan/skippipe/options.hpp>
#include <heddle/plan/skippipe/rules.hpp>
#include <heddle/plan/skippipe/way.hpp>
