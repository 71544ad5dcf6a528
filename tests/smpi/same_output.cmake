# Runs a program under two launchers, which must both succeed and print the same, and something: ONE, OTHER, PROGRAM.
execute_process(COMMAND ${ONE} ${PROGRAM} OUTPUT_VARIABLE one RESULT_VARIABLE one_status)
execute_process(COMMAND ${OTHER} ${PROGRAM} OUTPUT_VARIABLE other RESULT_VARIABLE other_status)
message("${one}${other}")
if(NOT one_status EQUAL 0 OR NOT other_status EQUAL 0 OR one STREQUAL "" OR NOT one STREQUAL other)
  message(FATAL_ERROR "status ${one_status} and ${other_status}, or different output")
endif()
