# What every implementation of an interface must do.
set(transport_contract contract/transport_messages.cpp contract/transport_worlds.cpp)
tutti_test(contract/threads_contract_test SOURCES ${transport_contract} LINKS tutti_transport)
tutti_test(contract/processes_contract_test SOURCES ${transport_contract} LINKS tutti_mesh_world)
