# What every implementation of an interface must do.
tutti_suite(transport_contract SOURCES contract/transport_messages.cpp contract/transport_worlds.cpp LINKS tutti_transport)
tutti_test(contract/threads_contract_test SUITE transport_contract SOURCES contract/threads_contract_test.cpp LINKS tutti_transport)
tutti_test(contract/processes_contract_test SUITE transport_contract SOURCES contract/processes_contract_test.cpp
           LINKS tutti_mesh_world)
