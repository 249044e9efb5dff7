"""GGUF files, the one format here that transformers does not read as it is.

header          metadata and where tensors lie, of a file or a split set
config, rope    keys as a configuration, each one honoured or refused
names           each tensor of the file beside a weight of the model, none left over on either side
tokenizer       splits (pre_tokenizers), special tokens, ids that end a text
own_bits        layers in the bits that the file has
converted       an ordinary folder, cached by content
"""


def words(*lines: str) -> frozenset[str]:
    """Many short names, written in few lines."""
    return frozenset(word for line in lines for word in line.split())
