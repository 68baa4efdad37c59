"""What a run takes before it runs: memory of rows, time of a step, money, on machines of a file.

cluster.py     hosts, devices and links; cluster_values.py reads them from mappings with units
presets.yaml   common machines, read by presets.py; cluster_file.py: a file of your own
step_work.py   bytes and operations of one step; step_counter.py counts them for a config's model
prediction.py  a predicted step; step_time.py computes it (with links.py and row_time.py)
ranking.py     which strategy is best, what limits it, what to change; plan_text.py prints it
comparison_with_run.py  a prediction compared with what a run measured
probes.py      measures this machine; probed_cluster.py writes the figures as a cluster's file
jobs.py        the plan's job for a scheduler
first_look.py, starter_files.py  what `shoal quickstart` sees in a file, and what it writes
data_summary.py, data_page.py    what `shoal data describe` prints and draws
machine_check.py                 what `shoal doctor` examines
"""
