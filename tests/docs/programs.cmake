# cmake -DCXX=g++ -DPAGE=page.md -DINCLUDE=include -DFOLDER=scratch [-DFLAGS=flags] -P programs.cmake
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/blocks.cmake")
heddle_blocks("${PAGE}" block)
if(block_count EQUAL 0)
  message(FATAL_ERROR "${PAGE} has no program")
endif()
math(EXPR last "${block_count} - 1")
foreach(i RANGE ${last})
  if(block_${i} MATCHES "heddle/comm/mpi.hpp")
    continue()  # needs mpi.h: tests/smpi runs it
  endif()
  file(WRITE "${FOLDER}/program_${i}.cpp" "${block_${i}}")
  execute_process(COMMAND ${CXX} -std=c++20 -Wall -Wextra ${FLAGS} -I "${INCLUDE}" -fsyntax-only "${FOLDER}/program_${i}.cpp"
    RESULT_VARIABLE rc ERROR_VARIABLE err)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "program ${i} of ${PAGE} does not compile:\n${err}")
  endif()
endforeach()
