"""Click logs: labelled samples with slots of ids and dense values; formats, one file each."""

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
