# heddle through Conan, with the client from the Python index.
#
#   cmake -DWAY=client|create|compiled|mpi|refused|center -DSOURCE=<heddle> -DFOLDER=<scratch> -DCXX=<compiler> -DGENERATOR=<CMake's>
#         -DPYTHON=<python3> -DKNOWN=mpi,kokkos,... -P conan.cmake
#
# `client` comes first: it puts the client and Conan's home, with a profile of this compiler, into the scratch folder;
# `create` then makes the package that the others use. No remote is asked for anything.
cmake_minimum_required(VERSION 3.25)
set(version 2.34.0)  # of the client
set(client "${FOLDER}/venv/bin/conan")
set(scratch "${FOLDER}/${WAY}")
set(ENV{CONAN_HOME} "${FOLDER}/home")
set(ENV{CXX} "${CXX}")
file(REMOVE_RECURSE "${scratch}")
file(MAKE_DIRECTORY "${scratch}")

# Conan writes what it does to stderr, and results to stdout.
function(must)
  execute_process(COMMAND ${ARGV} WORKING_DIRECTORY "${scratch}" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(must_fail text)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${scratch}" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "${text}" at)
  if(status EQUAL 0 OR at EQUAL -1)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${status} and should have said \"${text}\":\n${output}")
  endif()
endfunction()

# The two steps of test_package, and that four ranks have the losses of one.
function(must_train output)
  foreach(step 1 2)
    if(NOT output MATCHES "step ${step}: loss ([0-9.]+) on one rank, ([0-9.]+) on four" OR NOT CMAKE_MATCH_1 STREQUAL CMAKE_MATCH_2)
      message(FATAL_ERROR "step ${step} of test_package:\n${output}")
    endif()
  endforeach()
endfunction()

# Debug, for compile times: one package serves every setting.
set(how --no-remote -s compiler.cppstd=20 -s build_type=Debug -c "tools.cmake.cmake_layout:test_folder=${scratch}")

# The files of Conan's for a consumer that asks for MPI, and how that one is configured.
macro(install generator)
  set(files "${scratch}/${generator}")
  must("${client}" install "--requires=heddle/[*]" ${how} -o "heddle/*:with_mpi=True" -g ${generator} -g CMakeToolchain -of "${files}")
  set(configure "${CMAKE_COMMAND}" -G "${GENERATOR}" "-DCMAKE_TOOLCHAIN_FILE=${files}/conan_toolchain.cmake" -DCMAKE_BUILD_TYPE=Debug
    -DWAY=find_package -S "${SOURCE}/tests/consume" -B "${files}/build")
endmacro()

if(WAY STREQUAL "client")
  execute_process(COMMAND "${client}" --version OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT output MATCHES "Conan version ${version}")
    file(REMOVE_RECURSE "${FOLDER}/venv")
    foreach(command "${PYTHON}|-m|venv|${FOLDER}/venv" "${FOLDER}/venv/bin/python|-m|pip|install|--quiet|conan==${version}")
      string(REPLACE "|" ";" command "${command}")
      execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
      if(NOT status EQUAL 0)
        list(JOIN command " " command)
        message(FATAL_ERROR "heddle: the Conan client could not be installed from the Python index, which these tests need "
          "(python3-venv and pip's index; HEDDLE_TEST_CONAN=OFF leaves the tests out):\n${command}\nended with ${status}:\n${output}")
      endif()
    endforeach()
  endif()
  file(REMOVE_RECURSE "${FOLDER}/home")
  must("${client}" profile detect)
  message("${output}")
elseif(WAY STREQUAL "create")
  must("${client}" inspect "${SOURCE}")
  string(REPLACE "," ";" known "${KNOWN}")
  string(REGEX MATCHALL "with_[a-z0-9_]+: \\['True', 'False'\\]|with_[a-z0-9_]+: \\[True, False\\]" options "${output}")
  list(TRANSFORM options REPLACE "with_([a-z0-9_]+): .*" "\\1")
  list(SORT options)
  list(SORT known)
  if(NOT options STREQUAL known)
    message(FATAL_ERROR "conanfile.py has options for '${options}', heddle-components.cmake knows '${known}'")
  endif()
  must("${client}" create "${SOURCE}" ${how})
  must_train("${output}")
elseif(WAY STREQUAL "compiled")  # a package of its own, for these settings, with static libraries
  must("${client}" create "${SOURCE}" ${how} -o "heddle/*:families=gpt2_f32")
  must_train("${output}")
  must("${client}" list "heddle/*:*" --format=json)
  if(NOT output MATCHES "\"compiled\": \"True\"" OR NOT output MATCHES "\"families\": \"gpt2_f32\"")
    message(FATAL_ERROR "the package with the library is not told from the headers' package:\n${output}")
  endif()
elseif(WAY STREQUAL "center")  # in a home of its own, for the package has the same name; from an archive, as of a release
  set(ENV{CONAN_HOME} "${scratch}/home")
  must("${client}" profile detect)
  file(READ "${SOURCE}/packaging/vcpkg/heddle/vcpkg.json" port)
  string(JSON version GET "${port}" version)
  set(archive "${scratch}/heddle-${version}.tar.gz")
  file(COPY "${SOURCE}/include" "${SOURCE}/LICENSE" DESTINATION "${scratch}/heddle-${version}")
  must("${CMAKE_COMMAND}" -E tar czf "${archive}" "heddle-${version}")
  must("${PYTHON}" "${SOURCE}/tests/consume/recipes.py" "${SOURCE}" --release "${archive}" "file://${archive}" https://example.org/heddle "${scratch}/recipes")
  must("${client}" create "${scratch}/recipes/conan-center/all" --version ${version} ${how})
  if(NOT output MATCHES "heddle [0-9]+, dp=2 x tp=2")
    message(FATAL_ERROR "the test package of the recipe for Conan Center printed:\n${output}")
  endif()
  must_fail("requires gcc >= 12, but gcc 11 was found"
    "${client}" install "--requires=heddle/${version}" ${how} -s compiler=gcc -s compiler.version=11 -of "${scratch}")
elseif(WAY STREQUAL "mpi")  # the same package: its id does not depend on options
  must("${client}" test "${SOURCE}/test_package" heddle/[*] ${how} -o "heddle/*:with_mpi=True")
  must_train("${output}")
  if(NOT output MATCHES "train \\(4 ranks\\) [.]+ +Passed")
    message(FATAL_ERROR "test_package did not run under mpirun:\n${output}")
  endif()
  foreach(generator CMakeDeps CMakeConfigDeps)
    install(${generator})
    must(${configure} -DCOMPONENTS=mpi)
  endforeach()
elseif(WAY STREQUAL "refused")
  must_fail("lower than the required C++ standard (20)"
    "${client}" install "--requires=heddle/[*]" ${how} -s compiler.cppstd=17 -of "${scratch}")
  must_fail("requires gcc >= 12, but gcc 11 was found"
    "${client}" install "--requires=heddle/[*]" ${how} -s compiler=gcc -s compiler.version=11 -of "${scratch}")
  must_fail("requires clang >= 17, but clang 16 was found"
    "${client}" install "--requires=heddle/[*]" ${how} -s compiler=clang -s compiler.version=16 -s compiler.libcxx=libstdc++11 -of "${scratch}")
  must("${client}" install "--requires=heddle/[*]" ${how} -o "heddle/*:with_uring=True" -of "${scratch}" --format=json
    -c tools.system.package_manager:mode=report -c tools.system.package_manager:tool=apt-get)
  if(NOT output MATCHES "\"install\": \\[[ \n]*\"liburing-dev\"[ \n]*\\]")
    message(FATAL_ERROR "with_uring did not name Debian's package:\n${output}")
  endif()
  foreach(generator CMakeDeps CMakeConfigDeps)
    install(${generator})
    must_fail("heddle has no component 'rocm' (known: mpi kokkos cuda nccl" ${configure} -DCOMPONENTS=rocm)
    must_fail("component 'onednn' is off in this Conan package: set its option, -o \"heddle/*:with_onednn=True\"" ${configure} -DCOMPONENTS=onednn)
    must_fail("heddle::compiled is off in this Conan package: set its option, -o \"heddle/*:compiled=True\"" ${configure} -DCOMPONENTS=compiled)
    must_fail("heddle::families is off in this Conan package: set its option, -o \"heddle/*:families=all_f32\"" ${configure} -DCOMPONENTS=families)
    must_fail("component 'mpi' needs MPI::MPI_CXX, which was not found. Conan's option with_mpi takes it from the system."
      ${configure} -DCOMPONENTS=mpi -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
  endforeach()
else()
  message(FATAL_ERROR "WAY is '${WAY}'")
endif()
