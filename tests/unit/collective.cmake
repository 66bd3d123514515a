tutti_test(unit/agreement_test LINKS tutti_threads_worlds)
tutti_test(unit/mesh_agreement_test OF unit/agreement_test.cpp LINKS tutti_mesh_worlds)
tutti_test(unit/allocation_test LINKS tutti_threads_worlds)
tutti_test(unit/run_ranks_test LINKS tutti_collective)
