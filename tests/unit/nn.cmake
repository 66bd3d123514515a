if(TUTTI_WITH_TORCH)
  tutti_test(unit/random_draws_test LINKS tutti_nn TORCH)
  tutti_test(unit/sync_batch_norm_test LINKS tutti_nn fmt::fmt TORCH)
endif()
