# Runs from their file to their last checkpoint.
if(TUTTI_WITH_TORCH)
  tutti_test(unit/train_tests LINKS tutti_train TORCH
             SOURCES unit/checkpoint_test.cpp unit/evaluation_test.cpp unit/trainer_test.cpp)
endif()
