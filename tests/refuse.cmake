# Compiles one file that must be refused: it has to fail, with the sentence its first line promises, and with one error.
#
#   cmake -DCXX=g++ -DSRC=file.cpp "-DFLAGS=-std=c++20 -I..." ["-DHAVE=range_v3;mpi"] -P refuse.cmake
#
# The file begins with "// refuse: <text that must appear>"; an optional second line "// needs: <component>" skips it where
# that component was not found.
cmake_minimum_required(VERSION 3.25)

file(STRINGS "${SRC}" lines LIMIT_COUNT 2)
list(GET lines 0 first)
if(NOT first MATCHES "^// refuse: (.+)$")
  message(FATAL_ERROR "no promise: the first line of ${SRC} must read \"// refuse: <text that must appear>\"")
endif()
string(REPLACE "\\;" ";" want "${CMAKE_MATCH_1}")  # file(STRINGS) escapes semicolons
list(LENGTH lines count)
if(count GREATER 1)
  list(GET lines 1 second)
  if(second MATCHES "^// needs: ([a-z0-9_]+)$" AND NOT CMAKE_MATCH_1 IN_LIST HAVE)
    message("refusal skipped: needs ${CMAKE_MATCH_1}")
    return()
  endif()
endif()

separate_arguments(flags NATIVE_COMMAND "${FLAGS}")
execute_process(COMMAND "${CXX}" ${flags} -fsyntax-only "${SRC}" RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "compiled, but must not")
endif()
string(FIND "${output}" "${want}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "failed with another message than \"${want}\":\n${output}")
endif()
string(REGEX MATCHALL "(^|\n)[^\n]*: (fatal )?error: " errors "${output}")
list(LENGTH errors count)
if(count GREATER 1)
  message(FATAL_ERROR "${count} errors for one mistake:\n${output}")
endif()
