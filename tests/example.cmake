# Runs an example in a fresh directory and checks what it prints against the lines at the top of its source.
#
#   cmake -DPROGRAM=build/examples/x -DSRC=examples/x.cpp -DFOLDER=directory [-DLAUNCHER=mpirun;-n;4]
#         [-DARGUMENTS=...] [-DSAME_AS=build/examples/y] -P example.cmake
#
# SAME_AS: it must print what this program prints with the same arguments, apart from what "// varies:" lines match.
# ARGUMENTS: other ones than the source's, for which its "// prints:" lines need not hold.
cmake_minimum_required(VERSION 3.25)

set(arguments "")
set(wanted "")
set(varying "")
file(READ "${SRC}" text)
string(REPLACE ";" "\\;" text "${text}")
string(REGEX MATCHALL "(^|\n)// (run|prints|varies):[^\n]*" lines "${text}")
foreach(line IN LISTS lines)
  string(STRIP "${line}" line)
  if(line MATCHES "^// run:(.*)$")
    separate_arguments(arguments UNIX_COMMAND "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// prints: *(.+)$")
    list(APPEND wanted "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// varies: *(.+)$")
    string(REPLACE "." "[^\n]" pattern "${CMAKE_MATCH_1}")
    list(APPEND varying "${pattern}")
  endif()
endforeach()
if(DEFINED ARGUMENTS)
  separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
  set(wanted "")
endif()

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}")
execute_process(COMMAND ${LAUNCHER} "${PROGRAM}" ${arguments} WORKING_DIRECTORY "${FOLDER}"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${status}\n${output}\n${errors}")
endif()
foreach(want IN LISTS wanted)
  string(FIND "${output}" "${want}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "\"${want}\" is not in the output:\n${output}\n${errors}")
  endif()
endforeach()
if(SAME_AS)
  file(REMOVE_RECURSE "${FOLDER}")
  file(MAKE_DIRECTORY "${FOLDER}")
  execute_process(COMMAND "${SAME_AS}" ${arguments} WORKING_DIRECTORY "${FOLDER}"
    RESULT_VARIABLE status OUTPUT_VARIABLE other ERROR_VARIABLE errors)
  set(one "${output}")
  foreach(pattern IN LISTS varying)
    string(REGEX REPLACE " *${pattern}" "" one "${one}")
    string(REGEX REPLACE " *${pattern}" "" other "${other}")
  endforeach()
  if(NOT status EQUAL 0 OR NOT one STREQUAL other)
    message(FATAL_ERROR "${PROGRAM} printed:\n${output}\n${SAME_AS}, which ended with ${status}, leaves of it:\n${other}\n${errors}")
  endif()
endif()
message("${output}")
