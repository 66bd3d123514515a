# Tests of tests/unit/.
tutti_test(unit/array_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/assert_test LINKS tutti_base)
tutti_test(unit/bytes_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/chunk_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/data_type_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/deadline_test LINKS tutti_base)
tutti_test(unit/half_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/json_parsing_test LINKS tutti_base fmt::fmt ONE_THREAD)
tutti_test(unit/json_test LINKS tutti_base fmt::fmt ONE_THREAD)
tutti_test(unit/nearest_name_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/random_test LINKS tutti_base ONE_THREAD)
tutti_test(unit/rank_test LINKS tutti_base ONE_THREAD)

tutti_test(unit/all_reduce_strategy_test LINKS tutti_strategy ONE_THREAD)
tutti_test(unit/compression_strategy_test LINKS tutti_strategy ONE_THREAD)
tutti_test(unit/training_strategy_test LINKS tutti_strategy fmt::fmt ONE_THREAD)
set_source_files_properties(unit/training_strategy_test.cpp PROPERTIES
                            COMPILE_DEFINITIONS TUTTI_STRATEGIES_PAGE="${PROJECT_SOURCE_DIR}/docs/strategies.md")
