"""The fabric: inventory, lasting slots, VLANs and subnets of every leaf, and how a job is isolated on it."""
