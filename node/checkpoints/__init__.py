"""Saved stages of the policy `checkpoint`: one file for each stage and step, whole or as good as absent.

`form` says what a file looks like, `places` where files lie (a directory or an object store), `store` what is done with them.
Nothing here knows of decisions: which of the saved states the run may go back to is decided in `protocol/`.
"""
