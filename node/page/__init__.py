"""The status page of a node, and of whoever watches a run: what happened in plain words, curves, and one page that shows them.

Everything that leaves this package is fit to be published: no address, no path, no invite (`words.public`).
"""
