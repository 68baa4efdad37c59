"""Translate a model class written for RecBole into a model here, without running it.

translation.py  the whole, step by step; read it first
reading.py      the file: read, parsed, and which of its classes is meant
source.py       the class as it was read: its methods, and what they call and assign
draft.py        what is collected: edits of the text, lines of the table
edits.py        replacements in a text, by the places of its syntax tree
names.py        full names: nn.Embedding is torch.nn.Embedding
syntax.py       questions about an expression or statement

Each kind of thing has a file:

refusals.py     what cannot be moved, and why
imports.py      import statements
module_code.py  code beside the class: other models, helper classes, what would run
model_class.py  the class statement, its attributes, what is computed once for requests
methods.py      methods, and which file each part of their bodies belongs to
constructor.py  __init__(config, dataset) -> __init__(options, facts)
dataset.py      sizes and interactions that are read of the dataset
config_keys.py  config["x"] -> options.x, and the class Options
options.py      an option: its type, its default, its declaration
tables.py       nn.Embedding -> TableEmbedding
fields.py       fields of a batch
processes.py    dropout, batch norms, random numbers: what depends on how many processes there are
batch_pairs.py  losses that compare the samples of a batch with each other
"""
