"""GGUF files, the one format here that transformers does not read as it is: header, own bits, conversion."""
