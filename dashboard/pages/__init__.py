"""The pages: each module turns a run (or the folder) into components, and knows nothing of the server."""
