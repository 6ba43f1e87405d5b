"""Moving bytes between ranks: annotated collectives on named lanes."""
