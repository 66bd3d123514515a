tutti_test(unit/copy_test LINKS tutti_kernels ONE_THREAD)
tutti_test(unit/fold_test LINKS tutti_kernels fmt::fmt ONE_THREAD)
tutti_test(unit/instructions_test LINKS tutti_kernels)
tutti_test(unit/optimizer_test LINKS tutti_kernels ONE_THREAD)
