"""Balancing: the same sample-to-rank map computed on every rank, and the exchange that carries it out."""
