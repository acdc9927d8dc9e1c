"""How Hypothesis behaves: the same examples each time, and no deadline on a busy machine."""

from hypothesis import settings

settings.register_profile("limosa", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("limosa")
