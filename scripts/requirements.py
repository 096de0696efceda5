"""Print every third-party requirement of the project and its extras, one a line, from pyproject.toml."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
wanted = {*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)}
print("\n".join(sorted(wanted)))
