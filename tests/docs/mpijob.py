#!/usr/bin/env python3
"""Checks examples/kubernetes/mpijob.yaml: it fits the schema of MPIJob, and its numbers belong together.

    mpijob.py <repository>              against the part of the schema below, which allows no other members
    mpijob.py <repository> --crd FILE   against kubeflow.org_mpijobs.yaml of the MPI operator, too

Needs PyYAML and jsonschema; status 77 where they are missing.
"""
import sys
from pathlib import Path


def members(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, COUNT, TEXTS = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "string"}}
AMOUNT = {"anyOf": [{"type": "integer"}, TEXT]}
AMOUNTS = members(cpu=AMOUNT, memory=AMOUNT, **{"nvidia.com/gpu": AMOUNT})
CONTAINER = members(("name", "image"), name=TEXT, image=TEXT, command=TEXTS, args=TEXTS, resources=members(limits=AMOUNTS, requests=AMOUNTS),
                    securityContext=members(runAsUser=COUNT))
REPLICAS = members(("template",), replicas=COUNT, restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                   template=members(("spec",), spec=members(("containers",), containers={"type": "array", "minItems": 1, "items": CONTAINER})))
MPIJOB = members(
    ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": "kubeflow.org/v2beta1"}, kind={"const": "MPIJob"}, metadata=members(("name",), name=TEXT),
    spec=members(("mpiReplicaSpecs",), slotsPerWorker={"type": "integer", "minimum": 1}, mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]}, sshAuthMountPath=TEXT,
                 runPolicy=members(cleanPodPolicy={"enum": ["None", "Running", "All"]}, backoffLimit=COUNT, ttlSecondsAfterFinished=COUNT),
                 mpiReplicaSpecs=members(("Launcher", "Worker"), Launcher=REPLICAS, Worker=REPLICAS)))


def mistakes(job, schemas, validator):
    for schema in schemas:
        yield from (f"{'/'.join(map(str, e.absolute_path)) or 'the file'}: {e.message}" for e in validator(schema).iter_errors(job))
    if isinstance(job, dict) and not list(validator(MPIJOB).iter_errors(job)):
        spec = job["spec"]
        command = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
        ranks, workers = int(command[command.index("-n") + 1]), spec["mpiReplicaSpecs"]["Worker"]["replicas"]
        if ranks != workers * spec["slotsPerWorker"]:
            yield f"mpirun starts {ranks} ranks, but {workers} workers have {spec['slotsPerWorker']} slots each"


def main(arguments):
    if len(arguments) not in (1, 3):
        print(__doc__)
        return 2
    try:
        import jsonschema
        import yaml
    except ImportError as error:
        print(f"mpijob.py: needs PyYAML and jsonschema: {error}")
        return 77
    file = Path(arguments[0]) / "examples/kubernetes/mpijob.yaml"
    text, schemas = file.read_text(encoding="utf-8"), [MPIJOB]
    if len(arguments) == 3:
        versions = yaml.safe_load(Path(arguments[2]).read_text(encoding="utf-8"))["spec"]["versions"]
        schemas.append(next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == "v2beta1"))
    found = list(mistakes(yaml.safe_load(text), schemas, jsonschema.Draft7Validator))
    for old, new in [("slotsPerWorker: 8", "slotsPerWorker: 4"), ("  Worker:", "  Workers:"), ("v2beta1", "v1"), ("replicas: 2", 'replicas: "two"')]:
        if not list(mistakes(yaml.safe_load(text.replace(old, new)), schemas, jsonschema.Draft7Validator)):
            found.append(f"the check does not notice {new}")
    print("\n".join(f"{file.name}: {line}" for line in found) if found else "mpijob.py: no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
