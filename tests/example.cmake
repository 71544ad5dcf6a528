# Runs an example in a fresh directory and checks what it prints against the lines at the top of its source.
#
#   cmake -DPROGRAM=build/examples/x -DSRC=examples/x.cpp -DFOLDER=directory [-DLAUNCHER=mpirun;-n;4] -P example.cmake
cmake_minimum_required(VERSION 3.25)

set(arguments "")
set(wanted "")
file(READ "${SRC}" text)
string(REPLACE ";" "\\;" text "${text}")
string(REGEX MATCHALL "(^|\n)// (run|prints):[^\n]*" lines "${text}")
foreach(line IN LISTS lines)
  string(STRIP "${line}" line)
  if(line MATCHES "^// run:(.*)$")
    separate_arguments(arguments UNIX_COMMAND "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// prints: *(.+)$")
    list(APPEND wanted "${CMAKE_MATCH_1}")
  endif()
endforeach()

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
message("${output}")
