tutti_test(unit/environment_test LINKS tutti_transport fmt::fmt ONE_THREAD)
tutti_test(unit/store_server_test LINKS tutti_transport)
tutti_test(unit/folder_transport_test LINKS tutti_transport)
target_include_directories(unit_folder_transport_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
