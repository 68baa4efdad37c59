"""Click logs: labelled samples with slots of ids and dense values; formats, one file each."""

from shoal.clicks.data import ClickData, open_clicks
from shoal.clicks.formats import FORMATS, ClickFormat, LineFormat, register
from shoal.clicks.layout import Layout
from shoal.clicks.log import ClickLog
from shoal.clicks.samples import ClickReader, InMemory, Samples
from shoal.clicks.stream import SplitFiles, Stream

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
