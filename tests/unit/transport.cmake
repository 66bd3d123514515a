tutti_test(unit/environment_test LINKS tutti_transport fmt::fmt ONE_THREAD)
tutti_test(unit/store_server_test LINKS tutti_transport)
