if(TUTTI_WITH_TORCH)
  tutti_test(property/operators_test LINKS tutti_graph TORCH)
endif()
