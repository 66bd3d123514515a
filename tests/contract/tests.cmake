# What every implementation of an interface must do.
tutti_test(contract/transport_contract_test LINKS tutti_transport)
