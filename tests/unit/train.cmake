# Runs from their file to their last checkpoint.
if(TUTTI_WITH_TORCH)
  tutti_test(unit/train_tests LINKS tutti_train TORCH
             SOURCES unit/checkpoint_test.cpp unit/evaluation_test.cpp unit/trainer_test.cpp)
  if(NOT TUTTI_SANITIZE)
    foreach(script train_command_test.sh train_examples_test.sh train_files_test.sh)
      string(REPLACE _test.sh "" name ${script})
      add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/${script} $<TARGET_FILE:tutti>)
      set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS unit TIMEOUT 600)
    endforeach()
  endif()
endif()
