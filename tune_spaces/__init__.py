"""Search spaces, one file a method: `dp-sgd` is searched over `dp_sgd.SPACE`."""
