# What every implementation of an interface must do.
tutti_test(contract/threads_contract_test SOURCES contract/transport_contract.cpp LINKS tutti_transport)
tutti_program(c10d_contract SOURCES contract/c10d_contract.cpp contract/transport_contract.cpp LINKS tutti_process_worlds)
