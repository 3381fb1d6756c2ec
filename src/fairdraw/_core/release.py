"""Whether fairdraw is on a package index: what messages and the manual tell a user to install follows from it."""

from fairdraw import __version__

ON_INDEX = False
"""True from the day of the release on: then packages are named, and until then their wheels."""


def install(package: str) -> str:
    """Return the command that installs `fairdraw`, with an extra, or `fairdraw-engines`.

    Example:
        >>> install("fairdraw[server]").partition(" './fairdraw-")[::2]
        ('pip install', "0.1.0-py3-none-any.whl[server]'")
    """
    if ON_INDEX:
        return f"pip install '{package}'"
    name, bracket, extra = package.partition("[")
    return f"pip install './{name.replace('-', '_')}-{__version__}-py3-none-any.whl{bracket}{extra}'"
