# One way to use heddle, from nothing to a program that ran.
#
#   cmake -DWAY=install|find_package|refused|add_subdirectory|fetch_content|plain|pkg_config|cuda
#         -DSOURCE=<heddle> -DBUILD=<heddle's build directory> -DFOLDER=<scratch> -DCXX=<compiler> -DGENERATOR=<CMake's>
#         [-DCOMPONENTS=mpi,range_v3] [-DNVCC=<nvcc> -DNVCC_HOST=<g++>] -P consume.cmake
#
# `install` comes first: it installs into one directory and moves the result to another, where the others find it.
cmake_minimum_required(VERSION 3.25)
set(moved "${FOLDER}/moved")
set(scratch "${FOLDER}/${WAY}")

function(must)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(must_print program)
  must("${program}")
  if(NOT output MATCHES "heddle [0-9]+, dp=2 x tp=2")
    message(FATAL_ERROR "the consumer printed:\n${output}")
  endif()
endfunction()

string(REPLACE "," ";" components "${COMPONENTS}")
string(REPLACE "," "_" suffix "${COMPONENTS}")
string(APPEND scratch "${suffix}")
file(REMOVE_RECURSE "${scratch}")
file(MAKE_DIRECTORY "${scratch}")
set(configure "${CMAKE_COMMAND}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_PREFIX_PATH=${moved}"
  "-DHEDDLE_SOURCE=${SOURCE}" -S "${SOURCE}/tests/consume" -B "${scratch}")

if(WAY STREQUAL "install")
  file(REMOVE_RECURSE "${FOLDER}/first" "${moved}")
  must("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${FOLDER}/first")
  file(RENAME "${FOLDER}/first" "${moved}")
  if(NOT EXISTS "${moved}/include/heddle/heddle.hpp")
    message(FATAL_ERROR "the umbrella was not installed")
  endif()
elseif(WAY STREQUAL "refused")
  execute_process(COMMAND ${configure} -DWAY=find_package -DCOMPONENTS=rocm RESULT_VARIABLE status ERROR_VARIABLE output OUTPUT_QUIET)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0 OR NOT output MATCHES "heddle has no component 'rocm' \\(known: mpi kokkos cuda nccl")
    message(FATAL_ERROR "asking for a component that does not exist said:\n${output}")
  endif()
elseif(WAY STREQUAL "plain")
  must("${CXX}" -std=c++20 -pthread "-I${SOURCE}/include" "${SOURCE}/tests/consume/main.cpp" -o "${scratch}/consumer")
  must_print("${scratch}/consumer")
elseif(WAY STREQUAL "pkg_config")
  set(ENV{PKG_CONFIG_PATH} "${moved}/share/pkgconfig")
  must(pkg-config --cflags --libs heddle)
  separate_arguments(flags UNIX_COMMAND "${output}")
  must("${CXX}" -std=c++20 "${SOURCE}/tests/consume/main.cpp" ${flags} -o "${scratch}/consumer")
  must_print("${scratch}/consumer")
elseif(WAY STREQUAL "cuda")
  must(${configure} -DWAY=find_package -DWITH_CUDA=ON "-DCMAKE_CUDA_COMPILER=${NVCC}" "-DCMAKE_CUDA_HOST_COMPILER=${NVCC_HOST}"
    -DCMAKE_CUDA_ARCHITECTURES=90)
  must("${CMAKE_COMMAND}" --build "${scratch}")
else()
  must(${configure} "-DWAY=${WAY}" "-DCOMPONENTS=${components}")
  must("${CMAKE_COMMAND}" --build "${scratch}")
  must_print("${scratch}/consumer")
endif()
