"""`trimtab crds`: the custom resource definitions, as the chart installs them."""

import sys

from trimtab_operator.resources import custom_resource_definitions, to_yaml

from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output


def crds(form: OutputOption = Format.TEXT) -> None:
    """Print the custom resource definitions as YAML, or as a JSON list."""
    definitions = custom_resource_definitions()
    text = "---\n".join(to_yaml(definition) for definition in definitions)
    Output(form).result(definitions, lambda: print(text, end="", file=sys.stdout))
