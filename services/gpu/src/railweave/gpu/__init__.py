"""The GPU broker: which cards of a node, or thousandths of them, each worker gets."""
