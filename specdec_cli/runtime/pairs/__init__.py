"""Two checkpoints beside each other: do they speak the same ids, do they fit here, and both models, ready.

May import every other room of the runtime; no other room imports this one.
"""
