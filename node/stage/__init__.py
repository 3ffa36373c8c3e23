"""The computation of the stages: the only package that imports torch.

Importing the package itself or `node.stage.tokens` does not import torch (which takes seconds); its other modules do.
"""
