"""specdec: exact speculative decoding, and the truth about its speed, from the command line."""

__version__ = "0.1.0"
