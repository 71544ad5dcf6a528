# Tests of code for GPUs: over a stand-in for the libraries, compiled and linked by nvcc, and on a GPU where there is one.
#
#   heddle_stand_in_program(<target> <component> <source>...)
#     An executable that finds the headers of the component's package, and whose sources bring the functions of its libraries.
#   heddle_gpu_test(<name> <program> [LABELS <label>...])
#     Runs a program that ends with 77, so that the test counts as skipped, where there is no GPU. The label gpu is added.
#   heddle_nvcc_test(<name> <source>
#     [RUN <words>]            with them, "<name> <words>" runs the program, as heddle_gpu_test does
#     [CATCH]                  the source holds test cases: with Catch2, the folder tests and the main program of tests on a GPU
#     [COMPONENT <component>]  whose package's headers it includes
#     [ARCH <flag>...]         which GPUs it is compiled for; -arch=sm_90 without it
#     [FLAGS <flag>...] [LINK <flag>...] [LABELS <label>...] [TIMEOUT <seconds>])
#     The test "<name> compiled and linked by nvcc": without warnings, and without kernels that spill registers.

function(heddle_stand_in_program target component)
  heddle_component_includes(${component} includes)
  list(FILTER includes EXCLUDE REGEX "^-isystem$")
  add_executable(${target} ${ARGN})
  heddle_own_target(${target})
  target_compile_options(${target} PRIVATE ${HEDDLE_TEST_FLAGS})
  target_include_directories(${target} SYSTEM PRIVATE ${includes})
  target_link_libraries(${target} PRIVATE heddle_test_options)
endfunction()

function(heddle_gpu_test name program)
  cmake_parse_arguments(PARSE_ARGV 2 GPU "" "" "LABELS")
  set(labels ${GPU_LABELS} gpu ${HEDDLE_TEST_LABEL})
  add_test(NAME "${name}" COMMAND "${program}")
  set_tests_properties("${name}" PROPERTIES LABELS "${labels}" TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

function(heddle_nvcc_test name source)
  cmake_parse_arguments(PARSE_ARGV 2 NVCC "CATCH" "RUN;COMPONENT;TIMEOUT" "ARCH;FLAGS;LINK;LABELS")
  if(NVCC_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "heddle_nvcc_test(${name}): what is '${NVCC_UNPARSED_ARGUMENTS}'?")
  endif()
  if(NOT NVCC_ARCH)
    set(NVCC_ARCH -arch=sm_90)
  endif()
  if(NOT NVCC_TIMEOUT)
    set(NVCC_TIMEOUT 300)
  endif()
  set(flags "-I${PROJECT_SOURCE_DIR}/include")
  set(objects "")
  if(NVCC_CATCH)
    get_target_property(catch_dirs Catch2::Catch2 INTERFACE_INCLUDE_DIRECTORIES)
    list(TRANSFORM catch_dirs PREPEND "-I")
    list(APPEND flags "-I${PROJECT_SOURCE_DIR}/tests" ${catch_dirs})
    set(objects "$<TARGET_OBJECTS:heddle_cuda_gpu_main>")
  endif()
  if(NVCC_COMPONENT)
    heddle_component_includes(${NVCC_COMPONENT} of_package)
    list(APPEND flags ${of_package})
  endif()
  cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
  cmake_path(GET source STEM program)
  set(program "${CMAKE_CURRENT_BINARY_DIR}/${program}")
  set(labels ${NVCC_LABELS} ${HEDDLE_TEST_LABEL})
  add_test(NAME "${name} compiled and linked by nvcc" COMMAND "${HEDDLE_NVCC}" -std=c++20 ${NVCC_ARCH} "-ccbin=${HEDDLE_NVCC_HOST}"
    -Xptxas=-warn-spills -Werror=all-warnings ${flags} ${NVCC_FLAGS} "${source}" ${objects} -o "${program}" ${NVCC_LINK})
  set_tests_properties("${name} compiled and linked by nvcc" PROPERTIES LABELS "${labels}" TIMEOUT ${NVCC_TIMEOUT})
  if(NVCC_RUN)
    heddle_gpu_test("${name} ${NVCC_RUN}" "${program}" LABELS ${NVCC_LABELS})
    set_tests_properties("${name} compiled and linked by nvcc" PROPERTIES FIXTURES_SETUP "${name}")
    set_tests_properties("${name} ${NVCC_RUN}" PROPERTIES FIXTURES_REQUIRED "${name}")
  endif()
endfunction()
