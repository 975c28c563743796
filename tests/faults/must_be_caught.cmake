# TEST passes as it is and fails with FAULT active, by its own checks. BUILD: the build folder; CTEST.
string(REPLACE "." "\\." pattern "^${TEST}$")

function(run_test fault)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env TESSERA_PLANTED_FAULT=${fault} "${CTEST}" --test-dir "${BUILD}" --output-on-failure -R "${pattern}"
                  RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(result "${result}" PARENT_SCOPE)
  set(said "${said}" PARENT_SCOPE)
endfunction()

run_test(none)
if(NOT result EQUAL 0 OR said MATCHES "No tests were found")
  message(FATAL_ERROR "${TEST} must pass without a fault:\n${said}")
endif()
run_test(${FAULT})
if(result EQUAL 0)
  message(FATAL_ERROR "${TEST} does not see the fault ${FAULT}")
endif()
if(NOT said MATCHES "\\*\\*\\*Failed|\\*\\*\\*Exception|\\*\\*\\*Timeout|watchdog")
  message(FATAL_ERROR "${TEST} did not run with the fault ${FAULT}:\n${said}")
endif()
message(STATUS "${TEST} sees ${FAULT}:\n${said}")
