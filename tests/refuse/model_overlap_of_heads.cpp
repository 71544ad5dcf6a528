// refuse: heddle: split<Dim, Axis, overlapped<Pieces>>: rows travel beside products where the sequence is split
#include <heddle/model/sharding.hpp>

namespace hd = heddle;
namespace dim = hd::dim;
using how = hd::sharding<dim::split<dim::heads, hd::tp, hd::overlapped<2>>>;
using layouts = hd::model::layouts<hd::mesh<hd::axis<hd::tp, 2>>, how>;
constexpr int pieces = layouts::overlapped_pieces;
