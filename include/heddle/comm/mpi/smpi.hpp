// heddle/comm/mpi/smpi.hpp: undefines function names that SimGrid's smpicxx makes macros.
#pragma once

// Include it before headers of other libraries that use these names for functions or variables of their own: CLI11 does.
// heddle's headers need it nowhere. After it `exit` ends the whole simulation instead of one virtual rank, `sleep` takes
// real instead of virtual time, and memory is the ordinary kind. Other compilers find nothing to undefine.
#undef sleep
#undef usleep
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef exit
#undef getopt
#undef getopt_long
#undef getopt_long_only
