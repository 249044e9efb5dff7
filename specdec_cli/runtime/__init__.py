"""The only place that knows transformers and accelerate: checkpoints in, models that the loop can drive out."""
