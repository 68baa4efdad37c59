"""Searching hyper-parameters (`shoal tune`) and grids of runs (`shoal sweep`).

space.py          what is searched: files of YAML, or RecBole's
default_space.py  a space for every model
study.py          the trials of a search and their outcomes, kept in a folder
pruner.py         stops trials that will not become the best
trial_files.py    what is read from the folders of trials
worker_pool.py    processes that train runs, several at once; worker.py: one of these processes
search.py         a search from its beginning to its end
tune.py           `shoal.tune`: a search from Python
study_page.py     a search as a page
sweep.py          models × data × seeds
"""
