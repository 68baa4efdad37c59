"""Click logs: labelled samples with slots of ids and dense values.

samples.py    Layout and Samples: which columns there are, and the columns of many samples
lines.py      blocks of samples that are not read yet, and those of whole lines
decode.py     columns of a frame as samples
formats.py    what a format is, and the list of them
slots.py      the formats, one file each: lines of slots
criteo.py       raw Criteo
delimited.py    csv with a header
parquet.py      Parquet
planted.py    the generated log, whose best possible AUC is known
log.py        ClickLog: files of a format, in order, as blocks of samples
pipe.py       a user's program between the files and the parser
prefetch.py   work done ahead in threads, in order
readers.py    batches: InMemory, Stream, Split
mapped.py     logs in prepared folders: parsed once, mapped
custom.py     batches of a reader that a user wrote
data.py       ClickData: what a config describes, opened
"""

from shoal.data.clicks.data import ClickData, open_clicks
from shoal.data.clicks.formats import FORMATS, ClickFormat, LineFormat, register
from shoal.data.clicks.log import ClickLog
from shoal.data.clicks.readers import ClickReader, InMemory, Split, Stream
from shoal.data.clicks.samples import Layout, Samples

__all__ = [
    "FORMATS",
    "ClickData",
    "ClickFormat",
    "ClickLog",
    "ClickReader",
    "InMemory",
    "Layout",
    "LineFormat",
    "Samples",
    "Split",
    "Stream",
    "open_clicks",
    "register",
]
