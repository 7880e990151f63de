"""The manifests for Kubernetes: valid by its schemas, and of one mind about pods, slots, times and overrides."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gbactl.launch.hydra_config import compose
from tests.support.pages import blocks

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "how-to" / "kubernetes"
SCHEMA = ROOT / "tests" / "support" / "jobset_schema.json"
VERSION = "1.33"
AFTER_SAVING = 15  # seconds in which processes, agents and the tracking store end


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a manifest by their kind, the jobs of a JobSet as Job/NAME."""
    found = {each["kind"]: each for each in yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text())}
    for job in found.get("JobSet", {}).get("spec", {}).get("replicatedJobs", []):
        found[f"Job/{job['name']}"] = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **job["template"]}
    return found


MANIFESTS = {path.stem: documents(path.stem) for path in sorted(FOLDER.glob("*.yaml"))}
PODS = {
    "statefulset": (MANIFESTS["statefulset"]["Job"], MANIFESTS["statefulset"]["StatefulSet"]),
    "jobset": (MANIFESTS["jobset"]["Job/launcher"], MANIFESTS["jobset"]["Job/worker"]),
}


def pod(owner: dict[str, Any]) -> dict[str, Any]:
    """The specification of an owner's pods."""
    found: dict[str, Any] = owner["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in MANIFESTS.items() for kind in kinds])
def test_every_document_is_valid_and_has_no_unknown_field(name: str, kind: str) -> None:
    document = MANIFESTS[name][kind]
    if kind == "JobSet":
        jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    else:
        kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_a_mistake_is_found(name: str) -> None:
    job = json.loads(json.dumps(PODS[name][0]))
    pod(job)["terminationGraceSeconds"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(job, VERSION, strict=True)


def test_a_misspelt_field_of_a_jobset_is_found() -> None:
    jobset = json.loads(json.dumps(MANIFESTS["jobset"]["JobSet"]))
    job = jobset["spec"]["replicatedJobs"][0]
    job["replica"] = job.pop("replicas")
    with pytest.raises(jsonschema.ValidationError, match="'replica' was unexpected"):
        jsonschema.validate(jobset, json.loads(SCHEMA.read_text()))


def commands(launcher: dict[str, Any]) -> list[list[str]]:
    """The overrides of each gbactl train in a launcher's script."""
    script = pod(launcher)["containers"][0]["args"][-1].replace("\\\n", " ")
    rest = [shlex.split(line)[2:] for line in script.splitlines() if line.startswith("set -- ")]
    typed = [shlex.split(line)[3:] for line in map(str.strip, script.splitlines()) if "exec gbactl train" in line]
    return [[word for each in words for word in (rest[0] if each == "$@" else [each])] for words in typed]


def inside(launcher: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables of a launcher's pod."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for each in pod(launcher)["containers"][0]["env"]:
        monkeypatch.setenv(each["name"], each["value"])


@pytest.mark.parametrize("name", PODS)
def test_the_launcher_trains_on_the_workers_and_saves_within_its_grace_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, worker = PODS[name]
    inside(launcher, monkeypatch)
    resumed, first = commands(launcher)
    assert resumed[0] == "resume=job" and first[0] == "run_dir=job"
    cfg = compose(first)
    jobs = MANIFESTS["jobset"]["JobSet"]["spec"]["replicatedJobs"]
    workers = worker["spec"].get("replicas") or jobs[0]["replicas"]
    assert cfg.cluster.name == "exec"
    assert [host.partition(":")[0] for host in cfg.cluster.hosts] == [f"gbactl-worker-{n}" for n in range(workers)]
    grace = min(pod(each)["terminationGracePeriodSeconds"] for each in (launcher, worker))
    assert grace >= cfg.cluster.stop_seconds + AFTER_SAVING
    assert all(f"cluster.stop_seconds={cfg.cluster.stop_seconds:g}" in typed for typed in (first, resumed))
    cores = int(pod(worker)["containers"][0]["resources"]["requests"]["cpu"])
    assert all(host.endswith(f":{cores}") for host in cfg.cluster.hosts)
    assert all({"name": "shm", "mountPath": "/dev/shm"} in each["volumeMounts"] for each in pod(worker)["containers"])


def test_the_role_allows_what_the_launcher_types() -> None:
    role = MANIFESTS["common"]["Role"]
    allowed = {kind: set(rule["verbs"]) for rule in role["rules"] for kind in rule["resources"]}
    assert {"get", "list", "watch"} <= allowed["pods"] and {"get", "create"} <= allowed["pods/exec"]
    assert allowed["jobs"] == {"get"}  # kubectl exec job/NAME


@pytest.mark.parametrize("name", PODS)
def test_the_commands_of_the_page_name_what_the_manifests_make(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = PODS[name][0]
    (block,) = (each for each in blocks("docs/how-to/run-in-kubernetes.md") if f"{name}.yaml" in each.text)
    apply, wait, logs, doctor = map(shlex.split, block.text.splitlines())
    made = {kind for file in apply if file.endswith(".yaml") for kind in MANIFESTS[file.removesuffix(".yaml")]}
    assert {"ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim"} < made
    job = "gbactl" if name == "statefulset" else "gbactl-launcher-0"  # JOBSET-JOB-INDEX
    assert (wait[-1], logs[-1], doctor[2]) == (f"job-name={job}", f"job/{job}", f"job/{job}")
    inside(launcher, monkeypatch)
    typed, first = (compose(["mode=gba", *words]).cluster for words in (doctor[6:], commands(launcher)[1]))
    assert typed.hosts == first.hosts and ("job/{host}" in typed.options["exec"]) is (
        "job/{host}" in first.options["exec"]
    )


def test_the_containerfile_copies_from_its_own_stages() -> None:
    text = (ROOT / "Containerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert sorted(re.findall(r"^COPY --from=(\w+) ", text, re.MULTILINE)) == sorted(stages) != []
