# Tests that are scripts: the structure of the repository, its commands, the installed package, the README.
function(tutti_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "" "" "COMMAND;LABELS;PROPERTIES")
  add_test(NAME ${TUTTI_TEST_PREFIX}${name} COMMAND ${TEST_COMMAND})
  set_tests_properties(${TUTTI_TEST_PREFIX}${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT 300 ${TEST_PROPERTIES})
endfunction()

foreach(check formatting scripts orphans layering)
  tutti_script_test(checks/${check} LABELS checks
                    COMMAND ${PROJECT_SOURCE_DIR}/checks/${check} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
endforeach()
tutti_script_test(checks/can_fail LABELS unit COMMAND ${PROJECT_SOURCE_DIR}/tests/unit/checks_test.sh)
tutti_program(write_events SOURCES tensorboard/write_events.cpp LINKS tutti_report)
tutti_script_test(tensorboard LABELS unit
                  COMMAND ${PROJECT_SOURCE_DIR}/tests/tensorboard/independent_reader_test.sh $<TARGET_FILE:write_events>
                          ${PROJECT_BINARY_DIR})
tutti_script_test(setup LABELS unit COMMAND ${PROJECT_SOURCE_DIR}/tests/unit/setup_test.sh)

# The build installed under a prefix of its own, and used from there by others.
set(prefix ${PROJECT_BINARY_DIR}/installed)
tutti_script_test(install/holds_what_users_need LABELS install
                  COMMAND ${PROJECT_SOURCE_DIR}/checks/installed_package ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR} ${prefix}
                  PROPERTIES FIXTURES_SETUP installed)
tutti_script_test(install/find_package LABELS install
                  COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR}/tests/install
                          ${PROJECT_BINARY_DIR}/uses_tutti --build-generator ${CMAKE_GENERATOR}
                          --build-options -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
                          -DCMAKE_BUILD_TYPE=Release -DTUTTI_VERSION=${PROJECT_VERSION}
                          --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure --no-tests=error
                  PROPERTIES FIXTURES_REQUIRED installed)
# A plugin as somebody builds one, and runs of the program that was installed.
tutti_script_test(install/plugin LABELS install
                  COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR}/examples/plugin
                          ${PROJECT_BINARY_DIR}/example_plugin --build-generator ${CMAKE_GENERATOR}
                          --build-options -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
                          --test-command ${PROJECT_SOURCE_DIR}/tests/install/plugin_test.sh ${prefix}/bin/tutti
                          ${PROJECT_BINARY_DIR}/example_plugin/libelastic.so
                  PROPERTIES FIXTURES_REQUIRED installed)
# Its commands may build the release tree, where that has not happened yet.
tutti_script_test(docs/readme_commands LABELS docs
                  COMMAND ${PROJECT_SOURCE_DIR}/checks/readme_commands ${PROJECT_SOURCE_DIR} ${prefix}
                  PROPERTIES FIXTURES_REQUIRED installed TIMEOUT 1200)
