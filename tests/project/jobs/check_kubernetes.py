"""Checks a file of Kubernetes objects as strictly as their own schemas allow, and prints each container's command.

Kubernetes's own objects and the templates of pods: kubernetes-validate, which has the schemas of each version.
PyTorchJob: the models of Kubeflow's own Python package, where what is not in them gets lost on the way back.
MPIJob: mpijob.schema.json next to this file.

usage: check_kubernetes.py FILE
"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml
from kubeflow.training.api_client import ApiClient

VERSION = "1.29"


class Answer:
    """What ApiClient takes for the server's answer."""

    def __init__(self, value):
        self.data = json.dumps(value)


def check_pod(template):
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
    kubernetes_validate.validate(pod, VERSION, strict=True)


def check(value):
    """The pod templates of an object that is as it should be."""
    kind = (value["apiVersion"], value["kind"])
    if kind == ("kubeflow.org/v1", "PyTorchJob"):
        client = ApiClient()
        read = client.deserialize(Answer(value), "KubeflowOrgV1PyTorchJob")
        again = client.sanitize_for_serialization(read)
        assert again == value, f"PyTorchJob knows only {json.dumps(again)} of it"
        replicas = value["spec"]["pytorchReplicaSpecs"]
    elif kind == ("kubeflow.org/v2beta1", "MPIJob"):
        schema = json.loads(pathlib.Path(__file__).with_name("mpijob.schema.json").read_text())
        jsonschema.validate(value, schema)
        replicas = value["spec"]["mpiReplicaSpecs"]
    else:
        kubernetes_validate.validate(value, VERSION, strict=True)
        replicas = {"Job": value["spec"]} if value["kind"] == "Job" else {}
    for replica in replicas.values():
        check_pod(replica["template"])
    return replicas


def main(file):
    found = []
    for value in yaml.safe_load_all(pathlib.Path(file).read_text()):
        for role, replica in check(value).items():
            (container,) = replica["template"]["spec"]["containers"]
            variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
            found.append({"role": role, "command": container["command"], "env": variables})
    print(json.dumps(found))


main(*sys.argv[1:])
