tutti_test(unit/agreement_test LINKS tutti_collective)
tutti_test(unit/allocation_test LINKS tutti_collective)
