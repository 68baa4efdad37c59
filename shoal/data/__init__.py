"""Data: tables of interactions become the batches of a model.

    sources/     files -> columns as read (words, numbers), whatever their format
    columns.py   words -> ids: filtered, numbered, written to memory or to a folder
    split.py     which rows train, validate and test
    dataset.py   what models, readers and metrics know of the data
    features.py  what columns mean, for models that read features
    reader.py    the batches of an epoch, sliced over ranks

`loading/` says which data a config names and loads it, `prepared/` does the same for tables larger
than memory. docs/understand/csv_to_batch.md follows one file through all of it.
"""
