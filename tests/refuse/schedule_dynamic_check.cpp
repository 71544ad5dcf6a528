// refuse: heddle: a schedule can be checked by the compiler if its microbatches and the pp extent of the mesh are constants
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/check.hpp>
#include <heddle/schedule/generate/one_f_one_b.hpp>

using when = heddle::schedule::one_f_one_b<heddle::microbatches<8>>;
constexpr bool ok = heddle::schedule::valid<when, heddle::mesh<heddle::axis<heddle::pp>>>;
