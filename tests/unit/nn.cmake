if(TUTTI_WITH_TORCH)
  tutti_test(unit/data_parallel_tests LINKS tutti_nn TORCH
             SOURCES unit/data_parallel_test.cpp unit/data_parallel_modules_test.cpp unit/data_parallel_misuse_test.cpp unit/data_parallel_private_test.cpp
                     unit/torch_optimizer_test.cpp)
  tutti_test(unit/distributed_tests LINKS tutti_nn TORCH
             SOURCES unit/distributed_module_test.cpp unit/distributed_failures_test.cpp unit/synced_module_test.cpp
                     unit/sync_batch_norm_test.cpp unit/random_draws_test.cpp)
  if(TUTTI_BUILD_EXAMPLES AND NOT TUTTI_SANITIZE)
    add_test(NAME ${TUTTI_TEST_PREFIX}blas COMMAND ${CMAKE_CURRENT_LIST_DIR}/blas_test.sh $<TARGET_FILE:example_distributed>)
    set_tests_properties(${TUTTI_TEST_PREFIX}blas PROPERTIES LABELS unit TIMEOUT 120)
  endif()
endif()
