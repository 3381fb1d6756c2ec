"""The pytest plugin's parts."""
