"""Loads a job or component file as azure-ai-ml does before it sends it, and says what AzureML's mpirun is to start.

usage: load_azureml.py FILE OUTPUTS, where OUTPUTS is the folder that stands for each output
"""

import json
import os
import re
import sys

# The first SDK's components are behind this switch.
os.environ["AZURE_ML_INTERNAL_COMPONENTS_ENABLED"] = "true"

import yaml
from azure.ai.ml import load_component, load_job


def replaced(command, inputs, outputs, reference):
    """The command with its inputs and outputs in it; `[...]` around an input that has no value is left out."""

    def optional(group):
        names = re.findall(reference.format("inputs"), group[1])
        return group[1] if all(inputs.get(name) is not None for name in names) else ""

    command = re.sub(r"\[(.*?)\]", optional, command)
    command = re.sub(reference.format("inputs"), lambda found: str(inputs[found[1]]), command)
    return re.sub(reference.format("outputs"), lambda found: f"{outputs}/{found[1]}", command)


def main(file, outputs):
    with open(file) as text:
        kind = yaml.safe_load(text)["type"]
    if kind == "command":
        job = load_job(file)
        problems = job._validate()
        command = replaced(job.command, job._to_dict().get("inputs", {}), outputs, r"\$\{{\{{{}\.(\w+)\}}\}}")
        build = job.environment.build
        root = os.path.normpath(os.path.join(os.path.dirname(file), build.path))
        dockerfile = os.path.join(root, build.dockerfile_path)
        shape = {"nodes": job.resources.instance_count, "processes": job.distribution.process_count_per_instance}
        # AzureML starts the command in a copy of this folder.
        code = os.path.normpath(os.path.join(os.path.dirname(file), job.code or "."))
        found = {"launcher": job.distribution.type, "code": code, "dockerfile": dockerfile, **shape}
    else:
        component = load_component(file)
        problems = component._validate()
        inputs = {name: value.get("default") for name, value in component.inputs.items()}
        launcher = component.launcher
        command = replaced(launcher["additional_arguments"], inputs, outputs, r"\{{{}\.(\w+)\}}")
        found = {"launcher": launcher["type"]}
    if not problems.passed:
        sys.exit(f"{file}: {problems!r}")
    print(json.dumps({"command": command, **found}))


main(*sys.argv[1:])
