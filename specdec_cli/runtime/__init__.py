"""The only place that knows transformers and accelerate: checkpoints in, models that the loop can drive out.

    devices.py    devices, number types, memory, clocks
    layers/       linear layers in few bits, joined and packed ones, cut heads            (torch only)
    caches/       keys and values in buffers, static caches, masks and positions of trees
    models/       a transformers model as the loop needs it; early exits; recorded passes
    checkpoints/  from a name to a loaded model: locate, inspect, plan, build, fit
    heads/        trained heads: published formats in, networks that the drafters drive out
    pairs/        do two checkpoints fit together; both models, compared and ready

Each imports what stands above it in this list, never what stands below.
"""
