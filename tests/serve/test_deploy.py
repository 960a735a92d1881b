"""The files in deploy/ fit the server: its options, port, routes and extras, and nothing runs as root."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from adaptree.cli.app import app

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
yaml = pytest.importorskip("yaml")


def check_command(words: list[str], command: str = "serve") -> None:
    root: Any = get_command(app)
    assert words[:2] == ["adaptree", command]
    known = {option for param in root.commands[command].params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert command != "serve" or "--keys" in words


def test_the_image_installs_extras_that_there_are_and_runs_as_a_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = re.search(r'"\.\[(.+)\]"', text)
    assert found
    assert {"serve", *found[1].split(",")} <= set(extras)
    check_command(json.loads(re.findall(r"^CMD (.+)$", text, re.MULTILINE)[-1]))
    assert re.search(r"^USER [1-9]\d+$", text, re.MULTILINE)
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())


def test_compose_starts_the_server_after_its_database_and_its_bucket() -> None:
    said = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = said["services"]
    assert {"server", "postgres", "minio"} <= services.keys()
    check_command(services["server"]["command"])
    check_command(services["worker"]["command"], "worker")
    assert services["worker"]["environment"] == services["server"]["environment"]
    assert services["server"]["ports"] == ["127.0.0.1:8080:8080"]
    assert services["server"]["depends_on"].keys() <= services.keys()
    assert (DEPLOY / services["server"]["build"]["context"] / services["server"]["build"]["dockerfile"]).is_file()
    named = {volume.partition(":")[0] for each in services.values() for volume in each.get("volumes", ())}
    assert named == said["volumes"].keys()


def test_the_manifest_probes_routes_that_there_are_and_drops_rights() -> None:
    said = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    found = {each["kind"]: each for each in said if each["metadata"]["name"] == "adaptree"}
    (worker,) = (each["spec"] for each in said if each["metadata"]["name"] == "adaptree-worker")
    check_command(worker["template"]["spec"]["containers"][0]["args"], "worker")
    assert worker["selector"]["matchLabels"] == worker["template"]["metadata"]["labels"]
    assert worker["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    deployment, service = found["Deployment"]["spec"], found["Service"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    check_command(container["args"])
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"] == service["selector"]
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
    probes = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["/health", "/health", "/ready"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["terminationGracePeriodSeconds"] > 30


LINTERS = {
    "Dockerfile": ["hadolint"],
    "compose.yaml": ["check-jsonschema", "--builtin-schema", "vendor.compose-spec"],
    "kubernetes.yaml": ["kubernetes-validate", "--strict"],
}
FAULTS = {
    "Dockerfile": ("USER 10001", "RUN cd /tmp && sudo apt-get install curl"),
    "compose.yaml": ("command:", "comand:"),
    "kubernetes.yaml": ("replicas: 2", "replicas: two"),
}


def lint(file: Path) -> tuple[int, str]:
    """Run the linter of a kind of file; skip if it is not installed."""
    name, *options = LINTERS[file.name]
    program = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: pip install 'adaptree[dev]'")
    done = subprocess.run([program, *options, str(file)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", LINTERS)
def test_a_linter_finds_nothing_but_what_is_wrong(name: str, tmp_path: Path) -> None:
    code, said = lint(DEPLOY / name)
    assert code == 0, said
    text, (right, wrong) = (DEPLOY / name).read_text(), FAULTS[name]
    assert right in text
    (tmp_path / name).write_text(text.replace(right, wrong))
    assert lint(tmp_path / name)[0] != 0
