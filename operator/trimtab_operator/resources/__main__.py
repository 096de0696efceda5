"""`python -m trimtab_operator.resources [DIRECTORY]`: print the CRDs, or write one file each into a directory."""

import sys
from pathlib import Path

from trimtab_operator.resources.definitions import custom_resource_definitions, to_yaml


def main(arguments: list[str]) -> int:
    """Print or write every CustomResourceDefinition."""
    definitions = custom_resource_definitions()
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    if not arguments:
        sys.stdout.write("---\n".join(to_yaml(definition) for definition in definitions))
        return 0
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for definition in definitions:
        (directory / f"{definition['metadata']['name']}.yaml").write_text(to_yaml(definition))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
