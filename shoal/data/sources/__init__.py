"""Sources of interactions and formats of tables, one file each, and the list of them.

source.py     what a source is
tables.py     tables of any format; what a format is
text.py       text, in parts of bounded size; csv.py: lines of cells; jsonl.py: of objects;
              lists.py: of items; literals.py: of Python's literals
typed.py      types of columns, how cells are read, and their values checked
"""

from shoal.data.sources.atomic import Atomic
from shoal.data.sources.columnar import Arrow, Parquet
from shoal.data.sources.csv import Csv
from shoal.data.sources.diginetica import Diginetica
from shoal.data.sources.jsonl import JsonLines
from shoal.data.sources.lists import ItemLists, SessionLists
from shoal.data.sources.literals import Literals
from shoal.data.sources.movielens import MovieLens
from shoal.data.sources.random import Random
from shoal.data.sources.source import SOURCES, Source, register
from shoal.data.sources.synthetic import Synthetic
from shoal.data.sources.tables import FORMATS, TableFormat, Tables, register_table

for _source in (Synthetic(), Random(), Atomic(), Tables(), MovieLens()):
    register(_source)  # they are looked for in this order
_forms: tuple[TableFormat, ...] = (Csv(), Parquet(), Arrow(), JsonLines())
_forms += (ItemLists(), SessionLists(), Literals(), Diginetica())  # by data.format alone
for _form in _forms:
    register_table(_form)

__all__ = ["FORMATS", "SOURCES", "Source", "TableFormat", "register", "register_table"]
