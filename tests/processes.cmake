# Suites that also run over processes, each rank one that runs the whole program: under every launcher, through shared
# memory and over sockets.
tutti_program(c10d_contract SUITE transport_contract SOURCES contract/c10d_contract.cpp LINKS tutti_process_worlds)
tutti_program(c10d_collectives SUITE collectives SOURCES property/c10d_collectives.cpp LINKS tutti_process_worlds)
tutti_program(c10d_gossip SUITE gossip LINKS tutti_coordinate tutti_process_worlds)

function(tutti_process_test program launcher processes shared_memory)
  set(way sockets)
  if(shared_memory)
    set(way memory)
  endif()
  set(name ${TUTTI_TEST_PREFIX}${program}/${launcher}/${way})
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_LIST_DIR}/support/start_ranks.sh ${launcher} ${processes}
                                $<TARGET_FILE:tutti> $<TARGET_FILE:${program}>)
  set_tests_properties(${name} PROPERTIES LABELS "processes" TIMEOUT 300
                       ENVIRONMENT "${TUTTI_TEST_ENVIRONMENT};TUTTI_SHARED_MEMORY=${shared_memory}")
endfunction()

# Under a sanitizer, what the ranks do counts, and not who started them.
set(launchers launch torchrun mpirun)
if(TUTTI_SANITIZE)
  set(launchers launch)
endif()
foreach(shared_memory 1 0)
  foreach(launcher IN LISTS launchers)
    if(TUTTI_BUILD_EXAMPLES)
      tutti_process_test(example_ranks ${launcher} 4 ${shared_memory})
      tutti_process_test(example_distributed ${launcher} 3 ${shared_memory})
    endif()
    tutti_process_test(c10d_contract ${launcher} 8 ${shared_memory})
    tutti_process_test(c10d_collectives ${launcher} 5 ${shared_memory})
    tutti_process_test(c10d_gossip ${launcher} 5 ${shared_memory})
  endforeach()
endforeach()
