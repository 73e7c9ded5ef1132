"""Consumers that act on incidents: policy, the ledger, and one module for each remedy."""
