# What happens when a rank fails.
tutti_test(fault/collective_faults_test LINKS tutti_threads_worlds)
tutti_test(fault/mesh_faults_test OF fault/collective_faults_test.cpp LINKS tutti_mesh_worlds)
