"""A module whose path has no leading underscore is public and listed in docs/api.md; no other is."""

import re
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
PACKAGE = ROOT / "src" / "fairdraw"
LISTED = set(re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE))
"""What docs/api.md explains; `fairdraw` itself is its first section."""


def modules(folder: Path = PACKAGE, name: str = "fairdraw") -> set[str]:
    """Every module of the package, by its dotted path; the links to the root folders are followed.

    Tests that stand beside the code and programs (`__main__`) are imported by nobody.
    """
    found = {name}
    for path in folder.iterdir():
        if (path / "__init__.py").exists():
            found |= modules(path, f"{name}.{path.name}")
        elif path.suffix == ".py" and not path.stem.startswith(("__", "test_", "conftest")):
            found.add(f"{name}.{path.stem}")
    return found


def test_public_modules_are_those_of_the_page() -> None:
    """A module that is missing there is to be listed, or gets an underscore."""
    public = {module for module in modules() if not re.search(r"\._", module)}
    assert public == LISTED | {"fairdraw"}
