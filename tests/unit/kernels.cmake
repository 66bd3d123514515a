tutti_test(unit/fold_test LINKS tutti_kernels fmt::fmt)
