"""From a name to a loaded model, in steps that each do one thing.

    locate    where it is: a folder, a hub id, a GGUF file
    inspect   what it is, without its weights: configuration, tokenizer, sizes
    plan      how it will be loaded here: device, number type, bits, head; every refusal
    build     its weights on the device
    fit       layers joined, cut, rounded and packed as planned

May import `layers` and, to try a cache, `models`; knows nothing of pairs.
"""
