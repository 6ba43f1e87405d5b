"""What a run directory looks like to a person: figures, the Dash app and the one-file HTML report."""
