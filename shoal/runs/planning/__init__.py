"""What a run takes before it runs: memory of rows, time of a step, money, on machines of a file.

cluster.py     hosts, devices and links; presets.py: common ones; cluster_file.py: from a file
work.py        bytes and operations of one step; counting.py: of a config's model
prediction.py  what is answered; timing.py: milliseconds of a step (links.py, row_time.py)
choosing.py    which strategy, what limits it, what to change
compare.py     a prediction beside what a run measured
simulate.py    queues, stragglers and barriers; failures.py: long jobs; simulated.py: of a plan
measure.py     what this machine reaches; measured_cluster.py: as a cluster's file
jobs.py        the plan's job for a scheduler
page.py        a plan as a page; scaling.py: on more hosts
"""
