// heddle/mesh.hpp: meshes of named axes, and the networks under them.
#pragma once

#include <heddle/mesh/axis.hpp>
#include <heddle/mesh/axis_network.hpp>
#include <heddle/mesh/folding.hpp>
#include <heddle/mesh/inverse_order.hpp>
#include <heddle/mesh/link_table.hpp>
#include <heddle/mesh/mesh.hpp>
#include <heddle/mesh/parse.hpp>
#include <heddle/mesh/rank_order.hpp>
#include <heddle/mesh/simgrid.hpp>
#include <heddle/mesh/topologies.hpp>
#include <heddle/mesh/topology.hpp>
#include <heddle/mesh/topology_file.hpp>
