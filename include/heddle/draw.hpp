// heddle/draw.hpp: pictures in SVG and as text.
#pragma once

#include <heddle/draw/gantt.hpp>
#include <heddle/draw/svg.hpp>
