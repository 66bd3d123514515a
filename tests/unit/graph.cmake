if(TUTTI_WITH_TORCH)
  tutti_test(unit/graph_test LINKS tutti_graph ONE_THREAD)
  tutti_test(unit/initializer_test LINKS tutti_graph ONE_THREAD)
  tutti_test(unit/schedule_test LINKS tutti_train ONE_THREAD)
  # Vectors are what tests/vectors/make_vectors.py wrote.
  tutti_test(unit/graph_tests LINKS tutti_train TORCH
             SOURCES unit/graph_module_test.cpp unit/operator_vectors_test.cpp unit/torchscript_test.cpp unit/run_test.cpp
                     property/operators_test.cpp property/run_file_test.cpp)
  target_compile_definitions(unit_graph_tests PRIVATE TUTTI_VECTORS="${CMAKE_CURRENT_SOURCE_DIR}/vectors"
                                                      TUTTI_EXAMPLES="${PROJECT_SOURCE_DIR}/examples")
  if(NOT TUTTI_SANITIZE)
    add_test(NAME ${TUTTI_TEST_PREFIX}check_command COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_command_test.sh $<TARGET_FILE:tutti>)
    set_tests_properties(${TUTTI_TEST_PREFIX}check_command PROPERTIES LABELS unit TIMEOUT 900)
    add_test(NAME ${TUTTI_TEST_PREFIX}footprint COMMAND ${CMAKE_CURRENT_LIST_DIR}/footprint_test.sh $<TARGET_FILE:tutti>)
    set_tests_properties(${TUTTI_TEST_PREFIX}footprint PROPERTIES LABELS unit TIMEOUT 600)
  endif()
endif()
