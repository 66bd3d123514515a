# Properties over cross products, against naive oracles.
tutti_test(property/plan_test LINKS tutti_collective)
tutti_test(property/collectives_test LINKS tutti_threads_worlds)
tutti_test(property/bits_test LINKS tutti_threads_worlds)
tutti_test(property/soak_test LINKS tutti_threads_worlds)
tutti_test(property/long_soak_test LINKS tutti_threads_worlds LABELS long TIMEOUT 1800)
