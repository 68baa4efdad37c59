"""Pages: the one look of everything Shoal shows in a browser.

html.py   a whole page, its sections and tables: light and dark, wide and narrow, on paper
plots.py  plots as SVG inside a page, by matplotlib

What comes from files is hostile: text becomes part of a page through `escape` alone.
"""
