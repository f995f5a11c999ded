"""What deploy/ and docs/cluster.md tell others to start, started here: their commands, with the variables that their
launchers set; and every line that the page says is printed stands in a test that saw it."""

import os
import re
import subprocess

import pytest
import yaml

from ark_server import BIN, BINARY, PATIENCE, ROOT, clean_environment, free_port
from test_cluster import write_key

PAGE = (ROOT / "docs" / "cluster.md").read_text()
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy" / "leaderworkerset.yaml").read_text()))
# Fields of the types that are used, as their definitions have them (LeaderWorkerSet v1, core v1).
FIELDS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"},
    "leaderWorkerTemplate": {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy"},
    "template": {"metadata", "spec"},
    "pod": {"terminationGracePeriodSeconds", "securityContext", "containers", "volumes"},
    "container": {"name", "image", "command", "args", "env", "ports", "startupProbe", "livenessProbe", "readinessProbe",
                  "resources", "volumeMounts"},
}


def templates():
    group = MANIFESTS[0]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def containers():
    return [template["spec"]["containers"][0] for template in templates()]


def test_the_manifest_has_the_fields_of_its_types():
    lws, service = MANIFESTS
    assert (lws["apiVersion"], lws["kind"]) == ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    group = lws["spec"]["leaderWorkerTemplate"]
    for of, name in [(lws, ""), (lws["spec"], "spec"), (group, "leaderWorkerTemplate"), *((t, "template") for t in templates()),
                     *((t["spec"], "pod") for t in templates()), *((c, "container") for c in containers())]:
        assert set(of) <= FIELDS[name], (name, set(of) - FIELDS[name])
    leader, worker = containers()
    # One pod alone may end and come again where the others wait for it.
    assert group["restartPolicy"] == "None" and "--supervise" in leader["args"]
    assert {key: value for key, value in leader.items() if key in worker} == worker, "the same command in every pod"
    for template in templates():
        mounted = {mount["name"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
        modes = [volume["secret"]["defaultMode"] for volume in template["spec"]["volumes"] if "secret" in volume]
        assert modes == [0o440] * 2, "what ark-serve takes for a key's file"
    assert service["spec"]["selector"].items() <= templates()[0]["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in leader["ports"]]
    environment = {entry["name"]: entry["value"] for entry in leader["env"]}
    assert int(environment["ARK_MASTER_PORT"]) in [port["containerPort"] for port in leader["ports"]]


def test_its_command_serves_as_two_pods(tiny_model, tmp_path):
    """With the variables that the controller sets; files in other places, and --check."""
    key = write_key(tmp_path / "cluster.key", "the key of a Secret, as a volume has it")
    key.chmod(0o440)
    api = tmp_path / "keys"
    api.write_text("sk-1\n")
    files = {"/models/model.onnx": tiny_model, "/etc/ark/cluster/key": key, "/etc/ark/api/keys": api}
    given = {"LWS_LEADER_ADDRESS": "127.0.0.1", "LWS_GROUP_SIZE": "2"}
    port, pods = str(free_port()), []
    for index, container in reversed(list(enumerate(containers()))):
        args = [arg for arg in container["args"]]
        for path, here in files.items():
            assert any(arg.endswith(f"={path}") for arg in args)
            args = [arg.replace(path, str(here)) for arg in args]
        variables = given | {"LWS_WORKER_INDEX": str(index)}
        environment = {entry["name"]: re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], entry["value"])
                       for entry in container["env"]} | {"ARK_MASTER_PORT": port}
        assert container["command"] == ["ark-serve"]
        pods.append(subprocess.Popen([BINARY, *args, "--port=0", "--check"], env=clean_environment() | environment,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [pod.communicate(timeout=2 * PATIENCE)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert "\nmeet " in outputs[1] and "checked " in outputs[1]


def test_the_pages_slurm_script_serves(tiny_model, tmp_path):
    """Under a srun and a scontrol that do what the real ones do to this script."""
    [script] = [block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) if "SLURM_PROCID" in block]
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf '127.0.0.1\\nnode-b\\n'\n")
    (tmp_path / "srun").write_text('#!/bin/sh\nfor i in 1 0; do SLURM_PROCID=$i SLURM_NTASKS=2 "$@" & done\nwait %1 && wait %2\n')
    for command in ("scontrol", "srun"):
        (tmp_path / command).chmod(0o755)
    write_key(tmp_path / "cluster.key", "a key in a home that machines share")
    script = script.replace("29500", str(free_port())).replace("gpt2.onnx", f"{tiny_model} --check --port 0")
    path = f"{tmp_path}:{BIN}:{os.environ['PATH']}"
    run = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, timeout=2 * PATIENCE,
                         env=clean_environment() | {"PATH": path, "HOME": str(tmp_path), "SLURM_JOB_NODELIST": "node-[a-b]"})
    assert run.returncode == 0 and "checked " in run.stdout, run.stderr


def printed_lines():
    table = PAGE.split("## What failures print")[1]
    return [text for row in table.splitlines() if row.startswith("| ") for text in re.findall(r"`([^`]+)`", row.split(" | ")[1])
            if text != "/health"]


@pytest.mark.parametrize("line", printed_lines())
def test_every_line_that_the_page_quotes_was_seen_by_a_test(line):
    assert any(line in (ROOT / "tests" / "end_to_end" / f"test_{name}.py").read_text() for name in ("cluster", "links", "neighbours"))


def test_every_option_and_variable_of_the_page_is_there():
    help_text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    for command in re.findall(r"ark-serve (--[^`\n#']*)", PAGE):
        for option in re.findall(r"--[a-z-]+", command):
            assert option in help_text, option
    known = (ROOT / "docs" / "debugging.md").read_text()
    for variable in set(re.findall(r"\bARK_[A-Z_]+", PAGE)):
        assert f"`{variable}`" in known, variable
