# What every implementation of an interface must do.
tutti_test(contract/threads_contract_test SOURCES contract/transport_contract.cpp LINKS tutti_transport)
tutti_test(contract/processes_contract_test SOURCES contract/transport_contract.cpp LINKS tutti_mesh_world)
