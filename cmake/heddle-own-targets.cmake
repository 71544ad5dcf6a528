# What heddle's own tests, examples and benchmarks have in common. Nothing here reaches a user's target.
option(HEDDLE_NATIVE "Compile heddle's own programs for this machine's processor" OFF)
set(HEDDLE_GEMM_LIBRARY "auto" CACHE STRING "Matrix products of heddle's own programs: auto, onednn, cblas or portable")
set_property(CACHE HEDDLE_GEMM_LIBRARY PROPERTY STRINGS auto onednn cblas portable)

# A component is used when found; one that is named in HEDDLE_COMPONENTS must be there.
set(HEDDLE_FOUND_COMPONENTS "")
foreach(component IN LISTS HEDDLE_KNOWN_COMPONENTS HEDDLE_COMPONENTS)
  if(component IN_LIST HEDDLE_FOUND_COMPONENTS)
    continue()
  endif()
  heddle_find_component(${component} found reason)
  if(found)
    list(APPEND HEDDLE_FOUND_COMPONENTS ${component})
    message(STATUS "heddle: component ${component}: found")
  elseif(component IN_LIST HEDDLE_COMPONENTS)
    message(FATAL_ERROR "heddle: ${reason}")
  else()
    message(STATUS "heddle: component ${component}: not found, not used")
  endif()
endforeach()

set(gemm portable)
foreach(library cblas onednn)  # the last one found wins
  if(library IN_LIST HEDDLE_FOUND_COMPONENTS)
    set(gemm ${library})
  endif()
endforeach()
if(NOT HEDDLE_GEMM_LIBRARY STREQUAL "auto")
  set(gemm ${HEDDLE_GEMM_LIBRARY})
  if(NOT gemm STREQUAL "portable" AND NOT gemm IN_LIST HEDDLE_FOUND_COMPONENTS)
    message(FATAL_ERROR "heddle: HEDDLE_GEMM_LIBRARY is ${gemm}, which was not found (known: auto onednn cblas portable)")
  endif()
endif()
set(HEDDLE_CHOSEN_GEMM ${gemm})
message(STATUS "heddle: matrix products (GEMM) through ${HEDDLE_CHOSEN_GEMM}")

# Links the chosen library of matrix products and tells the program its header and backend:
# `#include HEDDLE_GEMM_HEADER`, then `heddle::compute::host<HEDDLE_GEMM>`.
function(heddle_host_gemm target)
  get_target_property(type ${target} TYPE)
  set(scope PRIVATE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  endif()
  if(NOT HEDDLE_CHOSEN_GEMM STREQUAL "portable")
    target_link_libraries(${target} ${scope} heddle::${HEDDLE_CHOSEN_GEMM})
  endif()
  target_compile_definitions(${target} ${scope}
    "HEDDLE_GEMM_HEADER=<heddle/compute/host/${HEDDLE_CHOSEN_GEMM}.hpp>"
    "HEDDLE_GEMM=heddle::compute::${HEDDLE_CHOSEN_GEMM}")
endfunction()

# Links those of the named components that were found.
function(heddle_link_found target)
  get_target_property(type ${target} TYPE)
  set(scope PRIVATE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  endif()
  foreach(component IN LISTS ARGN)
    if(component IN_LIST HEDDLE_FOUND_COMPONENTS)
      target_link_libraries(${target} ${scope} heddle::${component})
    endif()
  endforeach()
endfunction()

# The -isystem flags that a component's package needs, for tests that call a compiler themselves.
function(heddle_component_includes component out)
  set(flags "")
  get_target_property(packages heddle::${component} INTERFACE_LINK_LIBRARIES)
  foreach(package IN LISTS packages)
    if(TARGET ${package} AND NOT package STREQUAL "heddle::heddle")
      get_target_property(dirs ${package} INTERFACE_INCLUDE_DIRECTORIES)
      foreach(dir IN LISTS dirs)
        if(IS_DIRECTORY "${dir}" AND NOT dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
          list(APPEND flags -isystem "${dir}")
        endif()
      endforeach()
    endif()
  endforeach()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# Flags of heddle's own programs: warnings always; errors from warnings only where a preset asks.
add_library(heddle_own_options INTERFACE)
target_link_libraries(heddle_own_options INTERFACE heddle::heddle)
target_compile_options(heddle_own_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(heddle_own_options INTERFACE -Wno-restrict)  # a false alarm of g++ 12 about "text" + std::string
endif()
if(HEDDLE_NATIVE)
  target_compile_options(heddle_own_options INTERFACE -march=native)
endif()

# ccache, where there is one; precompiled headers need to be told to it. What was compiled in one checkout is found from
# another: paths below the source folder count as relative ones.
find_program(HEDDLE_CCACHE ccache)
mark_as_advanced(HEDDLE_CCACHE)
function(heddle_own_target target)
  target_link_libraries(${target} PRIVATE heddle_own_options)
  if(HEDDLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};CCACHE_NOHASHDIR=1;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime;${HEDDLE_CCACHE}")
  endif()
endfunction()

# Tells those of the sources that ask for it (HEDDLE_SOURCE_DIR) where this checkout is. Only those: a path on every command
# line would keep ccache from finding what another checkout compiled.
function(heddle_source_dir_for)
  foreach(source IN LISTS ARGN)
    file(STRINGS "${source}" uses REGEX HEDDLE_SOURCE_DIR LIMIT_COUNT 1)
    if(uses)
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_DEFINITIONS "HEDDLE_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
    endif()
  endforeach()
endfunction()

# What a build that only tests changes for examples and benchmarks: the tests' flags, and the tests' library of what is no
# template, with its settings. (That a program compiles without that library is for the tests of consumers and documents.)
function(heddle_only_tested target)
  target_compile_options(${target} PRIVATE ${HEDDLE_TEST_FLAGS})
  if(HEDDLE_TESTS AND HEDDLE_TEST_COMPILED)
    target_compile_definitions(${target} PRIVATE HEDDLE_CHECK_BOUNDS=1)
    target_link_libraries(${target} PRIVATE heddle_test_bodies)
  endif()
endfunction()
