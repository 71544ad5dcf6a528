# Compiles one file that must be refused: it has to fail, with a promised sentence, and with one error.
# `heddle_add_refusal_test` (heddle-testing.cmake) makes tests that run this; it also works alone:
#
#   cmake -DCXX=g++ -DSRC=file.cpp "-DFLAGS=-std=c++20 -I..." ["-DMESSAGE=<text that must appear>"] ["-DINCLUDES=dir|dir"]
#         ["-DDEFINITIONS=A=1|B"] ["-DHAVE=range_v3;mpi"] -P heddle-refusal.cmake
#
# Without MESSAGE the file begins with "// refuse: <text that must appear>"; an optional second line "// needs: <component>"
# skips it where that component is not in HAVE.
cmake_minimum_required(VERSION 3.25)

file(STRINGS "${SRC}" lines LIMIT_COUNT 2)
if(DEFINED MESSAGE)
  set(want "${MESSAGE}")
else()
  list(GET lines 0 first)
  if(NOT first MATCHES "^// refuse: (.+)$")
    message(FATAL_ERROR "no promise: the first line of ${SRC} must read \"// refuse: <text that must appear>\"")
  endif()
  string(REPLACE "\\;" ";" want "${CMAKE_MATCH_1}")  # file(STRINGS) escapes semicolons
endif()
list(LENGTH lines count)
if(count GREATER 1)
  list(GET lines 1 second)
  if(second MATCHES "^// needs: ([a-z0-9_]+)$" AND NOT CMAKE_MATCH_1 IN_LIST HAVE)
    message("refusal skipped: needs ${CMAKE_MATCH_1}")
    return()
  endif()
endif()

separate_arguments(flags NATIVE_COMMAND "${FLAGS}")
foreach(list INCLUDES DEFINITIONS)  # joined by | on the way here
  string(REPLACE "|" ";" ${list} "${${list}}")
endforeach()
list(REMOVE_DUPLICATES INCLUDES)
foreach(dir IN LISTS INCLUDES)
  if(IS_DIRECTORY "${dir}")
    list(APPEND flags "-I${dir}")
  endif()
endforeach()
foreach(definition IN LISTS DEFINITIONS)
  list(APPEND flags "-D${definition}")
endforeach()
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
