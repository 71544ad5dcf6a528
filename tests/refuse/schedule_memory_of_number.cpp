// refuse: heddle: a memory model needs `std::int64_t activation_bytes(int stage) const`
#include <heddle/mesh/mesh.hpp>
#include <heddle/schedule/check/memory.hpp>
#include <heddle/schedule/generate/gpipe.hpp>

bool fits(heddle::schedule::table_view table) { return heddle::schedule::check_memory(table, 1024, 4096).ok(); }
