# cmake -DPAGE=page.md -P links.cmake: every relative link of the page leads to something.
cmake_minimum_required(VERSION 3.25)
file(READ "${PAGE}" text)
get_filename_component(folder "${PAGE}" DIRECTORY)
string(REGEX REPLACE "```[^`]*```" "" text "${text}")  # code is not links
string(REPLACE "](" "@(" text "${text}")  # brackets have a meaning in CMake's lists
string(REPLACE ";" "," text "${text}")
string(REGEX MATCHALL "@\\([^) \n]+\\)" links "${text}")
set(broken "")
foreach(link IN LISTS links)
  string(REGEX REPLACE "^@\\(([^)#]*).*$" "\\1" target "${link}")
  if(NOT target STREQUAL "" AND NOT target MATCHES "^[a-z]+:" AND NOT EXISTS "${folder}/${target}")
    list(APPEND broken "${target}")
  endif()
endforeach()
if(broken)
  list(JOIN broken ", " broken)
  message(FATAL_ERROR "${PAGE} links to what is not there: ${broken}")
endif()
