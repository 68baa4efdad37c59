"""Click logs: labelled samples with slots of ids and dense values; formats, one file each."""

from shoal.clicks.data import ClickData, open_clicks
from shoal.clicks.formats import FORMATS, ClickFormat, LineFormat, register
from shoal.clicks.log import ClickLog
from shoal.clicks.readers import ClickReader, InMemory, SplitFiles, Stream
from shoal.clicks.samples import Layout, Samples

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
    "SplitFiles",
    "Stream",
    "open_clicks",
    "register",
]
