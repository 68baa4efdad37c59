"""Arenas (`shoal arena FILE`): models × data sets × seeds from one file, on one page.

What the command runs, in the order in which an arena goes through its files:

arena_file.py    the file, read strictly
cells.py         the config of each run; which models cannot train on which data, and why
searches.py      `shoal tune` for a model and a data set, before its seeds run
arena.py         an arena from its beginning to its end, in the folder of a study
progress.py      a line for each run that has ended, with what is left
outcome.py       what came of the runs: figures with intervals, seconds, memory, cost
ranks.py         average ranks, Friedman's test, Nemenyi's critical difference
rank_plot.py     the plot of critical differences
arena_text.py    sentences and cells that pages and the command share
arena_page.py    the page
arena_tables.py  the tables of the page as Markdown, and every figure as csv

Runs, processes and resuming are those of tuning/, tests and intervals those of report/.
"""
