# Runs from their file to their last checkpoint.
if(TUTTI_WITH_TORCH)
  tutti_test(unit/train_tests LINKS tutti_train TORCH TIMEOUT 1200
             SOURCES unit/asynchronous_test.cpp unit/asynchronous_staleness_test.cpp unit/checkpoint_test.cpp unit/custom_train_test.cpp unit/evaluation_test.cpp unit/federated_train_test.cpp unit/model_parallel_test.cpp
                     unit/model_parallel_faults_test.cpp unit/model_parallel_graphs_test.cpp
                     unit/model_parallel_replicas_test.cpp unit/pipeline_forecast_test.cpp unit/population_train_test.cpp
                     unit/replica_mixing_test.cpp
                     unit/trainer_test.cpp)
  target_compile_definitions(unit_train_tests PRIVATE TUTTI_VECTORS="${CMAKE_CURRENT_SOURCE_DIR}/vectors")
  if(NOT TUTTI_SANITIZE)
    foreach(script federated_command_test.sh population_command_test.sh train_command_test.sh train_examples_test.sh train_files_test.sh)
      string(REPLACE _test.sh "" name ${script})
      add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/${script} $<TARGET_FILE:tutti>)
      set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS unit TIMEOUT 600)
    endforeach()
    # Compiled as users compile theirs.
    add_library(test_plugin MODULE support/test_plugin.cpp)
    target_link_libraries(test_plugin PRIVATE tutti::plugin tutti_flags)
    target_include_directories(test_plugin PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    tutti_precompile_torch(test_plugin)
    add_test(NAME ${TUTTI_TEST_PREFIX}custom_command COMMAND ${CMAKE_CURRENT_LIST_DIR}/custom_command_test.sh $<TARGET_FILE:tutti>
             $<TARGET_FILE:test_plugin>)
    set_tests_properties(${TUTTI_TEST_PREFIX}custom_command PROPERTIES LABELS unit TIMEOUT 300)
    # What the examples reach, as a whole; convolutions and workers that wait for each other take longer.
    foreach(case "train_accuracy;fashion_mnist=88;unit" "train_accuracy_long;fashion_mnist_cnn=91;unit;long"
            "train_accuracy_pipeline;pipeline=88;unit;long" "train_accuracy_branches;branches=88;unit;long"
            "train_accuracy_hybrid;hybrid=88;unit;long" "train_accuracy_auto_partition;auto_partition=88;unit;long"
            "train_accuracy_data_store;data_store=88;unit;long"
            "train_accuracy_federated;federated=84 federated_asynchronous=84 federated_dirichlet=82 federated_hostile=83 federated_personal=94 federated_stragglers=84;unit;long"
            "train_accuracy_population;population=87;unit;long"
            "train_accuracy_replicas;parameter_server=88 lock_free=88 decentralized=88 gossip=88 local_steps=88;unit;long")
      list(POP_FRONT case name reaches)
      separate_arguments(reaches)
      add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/train_examples_test.sh $<TARGET_FILE:tutti> ${reaches})
      set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS "${case}" TIMEOUT 1800)
    endforeach()
    foreach(script federated_figures_test.sh population_figures_test.sh)
      string(REPLACE _test.sh "" name ${script})
      add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/${script} $<TARGET_FILE:tutti>)
      set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS "unit;long" TIMEOUT 3600)
    endforeach()
  endif()
endif()
