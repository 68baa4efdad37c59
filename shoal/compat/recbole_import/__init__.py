"""Translate a model class written for RecBole into a model here, without running it.

source.py       the file: read, parsed, its classes, and which one is meant
edits.py        replacements in a text, by the places of its syntax tree
names.py        what RecBole's names and keys are here
options.py      keys of a config -> the class Options, and where its defaults come from
translation.py  one pass over the class: edits, and a line for each thing that was found
imports.py      import statements, and code of the module that would run something
"""
