// tests/smpi/smpi_gaps.hpp: what programs need besides SimGrid 3.32's mpi.h. Included first.
#pragma once

#include <mpi.h>

// smpicxx makes macros of these names, which others have for functions of their own.
#undef sleep
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef exit
#undef getopt

// Declared, but not there.
inline int smpi_get_elements(const MPI_Status* status, MPI_Datatype type, MPI_Count* count) {
  int elements = 0;
  const int code = MPI_Get_count(status, type, &elements);  // no message of these tests has 2^31 bytes
  *count = elements;
  return code;
}
#define MPI_Get_elements_x smpi_get_elements
