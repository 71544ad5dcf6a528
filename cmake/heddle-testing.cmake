# What the projects of heddle's users test with: programs that must not compile, and programs under mpirun.
#
#   heddle_add_refusal_test(<name> <source>
#     [MESSAGE <text>]         the text that the compiler's output must hold; without it the file's first line has to read
#                              "// refuse: <text>"
#     [LIBRARIES <target>...]  whose include directories and definitions the program is compiled with; heddle::heddle always is.
#                              Their compile options and language level are not passed on: say them with FLAGS
#     [COMPILERS <path>...]    one test each; without it, the list HEDDLE_REFUSAL_COMPILERS, or this project's compiler
#     [KEEP <file>]            gets what the compiler printed
#     [FLAGS <flag>...]        added to -std=c++20; a later -std= counts
#     [LABELS <label>...] [TIMEOUT <seconds>])
#
# The test passes if the program does not compile, the text appears and there is one error, not a page of consequences.
# It is named <name>, or "<name> (<compiler>)" where COMPILERS or HEDDLE_REFUSAL_COMPILERS lists any. A second line
# "// needs: <component>" in the file skips it where the target heddle::<component> does not exist; lines
# "// and: <text>" name more that the output must hold.
# `find_package(heddle)`, `add_subdirectory` and FetchContent all define the function.
set(HEDDLE_REFUSAL_SCRIPT "${CMAKE_CURRENT_LIST_DIR}/heddle-refusal.cmake" CACHE INTERNAL "What a refusal test runs")

function(heddle_add_refusal_test name source)
  cmake_parse_arguments(PARSE_ARGV 2 REFUSAL "" "MESSAGE;TIMEOUT;KEEP" "LIBRARIES;COMPILERS;FLAGS;LABELS")
  if(REFUSAL_UNPARSED_ARGUMENTS OR REFUSAL_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "heddle_add_refusal_test(${name}): what is '${REFUSAL_UNPARSED_ARGUMENTS}${REFUSAL_KEYWORDS_MISSING_VALUES}'? "
      "Known: MESSAGE, LIBRARIES, COMPILERS, KEEP, FLAGS, LABELS, TIMEOUT, each with a value")
  endif()
  cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  if(NOT EXISTS "${source}")
    message(FATAL_ERROR "heddle_add_refusal_test(${name}): there is no file ${source}")
  endif()
  set(compilers ${REFUSAL_COMPILERS})
  if(NOT compilers)
    set(compilers ${HEDDLE_REFUSAL_COMPILERS})
  endif()
  set(named ${compilers})
  if(NOT compilers)
    set(compilers "${CMAKE_CXX_COMPILER}")
  endif()
  set(flags -std=c++20 ${REFUSAL_FLAGS})
  list(JOIN flags " " flags)
  string(ASCII 31 separator)  # in no path and no definition
  set(includes "")
  set(definitions "")
  set(libraries heddle::heddle ${REFUSAL_LIBRARIES})
  list(REMOVE_DUPLICATES libraries)
  foreach(library IN LISTS libraries)
    list(APPEND includes "$<JOIN:$<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>,${separator}>")
    list(APPEND definitions "$<JOIN:$<TARGET_PROPERTY:${library},INTERFACE_COMPILE_DEFINITIONS>,${separator}>")
  endforeach()
  list(JOIN includes "${separator}" includes)
  list(JOIN definitions "${separator}" definitions)
  set(have "")
  foreach(component IN LISTS HEDDLE_KNOWN_COMPONENTS)
    if(TARGET heddle::${component})
      list(APPEND have ${component})
    endif()
  endforeach()
  set(promise "-DPROMISE=in the first line")
  if(DEFINED REFUSAL_MESSAGE)
    string(REPLACE "$<" "$<1:$><" promise "-DMESSAGE=${REFUSAL_MESSAGE}")  # no generator expression
  endif()
  set(keep "")
  if(REFUSAL_KEEP)
    set(keep "-DKEEP=${REFUSAL_KEEP}")
  endif()
  foreach(compiler IN LISTS compilers)
    set(test "${name}")
    if(named)
      get_filename_component(compiler_name "${compiler}" NAME)
      set(test "${name} (${compiler_name})")
    endif()
    add_test(NAME "${test}" COMMAND "${CMAKE_COMMAND}" "-DCXX=${compiler}" "-DSRC=${source}" "-DFLAGS=${flags}"
      "-DINCLUDES=${includes}" "-DDEFINITIONS=${definitions}" "-DHAVE=${have}" "-DKNOWN=${HEDDLE_KNOWN_COMPONENTS}"
      "${promise}" ${keep} -P "${HEDDLE_REFUSAL_SCRIPT}")
    set_tests_properties("${test}" PROPERTIES SKIP_REGULAR_EXPRESSION "^refusal skipped: ")
    if(REFUSAL_LABELS)
      set_tests_properties("${test}" PROPERTIES LABELS "${REFUSAL_LABELS}")
    endif()
    if(REFUSAL_TIMEOUT)
      set_tests_properties("${test}" PROPERTIES TIMEOUT ${REFUSAL_TIMEOUT})
    endif()
  endforeach()
endfunction()

# A program that several processes run together: one test per number of ranks, named "<name> (<n> ranks)".
#
#   heddle_add_mpi_test(<name> <target>
#     RANKS <n>...             e.g. RANKS 2 4
#     [ARGS <argument>...]     for the program
#     [LAUNCHER <path>]        mpirun of the MPI that the program is linked with; MPIEXEC_EXECUTABLE without it
#     [LABELS <label>...]      besides "mpi"
#     [TIMEOUT <seconds>])     120 without it; no process outlives it
#
# There may be more ranks than cores, and the user may be root, as in containers: the tests' environment allows both.
find_program(HEDDLE_TIMEOUT_COMMAND timeout)
mark_as_advanced(HEDDLE_TIMEOUT_COMMAND)
set(HEDDLE_MPI_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  CACHE INTERNAL "What tests under mpirun need in containers")

function(heddle_add_mpi_test name target)
  cmake_parse_arguments(PARSE_ARGV 2 MPI_TEST "" "LAUNCHER;TIMEOUT" "RANKS;ARGS;LABELS")
  if(MPI_TEST_UNPARSED_ARGUMENTS OR MPI_TEST_KEYWORDS_MISSING_VALUES OR NOT MPI_TEST_RANKS)
    message(FATAL_ERROR "heddle_add_mpi_test(${name}): what is '${MPI_TEST_UNPARSED_ARGUMENTS}${MPI_TEST_KEYWORDS_MISSING_VALUES}'? "
      "Needed: RANKS; known: ARGS, LAUNCHER, LABELS, TIMEOUT, each with a value")
  endif()
  set(launcher "${MPIEXEC_EXECUTABLE}")
  if(MPI_TEST_LAUNCHER)
    set(launcher "${MPI_TEST_LAUNCHER}")
  endif()
  set(limit 120)
  if(MPI_TEST_TIMEOUT)
    set(limit "${MPI_TEST_TIMEOUT}")
  endif()
  set(guard "")
  if(HEDDLE_TIMEOUT_COMMAND)  # mpirun ends its processes when it is told to, not when it is killed
    set(guard "${HEDDLE_TIMEOUT_COMMAND}" -k 5 ${limit})
  endif()
  math(EXPR hard_limit "${limit} + 15")
  foreach(ranks IN LISTS MPI_TEST_RANKS)
    set(test "${name} (${ranks} ranks)")
    add_test(NAME "${test}" COMMAND ${guard} "${launcher}" -n ${ranks} "$<TARGET_FILE:${target}>" ${MPI_TEST_ARGS})
    set_tests_properties("${test}" PROPERTIES LABELS "mpi;${MPI_TEST_LABELS}" TIMEOUT ${hard_limit} PROCESSORS ${ranks}
      ENVIRONMENT "${HEDDLE_MPI_TEST_ENVIRONMENT}")
  endforeach()
endfunction()
