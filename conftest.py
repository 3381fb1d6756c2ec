"""The plugin under its entry point's name: a clone works uninstalled, and an installation does not load it twice."""

pytest_plugins = ["fairdraw.pytest_plugin", "pytester"]
