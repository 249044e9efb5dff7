"""The algorithm: warp, propose, verify, accept, roll back. Torch only."""
