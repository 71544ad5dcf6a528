// heddle/observe.hpp: traces, timelines and diagnosis.
#pragma once

#include <heddle/observe/activity.hpp>
#include <heddle/observe/chrome_trace.hpp>
#include <heddle/observe/gather.hpp>
#include <heddle/observe/pipeline_bubble.hpp>
#include <heddle/observe/recorder.hpp>
#include <heddle/observe/step_times.hpp>
#include <heddle/observe/text_file.hpp>
#include <heddle/observe/timeline_svg.hpp>
