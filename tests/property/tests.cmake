# Properties over cross products, against naive oracles.
tutti_test(property/plan_test LINKS tutti_collective)
tutti_test(property/collectives_test LINKS tutti_threads_worlds)
tutti_test(property/mesh_collectives_test OF property/collectives_test.cpp LINKS tutti_mesh_worlds)
tutti_test(property/bits_test LINKS tutti_threads_worlds)
tutti_test(property/soak_test LINKS tutti_threads_worlds)
tutti_test(property/mesh_soak_test OF property/soak_test.cpp LINKS tutti_mesh_worlds)
tutti_test(property/long_soak_test LINKS tutti_threads_worlds LABELS long TIMEOUT 1800)
