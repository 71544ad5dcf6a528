# Compiles one file that must be refused: it has to fail, with a promised sentence, and with one error.
# `heddle_add_refusal_test` (heddle-testing.cmake) makes tests that run this; it also works alone:
#
#   cmake -DCXX=g++ -DSRC=file.cpp "-DFLAGS=-std=c++20 -I..." ["-DMESSAGE=<text that must appear>"] ["-DINCLUDES=dir<1F>dir"]
#         ["-DDEFINITIONS=A=1<1F>B"] ["-DHAVE=range_v3;mpi"] ["-DKNOWN=range_v3;mpi;cuda"] [-DKEEP=<file that gets the compiler's output>] -P heddle-refusal.cmake
#
# <1F> is the character 31. Without MESSAGE the file begins with "// refuse: <text that must appear>"; an optional second line
# "// needs: <component>" skips it where that component is not in HAVE, and fails where it is not in KNOWN. Lines
# "// and: <text>" name what must appear as well.
cmake_minimum_required(VERSION 3.25)

# The first two lines; as text, for in a list of CMake's a bracket or a semicolon would join or cut them.
file(READ "${SRC}" text)
string(FIND "${text}" "\n" end)
string(SUBSTRING "${text}" 0 ${end} first)
string(REGEX REPLACE "\r$" "" first "${first}")
if(DEFINED MESSAGE)
  set(want "${MESSAGE}")
else()
  if(NOT first MATCHES "^// refuse: (.+)$")
    message(FATAL_ERROR "no promise: the first line of ${SRC} must read \"// refuse: <text that must appear>\"")
  endif()
  set(want "${CMAKE_MATCH_1}")
endif()
if(text MATCHES "^[^\n]*\n// needs: ([^\r\n]+)")
  set(needs "${CMAKE_MATCH_1}")
  if(DEFINED KNOWN AND NOT needs IN_LIST KNOWN)
    list(JOIN KNOWN " " known)
    message(FATAL_ERROR "unknown component: ${SRC} needs '${needs}', but heddle has only ${known}")
  endif()
  if(NOT needs IN_LIST HAVE)
    message("refusal skipped: needs ${needs}")
    return()
  endif()
endif()

separate_arguments(flags NATIVE_COMMAND "${FLAGS}")
string(ASCII 31 separator)
foreach(list INCLUDES DEFINITIONS)
  string(REPLACE "${separator}" ";" ${list} "${${list}}")
  list(REMOVE_ITEM ${list} "")  # of targets that have none
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
if(DEFINED KEEP)
  file(WRITE "${KEEP}" "${output}")
endif()
if(status EQUAL 0)
  message(FATAL_ERROR "compiled, but must not")
endif()
string(FIND "${output}" "${want}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "failed with another message than \"${want}\":\n${output}")
endif()
# Of lines "// and: <text>" each text must appear, too.
set(rest "${text}")
while(rest MATCHES "\n// and: ([^\r\n]+)")
  string(FIND "${output}" "${CMAKE_MATCH_1}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "failed without \"${CMAKE_MATCH_1}\":\n${output}")
  endif()
  string(FIND "${rest}" "\n// and: " at)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${rest}" ${at} -1 rest)
endwhile()
string(REGEX REPLACE "[][;]" "." plain "${output}")  # see above: nothing that joins or cuts a list
string(REGEX MATCHALL "(^|\n)[^\n]*: (fatal )?error: " errors "${plain}")
list(LENGTH errors count)
if(count GREATER 1)
  message(FATAL_ERROR "${count} errors for one mistake:\n${output}")
endif()
