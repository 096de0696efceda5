"""Print the project's third-party requirements, one a line, from pyproject.toml: with the named extras, or with all."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
chosen = sys.argv[1:] or extras
wanted = {*project["dependencies"], *(one for extra in chosen for one in extras[extra])}
print("\n".join(sorted(wanted)))
