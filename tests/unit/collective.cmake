tutti_suite(agreement SOURCES unit/agreement_test.cpp LINKS tutti_collective)
tutti_test(unit/agreement_test SUITE agreement LINKS tutti_threads_worlds)
tutti_test(unit/mesh_agreement_test SUITE agreement LINKS tutti_mesh_worlds)
# The sanitizers allocate in their own way.
if(NOT TUTTI_SANITIZE)
  tutti_test(unit/allocation_test LINKS tutti_threads_worlds)
endif()
tutti_test(unit/run_ranks_test LINKS tutti_collective)
