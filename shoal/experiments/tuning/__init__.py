"""Studies, which train many runs: searches (`shoal tune`) and grids (`shoal sweep`).

What `shoal tune` runs, in the order in which a search goes through its files:

tune.py             `shoal.tune`: a search from Python, as cli/tune.py is one from the command line
search.py           a search from its beginning to its end
space.py            what is searched: files of YAML, or RecBole's; default_space.py: of every model
study_folder.py     the folder of a study, locked: configs of runs, processes, the report
study.py            trials that Optuna's samplers propose, kept in study.db
worker_pool.py      processes that train runs, several at once; worker.py: one of these processes
trial_files.py      what is read from the folders of runs while they train
pruner.py           stops trials that will not become the best
study_page.py       a search as a page

`shoal sweep` is a study of runs that are all planned from the beginning:

sweep_grid.py       models × data × seeds, and the config of each run
sweep.py            trains them in a study_folder, as a search trains its finalists
sweep_comparison.py means, intervals and paired tests
"""
