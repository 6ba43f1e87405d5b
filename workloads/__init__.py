"""Reference workloads: jagged batches, length and ID distributions, interaction logs, and the HSTU model."""
