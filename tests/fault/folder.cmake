# Processes that share nothing but a folder, and die or stop. They need real time, and no libtorch.
if(NOT TUTTI_SANITIZE)
  tutti_program(folder_worker SOURCES fault/folder_worker.cpp LINKS tutti_collective fmt::fmt)
  foreach(case "folder_faults;6;fault" "folder_faults_long;100;fault;long")
    list(POP_FRONT case name runs)
    add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/folder_faults_test.sh
             $<TARGET_FILE:folder_worker> ${runs})
    set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS "${case}" TIMEOUT 600)
  endforeach()
endif()
