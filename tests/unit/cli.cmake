# The command `tutti`, what it shares with the benchmarks, and the parts of the benchmarks that need no peers.
tutti_test(unit/arguments_test LINKS tutti_cli_support ONE_THREAD)
tutti_test(unit/command_line_test LINKS tutti_cli_support ONE_THREAD)
tutti_test(unit/bench_result_test LINKS tutti_cli_support ONE_THREAD)
tutti_test(unit/lines_test LINKS tutti_cli_support ONE_THREAD)
tutti_test(unit/measure_test LINKS tutti_cli_support)
tutti_test(unit/process_test LINKS tutti_cli_support)
tutti_test(unit/test_values_test LINKS tutti_cli_support tutti_kernels ONE_THREAD)
tutti_test(unit/units_test LINKS tutti_cli_support ONE_THREAD)

# What the benchmarks make of their measurements, and the driver of a suite, for engines that the test brings. The sanitizers
# would find nothing there.
if(NOT TUTTI_SANITIZE)
  add_library(tutti_bench_reports STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/benchmarks/report.cpp
              ${PROJECT_SOURCE_DIR}/benchmarks/all_reduce_report.cpp ${PROJECT_SOURCE_DIR}/benchmarks/processes_report.cpp
              ${PROJECT_SOURCE_DIR}/benchmarks/data_parallel_report.cpp ${PROJECT_SOURCE_DIR}/benchmarks/data_parallel_result.cpp)
  target_include_directories(tutti_bench_reports PUBLIC ${PROJECT_SOURCE_DIR}/benchmarks)
  target_link_libraries(tutti_bench_reports PUBLIC tutti_cli_support tutti_kernels PRIVATE tutti_flags)
  foreach(test report_test all_reduce_report_test processes_report_test data_parallel_report_test step_timer_test)
    tutti_test(unit/${test} LINKS tutti_bench_reports)
  endforeach()
  add_executable(bench_data_parallel_driver ${PROJECT_SOURCE_DIR}/benchmarks/data_parallel.cpp
                 ${PROJECT_SOURCE_DIR}/benchmarks/turns.cpp)
  target_link_libraries(bench_data_parallel_driver PRIVATE tutti_bench_reports tutti_strategy tutti_flags)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_data_parallel
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_data_parallel_test.sh $<TARGET_FILE:bench_data_parallel_driver>)
  add_executable(bench_train_driver ${PROJECT_SOURCE_DIR}/benchmarks/train.cpp ${PROJECT_SOURCE_DIR}/benchmarks/turns.cpp)
  target_link_libraries(bench_train_driver PRIVATE tutti_bench_reports tutti_flags)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_train
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_train_test.sh $<TARGET_FILE:bench_train_driver>)
  add_executable(bench_federated_driver ${PROJECT_SOURCE_DIR}/benchmarks/federated.cpp ${PROJECT_SOURCE_DIR}/benchmarks/turns.cpp
                 ${PROJECT_SOURCE_DIR}/src/data/data_folder.cpp)
  target_link_libraries(bench_federated_driver PRIVATE tutti_bench_reports tutti_flags)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_federated
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_federated_test.sh $<TARGET_FILE:bench_federated_driver>)
  add_executable(bench_population_driver ${PROJECT_SOURCE_DIR}/benchmarks/population.cpp ${PROJECT_SOURCE_DIR}/benchmarks/turns.cpp)
  target_link_libraries(bench_population_driver PRIVATE tutti_bench_reports tutti_flags)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_population
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_population_test.sh $<TARGET_FILE:bench_population_driver>)
  set(benchmarks ${PROJECT_SOURCE_DIR}/benchmarks)
  add_executable(bench_coordinator_driver ${benchmarks}/coordinator.cpp ${benchmarks}/coordinator_applied.cpp
                 ${benchmarks}/coordinator_hogwild.cpp ${benchmarks}/coordinator_training.cpp ${benchmarks}/turns.cpp)
  target_link_libraries(bench_coordinator_driver PRIVATE tutti_bench_reports tutti_coordinate tutti_flags)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_coordinator
           COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_coordinator_test.sh $<TARGET_FILE:bench_coordinator_driver>)
  foreach(suite coordinator data_parallel train federated population)
    set_tests_properties(${TUTTI_TEST_PREFIX}bench_${suite} PROPERTIES LABELS unit TIMEOUT 300)
  endforeach()
endif()
tutti_test(unit/ping_pong_test LINKS tutti_cli_support tutti_kernels)

add_test(NAME ${TUTTI_TEST_PREFIX}command COMMAND ${CMAKE_CURRENT_LIST_DIR}/command_test.sh $<TARGET_FILE:tutti>
         ${PROJECT_VERSION})
set_tests_properties(${TUTTI_TEST_PREFIX}command PROPERTIES LABELS unit TIMEOUT 300
                     ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
add_test(NAME ${TUTTI_TEST_PREFIX}launch COMMAND ${CMAKE_CURRENT_LIST_DIR}/launch_test.sh $<TARGET_FILE:tutti>)
set_tests_properties(${TUTTI_TEST_PREFIX}launch PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
if(TUTTI_WITH_TORCH AND NOT TUTTI_SANITIZE)
  add_test(NAME ${TUTTI_TEST_PREFIX}fetch COMMAND ${CMAKE_CURRENT_LIST_DIR}/fetch_test.sh $<TARGET_FILE:tutti> ${PROJECT_BINARY_DIR})
  set_tests_properties(${TUTTI_TEST_PREFIX}fetch PROPERTIES LABELS unit TIMEOUT 300 ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
endif()
# Under a sanitizer the suites over processes show as much in less time.
if(TUTTI_WITH_TORCH AND NOT TUTTI_SANITIZE)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_processes COMMAND ${CMAKE_CURRENT_LIST_DIR}/bench_processes_test.sh $<TARGET_FILE:tutti>)
  set_tests_properties(${TUTTI_TEST_PREFIX}bench_processes PROPERTIES LABELS unit TIMEOUT 300
                       ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT}")
elseif(NOT TUTTI_WITH_TORCH)
  add_test(NAME ${TUTTI_TEST_PREFIX}bench_refuses_processes
           COMMAND ${CMAKE_COMMAND} -E env RANK=0 WORLD_SIZE=1 $<TARGET_FILE:tutti> bench ping-pong)
  set_tests_properties(${TUTTI_TEST_PREFIX}bench_refuses_processes PROPERTIES LABELS unit TIMEOUT 300
                       PASS_REGULAR_EXPRESSION "torchrun started this as rank 0 of 1, but this tutti was built without c10d")
endif()
