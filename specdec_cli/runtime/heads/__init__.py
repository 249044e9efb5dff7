"""Trained heads that read the target's hidden states: published formats in, networks that the drafters drive out.

`files` reads, `kinds` says what a folder holds and which states it wants, and each network has a file of its own. No
network knows the loop, and none knows where its tensors came from.
"""
