"""The simulator: training steps at any number of ranks, as vectors over ranks, from the product's own schedules."""
