# What listens to a run: the terminal, and files.
tutti_test(unit/report_progress_line_test LINKS tutti_report ONE_THREAD)
tutti_test(unit/report_progress_test LINKS tutti_report ONE_THREAD)
tutti_test(unit/report_metrics_file_test LINKS tutti_report ONE_THREAD)
tutti_test(unit/report_tensorboard_file_test LINKS tutti_report ONE_THREAD)
tutti_test(unit/report_trace_file_test LINKS tutti_report ONE_THREAD)
