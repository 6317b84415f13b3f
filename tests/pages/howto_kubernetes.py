"""What docs/howto/kubernetes.md says, beside docker/pod.yaml and what gpupipe asks of a machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
import yaml
from images import write_folder

from gpupipe.host import cache, system

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/kubernetes.md").read_text()


def setup(folder: Path, names: dict[str, Any]) -> None:
    write_folder(folder / "photos", 3, 12, ((40, 50),))


def check(folder: Path, names: dict[str, Any]) -> None:
    one, job = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
    assert _torchrun(one["args"]).standalone
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    _as_in_docker(pod)
    _enough_shared_memory(job, pod)
    launched = _torchrun(pod["containers"][0]["args"])
    assert pod["terminationGracePeriodSeconds"] > int(launched.shutdown_timeout)
    _every_number_of_pods(job, launched.training_script_args)
    assert "global_batch is 32, but this loader has 30" in names["printed"]
    assert names["three"].state_dict()["global_batch"] == 30
    _cache_in_a_volume(folder)


def _torchrun(words: list[str]) -> Any:
    assert words[0] == "torchrun"
    launched = torch.distributed.run.get_args_parser().parse_args(words[1:])
    assert launched.training_script == "train.py"
    return launched


def _as_in_docker(pod: dict[str, Any]) -> None:
    theirs = yaml.safe_load((ROOT / "docker/pod.yaml").read_text())["spec"]
    assert theirs["securityContext"].items() <= pod["securityContext"].items()
    (container,), (expected,) = pod["containers"], theirs["containers"]
    assert "command" not in container
    for key in ("image", "securityContext"):
        assert container[key] == expected[key]
    assert [one for one in expected["volumeMounts"] if one not in container["volumeMounts"]] == []
    named = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == named.keys()
    for volume in theirs["volumes"]:
        own = named[volume["name"]]
        own.get("emptyDir", {}).pop("sizeLimit", None)
        volume.get("emptyDir", {}).pop("sizeLimit", None)
        assert own == volume
    settings = [{one["name"] for one in each["env"]} for each in (container, expected)]
    assert settings[0] - {"GPUPIPE_CACHE"} == settings[1]


def _enough_shared_memory(job: dict[str, Any], pod: dict[str, Any]) -> None:
    pod = yaml.safe_load(re.findall(r"^```yaml\n(apiVersion.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0])["spec"][
        "pytorchReplicaSpecs"
    ]["Worker"]["template"]["spec"]
    (container,) = pod["containers"]
    values = {one["name"]: one["value"] for one in container["env"]}
    processes, size = int(values["GPUPIPE_PROCESSES"]), int(values["GPUPIPE_IMAGE_SIZE"])
    assert str(processes) == job["spec"]["nprocPerNode"]
    assert processes == container["resources"]["limits"]["nvidia.com/gpu"]
    workers = int(container["resources"]["limits"]["cpu"]) // processes
    assert f"for each of {processes} processes, {workers} workers each" in PAGE
    prefetch, batch = int(values["GPUPIPE_PREFETCH_FACTOR"]), int(values["GPUPIPE_BATCH_SIZE"])
    needed = processes * system.shm_bytes_needed(batch, size * size, workers, prefetch)
    (shared,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]
    assert needed < int(shared["sizeLimit"].removesuffix("Gi")) << 30


def _every_number_of_pods(job: dict[str, Any], words: list[str]) -> None:
    batch = int(words[words.index("--global-batch") + 1])
    policy = job["spec"]["elasticPolicy"]
    ranks = [8 * pods for pods in range(policy["minReplicas"], policy["maxReplicas"] + 1)]
    assert ranks == [16, 24, 32]
    assert {batch % number for number in ranks} == {0}
    assert f'value: "{batch // min(ranks)}"' in PAGE


def _cache_in_a_volume(folder: Path) -> None:
    volume = folder / "cache"
    volume.mkdir()
    volume.chmod(0o777)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUPIPE_CACHE", str(volume))
        assert cache.cache_folder() != volume
        patch.setenv("GPUPIPE_CACHE", str(volume / "gpupipe"))
        assert cache.cache_folder() == volume / "gpupipe"
