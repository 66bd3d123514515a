# What happens when a rank fails.
tutti_test(fault/collective_faults_test LINKS tutti_threads_worlds)
