// tests/static_form/layout.cpp: layout arithmetic of a fully static mesh; forms.py reads the assembly of these functions.
#include <heddle/layout/propagate.hpp>
#include <heddle/layout/redistribution.hpp>

#include <cstdint>

namespace hd = heddle;
using hd::dp, hd::pp, hd::tp;

using mesh = hd::mesh<hd::axis<dp, 2>, hd::axis<pp, 2>, hd::axis<tp, 2>>;
using input = hd::layout<mesh, hd::shard<0, dp>>;
using hidden = hd::propagate<"bi,io->bo", input, hd::layout<mesh, hd::shard<1, tp>>>;
using out = hd::propagate<"bi,io->bo", hidden, hd::layout<mesh, hd::shard<0, tp>>>;
using nested = hd::layout<mesh, hd::shard<0, tp, dp>, hd::shard<1, pp>>;

// constant: nothing but the number.
extern "C" std::int64_t constant_local_rows() { return hidden::local_shape(hd::shape{9, 64}, 7)[0]; }               // 4
extern "C" std::int64_t constant_local_columns() { return hidden::local_shape(hd::shape<9, 65>{}, 6)[1]; }          // 33
extern "C" std::int64_t constant_local_offset() { return nested::local_offset(hd::shape{13, 5}, 7)[0]; }           // 10
extern "C" int constant_owner() { return nested::owner(hd::shape{13, 5}, {12, 4}); }                               // 7
extern "C" bool constant_owns() { return nested::owns(hd::shape{13, 5}, 3, {12, 4}); }                             // 0
extern "C" bool constant_is_primary() { return out::is_primary(5); }                                               // 1
extern "C" std::int64_t constant_to_global() { return nested::to_global(hd::shape{13, 5}, 7, {2, 1})[1]; }          // 4
extern "C" std::int64_t constant_bytes_held() { return out::bytes_per_rank(hd::shape{8, 64}, sizeof(float)); }      // 1024
extern "C" std::int64_t constant_bytes_sent() {
  constexpr auto plan = hd::redistribution<out, input>;
  return plan.bytes_sent_per_rank(hd::shape{8, 64}, sizeof(float));  // 1024
}
extern "C" int constant_steps() { return static_cast<int>(hd::redistribution<out, input>.steps.size()); }           // 1

// undivided: the rank comes at run time; sizes are known, so nothing is divided.
extern "C" std::int64_t undivided_local_rows(int rank) { return hidden::local_shape(hd::shape{9, 64}, rank)[0]; }
extern "C" std::int64_t undivided_local_offset(int rank) { return nested::local_offset(hd::shape{13, 5}, rank)[0]; }
