"""A transformers model as the loop needs it: append a block, roll back, read a tree; and quicker forms of the same.

May import `layers` and `caches`; knows nothing of files, tokenizers or pairs.
"""
