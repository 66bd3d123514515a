# What happens when a rank fails.
tutti_suite(collective_faults SOURCES fault/collective_faults_test.cpp LINKS tutti_collective)
tutti_test(fault/collective_faults_test SUITE collective_faults LINKS tutti_threads_worlds EACH)
tutti_test(fault/mesh_faults_test SUITE collective_faults LINKS tutti_mesh_worlds EACH)
tutti_test(fault/population_kill_test LINKS tutti_coordinate fmt::fmt)
