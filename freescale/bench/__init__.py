"""The harness: command line, launch of real ranks, the worker that measures them, and the run directory they leave."""
