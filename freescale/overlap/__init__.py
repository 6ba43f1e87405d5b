"""Embedding tables sharded over ranks, and the schedules that move their rows."""
