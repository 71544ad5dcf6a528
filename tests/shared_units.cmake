# heddle_shared_units(<variable> <name> <source>...): sets the variable to sources that make the same objects in less time:
# up to HEDDLE_TEST_SHARED_UNITS tests in one file, so that what they instantiate alike is compiled once. Each test is in
# a namespace of its own, behind all that any of them includes. Files stay alone that define macros, add to namespaces of
# others, include under a condition, or say "// Compiled alone: " and why.
set(HEDDLE_TEST_SHARED_UNITS 0 CACHE STRING "How many test files are compiled as one; 0: each by itself")

# heddle_shared_unit(<file> <source>...): writes such a file, of sources below the folder of the tests.
function(heddle_shared_unit file)
  set(tests "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  set(includes "")
  set(bodies "")
  foreach(path IN LISTS ARGN)
    # Relative to the folder of the tests: ccache then finds what another checkout compiled.
    file(RELATIVE_PATH relative "${tests}" "${path}")
    get_filename_component(folder "${relative}" DIRECTORY)
    file(STRINGS "${path}" lines REGEX "^#include |HEDDLE_SOURCE_DIR")
    foreach(line IN LISTS lines)
      if(NOT line MATCHES "^#include")
        set(line "// HEDDLE_SOURCE_DIR is used.")
      elseif(line MATCHES "\"(.*)\"")
        if(EXISTS "${tests}/${folder}/${CMAKE_MATCH_1}")
          set(line "#include \"${folder}/${CMAKE_MATCH_1}\"")
        endif()
      endif()
      list(APPEND includes "${line}\n")
    endforeach()
    string(MAKE_C_IDENTIFIER "${relative}" own)
    string(APPEND bodies "namespace ${own} {\n#include \"${relative}\"\n}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  string(JOIN "" text ${includes} "\n" "${bodies}")
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}" @ONLY)  # written only if it changes
endfunction()

function(heddle_shared_units variable name)
  set(alone "")
  set(shared "")
  foreach(source IN LISTS ARGN)
    get_filename_component(path "${source}" ABSOLUTE)
    file(READ "${path}" text)
    if(NOT HEDDLE_TEST_SHARED_UNITS GREATER 1 OR NOT path MATCHES "_test\\.cpp$"
        OR text MATCHES "\n// Compiled alone: " OR text MATCHES "\n *#(define|if)" OR text MATCHES "\nnamespace (heddle|std|Catch)[ :]"
        OR text MATCHES "\n *(struct|class|union) (heddle|hd|std|Catch)::" OR text MATCHES "\ntemplate <>")
      list(APPEND alone "${source}")
    else()
      list(APPEND shared "${path}")
    endif()
  endforeach()

  # As many in each unit, or one less.
  list(LENGTH shared left)
  set(unit 0)
  while(left GREATER 0)
    math(EXPR units "(${left} + ${HEDDLE_TEST_SHARED_UNITS} - 1) / ${HEDDLE_TEST_SHARED_UNITS}")
    math(EXPR n "(${left} + ${units} - 1) / ${units}")
    list(SUBLIST shared 0 ${n} members)
    math(EXPR left "${left} - ${n}")
    if(left GREATER 0)
      list(SUBLIST shared ${n} -1 shared)
    endif()
    set(file "${CMAKE_CURRENT_BINARY_DIR}/shared_units/${name}_${unit}.cpp")
    heddle_shared_unit("${file}" ${members})
    list(APPEND alone "${file}")
    math(EXPR unit "${unit} + 1")
  endwhile()
  set(${variable} ${alone} PARENT_SCOPE)
endfunction()
