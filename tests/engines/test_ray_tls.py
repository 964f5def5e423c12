"""A fit on a Ray whose messages are encrypted, as docs/scale.md says how."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from userdp import Ball, UserData, minimize

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'userdp[ray]'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is missing"),
]

FIT = """
import json, os, socket, ssl
import numpy as np, ray
from userdp import UserData, Ball, Execution, minimize
from userdp.engines.ray import RayEngine

told = np.load("people.npz")
data = UserData.from_arrays(told["X"], told["y"], told["owners"])
run = {"insecure_seed": 1, "execution": Execution(engine=RayEngine())}
found = minimize("logistic", data, Ball(10.0), 8.0, 1e-4, rows_per_user=3, **run)
host, port = ray.get_runtime_context().gcs_address.split(":")
trust = ssl.create_default_context(cafile=os.environ["RAY_TLS_CA_CERT"])
trust.load_cert_chain(os.environ["RAY_TLS_SERVER_CERT"], os.environ["RAY_TLS_SERVER_KEY"])
trust.set_alpn_protocols(["h2"])
with socket.create_connection((host, int(port)), 10) as plain, trust.wrap_socket(plain, server_hostname=host) as safe:
    print(json.dumps({"weights": found.weights.tolist(), "who": dict(safe.getpeercert()["subject"][0])}))
"""


def test_what_travels_is_encrypted_and_a_fit_finds_the_same(tmp_path):
    certificate(tmp_path)
    rng = np.random.default_rng(0)
    X, owners = rng.normal(size=(1200, 3)), np.repeat(np.arange(400), 3)
    y = (X[:, 0] > rng.normal(size=1200)).astype(float)
    np.savez(tmp_path / "people.npz", X=X, y=y, owners=owners)
    files = {"SERVER_CERT": "tls.crt", "SERVER_KEY": "tls.key", "CA_CERT": "ca.crt"}
    told = {f"RAY_TLS_{name}": str(tmp_path / file) for name, file in files.items()} | {"RAY_USE_TLS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIT], cwd=tmp_path, env=os.environ | told, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout.splitlines()[-1])
    assert there["who"] == {"commonName": "ray"}, "the one to whom Ray's messages go has the certificate"
    data = UserData.from_arrays(X, y, owners)
    here = minimize("logistic", data, Ball(10.0), 8.0, 1e-4, rows_per_user=3, insecure_seed=1)
    np.testing.assert_allclose(there["weights"], here.weights, rtol=1e-9)


def certificate(folder):
    """One of this machine, by an authority of its own."""
    (folder / "names").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,IP:{ray.util.get_node_ip_address()}")
    new = "req -newkey rsa:2048 -nodes"
    for words in (
        f"{new} -x509 -days 2 -keyout ca.key -out ca.crt -subj /CN=userdp",
        f"{new} -keyout tls.key -out tls.csr -subj /CN=ray",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out tls.crt -extfile names",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
