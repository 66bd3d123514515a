# The suites that also run over processes.
tutti_program(process_collectives SOURCES property/collectives_test.cpp LINKS tutti_process_worlds)
