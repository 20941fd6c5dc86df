"""`transformers serve` as a server role, and an evaluation that calls it by the OpenAI client and by streams.

transformers 5.23 has both routes, takes no ids as a prompt, and tells none: after a loss a request is sent again whole.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from scenes import SCRIPTS, Scene

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(900)]

JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {{name: evaluation}}
spec:
  roles:
    - name: serve
      replicas: 2
      driver: false
      entrypoint:
        command: [sh, -c, "exec {python} -m transformers.cli.transformers serve {model} --device cpu --host $DLJOB_HOST --port $DLJOB_PORT_HTTP"]
      ports: [{{name: http}}]
      startupProbe: {{tcpSocket: {{port: http}}, periodSeconds: 5, failureThreshold: 120}}
      readinessProbe: {{httpGet: {{path: /health, port: http}}, periodSeconds: 1}}
    - name: evaluation
      entrypoint: {{command: [{python}, ask_servers.py, {model}, {out}]}}
      dependsOn: [{{role: serve}}]
"""  # noqa: E501 - a command of one line


def test_a_stream_of_a_killed_server_is_sent_again_whole_and_says_so(scene: Scene) -> None:
    model, out, file = scene.folder / "model", scene.folder / "seen.json", scene.folder / "dljob.yaml"
    subprocess.run([scene.python, "save_model.py", model], cwd=SCRIPTS, env=scene.env, check=True, timeout=300)
    shutil.copy(SCRIPTS / "ask_servers.py", scene.folder)
    file.write_text(JOB.format(python=scene.python, model=model, out=out))
    scene.ends(scene.start("ours", "dljob.cli", ["run", str(file)]), "ours")
    seen = json.loads(out.read_text())
    assert seen["openai"] == seen["chat"]["text"] != ""
    for route in ("completion", "chat"):
        whole, broken = seen[route], seen[f"{route} of a killed server"]
        # A server that was just killed may refuse a request before clients hear of it: a loss without a word of text.
        assert (whole["restarted"], whole["ids"]) == (0, [])
        assert broken.pop("lost") > 0
        assert broken == {"text": whole["text"], "ids": [], "restarted": 1}
