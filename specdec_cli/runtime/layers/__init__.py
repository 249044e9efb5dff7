"""Layers that compute a linear layer's product in fewer bits or fewer calls.

Of all libraries knows torch alone: no model, no tokenizer, no file. What a layer replaces is found by its class.
"""
