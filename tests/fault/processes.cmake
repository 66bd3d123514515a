# Processes that die or stop. They need libtorch, and real time.
if(TUTTI_WITH_C10D AND NOT TUTTI_SANITIZE)
  tutti_program(process_victim SOURCES fault/process_victim.cpp LINKS tutti_c10d fmt::fmt)
  foreach(case "process_faults;20;fault" "process_faults_long;200;fault;long")
    list(POP_FRONT case name runs)
    add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/process_faults_test.sh $<TARGET_FILE:tutti>
             $<TARGET_FILE:process_victim> ${runs})
    set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS "${case}" TIMEOUT 1800)
  endforeach()
  add_test(NAME ${TUTTI_TEST_PREFIX}cut_off COMMAND ${CMAKE_CURRENT_LIST_DIR}/cut_off_test.sh $<TARGET_FILE:process_victim>)
  set_tests_properties(${TUTTI_TEST_PREFIX}cut_off PROPERTIES LABELS fault TIMEOUT 180)
endif()
