"""GGUF files, the one format here that transformers does not read as it is: header, own bits, conversion."""


def words(*lines: str) -> frozenset[str]:
    """Many short names, written in few lines."""
    return frozenset(word for line in lines for word in line.split())
