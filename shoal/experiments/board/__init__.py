"""The board: a page over all runs below a folder, live while they train.

root.py      finds runs, and reads files of theirs: never one outside the folder
summary.py   what the page shows of a run
stopping.py  ends a run in order
app.py       the routes; page.py and board.js the page
"""
