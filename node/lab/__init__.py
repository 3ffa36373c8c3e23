"""The lab: what the loss of a stage costs in learning, by recovery policy, measured with the code that a node runs.

`setup` says what is trained, `pipeline` trains it (all stages in one process), `treatments` what a lost stage becomes, `forks`
what is measured; `crew` deals it out to processes, `raw` keeps it; `figures`, `derived` and `report` read it. See
docs/lab/README.md.
"""
