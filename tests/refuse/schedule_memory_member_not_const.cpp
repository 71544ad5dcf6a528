// refuse: heddle: the members of a memory model are const: weight_input_bytes(stage), recompute_bytes(stage)
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/gpipe.hpp>

struct layers {
  constexpr long activation_bytes(int) const { return 1L << 20; }
  constexpr long resident_bytes(int) { return 1L << 30; }
};
void use(heddle::schedule::table_view table) { heddle::schedule::require_memory(table, layers{}, 4096); }
