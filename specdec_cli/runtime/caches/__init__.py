"""What a model remembers of the text: keys and values, how they are cut back, and who sees whom in a tree.

May import `decoding.tree` (the rule for trees) and transformers' cache classes; knows no model.
"""
