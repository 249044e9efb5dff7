"""Layers that compute a linear layer's product in fewer bits or fewer calls.

Knows torch alone: no model, no tokenizer, no file. What a layer replaces is found by its class.
"""
