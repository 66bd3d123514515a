if(TUTTI_WITH_TORCH)
  tutti_test(property/operators_test LINKS tutti_graph TORCH)
  tutti_test(property/run_file_test LINKS tutti_train TORCH)
  tutti_test(property/long_run_file_test LINKS tutti_train TORCH LABELS long TIMEOUT 1800)
  set_source_files_properties(property/run_file_test.cpp property/long_run_file_test.cpp PROPERTIES
                              COMPILE_DEFINITIONS TUTTI_EXAMPLES="${PROJECT_SOURCE_DIR}/examples")
endif()
