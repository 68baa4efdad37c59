"""The board: a page over all runs below a folder, live while they train.

server.py     listens, until it is stopped
app.py        the routes: the page, its data, reports, the button that ends a run
run_index.py  finds runs, and reads files of theirs: never one outside the folder
summary.py    what the page shows of a run
run_table.py  the page; board.js keeps it up to date
stopping.py   ends a run in order
"""
