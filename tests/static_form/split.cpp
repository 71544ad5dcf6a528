// tests/static_form/split.cpp: split policies of a fully static mesh; forms.py reads the assembly of these functions.
#include <heddle/layout/layout.hpp>

#include <cstdint>

namespace hd = heddle;
namespace split = hd::split;
using hd::dp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<tp, 3>>;
using chunks = hd::layout<mesh, hd::shard<0, split::ceil, tp>>;
using blocks = hd::layout<mesh, hd::shard<0, split::block_cyclic<2>, tp>>;
using halves = hd::layout<mesh, hd::shard<0, split::zigzag, tp>>;
using nested = hd::layout<mesh, hd::shard<1, split::zigzag, tp, split::balanced, dp>>;
using given = hd::layout<mesh, hd::shard<0, split::ragged<1, 0, 4>, tp>>;

// constant: nothing but the number.
extern "C" std::int64_t constant_chunk_rows() { return chunks::local_shape(hd::shape{7, 5}, 2)[0]; }              // 1
extern "C" std::int64_t constant_chunk_offset() { return chunks::local_offset(hd::shape{7, 5}, 2)[0]; }           // 6
extern "C" int constant_chunk_owner() { return chunks::owner(hd::shape{7, 5}, {5, 0}); }                          // 1
extern "C" std::int64_t constant_block_rows() { return blocks::local_shape(hd::shape{9}, 1)[0]; }                 // 3
extern "C" int constant_block_owner() { return blocks::owner(hd::shape{9}, {8}); }                                // 1
extern "C" std::int64_t constant_zigzag_rows() { return halves::local_shape(hd::shape{13}, 0)[0]; }               // 5
extern "C" int constant_zigzag_owner() { return halves::owner(hd::shape{13}, {12}); }                             // 0
extern "C" std::int64_t constant_nested_columns() { return nested::local_shape(hd::shape{2, 13}, 3)[1]; }         // 2
extern "C" int constant_nested_owner() { return nested::owner(hd::shape{2, 13}, {1, 12}); }                       // 3
extern "C" std::int64_t constant_given_rows() { return given::local_shape(hd::shape{5}, 2)[0]; }                  // 4

// undivided: the rank comes at run time; sizes are known, so nothing is divided.
extern "C" std::int64_t undivided_chunk_rows(int rank) { return chunks::local_shape(hd::shape{7, 5}, rank)[0]; }
extern "C" std::int64_t undivided_zigzag_rows(int rank) { return halves::local_shape(hd::shape{13}, rank)[0]; }
