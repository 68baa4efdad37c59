"""Searching hyper-parameters (`shoal tune`) and grids of runs (`shoal sweep`).

space.py      what is searched: files of YAML, or RecBole's
defaults.py   a space for every model
study.py      the trials of a search and their outcomes, kept in a folder
files.py      what is read from runs
crew.py       processes that train runs, several at once
worker.py     one of these processes
search.py     a search from its beginning to its end
tune.py       the same from Python
page.py       a search as a page
sweep.py      models × data × seeds
"""
