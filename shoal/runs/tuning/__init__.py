"""Searching hyper-parameters (`shoal tune`) and grids of runs (`shoal sweep`).

space.py      what is searched: files of YAML, or RecBole's
defaults.py   a space for every model
study.py      the trials of a search and their outcomes, kept in a folder
crew.py       processes that train runs, several at once
worker.py     one of these processes
tune.py       a search from its beginning to its end
page.py       a search as a page
sweep.py      models × data × seeds
"""
