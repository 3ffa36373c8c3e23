"""The grid: whole runs of the real runtime on a virtual network, by recovery policy, rate of failures and seed.

`plan` is what was fixed before the first run, `policies` what is compared; `world` plays one run, on `regions`' links and with
`charged` computations; `run` plays those that are missing. See docs/lab/README.md.
"""
