"""The page's requests, shown as curl, Python and gRPC programs."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from attendant_client.pb import encoder_pb2 as pb
from google.protobuf import json_format

from tests.browser.conftest import TWO_SENTENCES, NewDriver
from tests.browser.page_driver import PageDriver
from tests.certificates import Identity
from tests.conftest import ROOT, RunningServer, serving
from tests.stubs import EncoderServiceStub

pytestmark = pytest.mark.slow

SHELL_CHARACTERS = """It's "the bank" of $HOME, `pwd` \\ and 銀行 — isn't it?"""
VIEWS = [("#map", "/v1/attend"), ("#comparison", "/v1/compare")]


def stub(channel: grpc.Channel) -> Any:
    return EncoderServiceStub(channel)


def run(command: list[str], **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "client"), "no_proxy": "*"} | variables
    return subprocess.run(
        command, capture_output=True, check=True, timeout=60, env=environment, encoding="utf-8"
    ).stdout


def program(driver: PageDriver, section: str, form: str) -> str:
    """Return a section's request in one of its forms."""
    panel = driver.page.locator(f"{section} .request")
    if panel.get_attribute("open") is None:
        panel.locator("summary").click()
        panel.locator("pre").filter(has_text=re.compile(".")).wait_for()  # it is drawn after the event of the click
    panel.get_by_label(form, exact=True).check()
    return panel.locator("pre").inner_text()


@pytest.fixture
def special(driver: PageDriver) -> PageDriver:
    """The page with a sentence full of shell metacharacters."""
    return driver.type(1, SHELL_CHARACTERS).choose(kind="probs", combine="none", head="5").slide(3)


@pytest.mark.parametrize(("section", "route"), VIEWS)
def test_curl_command_returns_the_response_behind_the_view(
    special: PageDriver, rest: httpx.Client, section: str, route: str
) -> None:
    command = program(special, section, "curl")
    assert special.base + route in command
    body = special.sent_bodies(route)[-1]
    assert SHELL_CHARACTERS in json.dumps(body, ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")
    assert json.loads(run(["bash", "-c", command])) == rest.post(route, json=body).raise_for_status().json()


def numbers(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", text)]


@pytest.mark.parametrize("text", [SHELL_CHARACTERS, "A bank\u2028of \u0627\u0644\u0646\u0647\u0631 🏦."])
def test_python_programs_print_the_values_of_the_view(driver: PageDriver, rest: httpx.Client, text: str) -> None:
    driver.type(1, text)
    maps = rest.post("/v1/attend", json=driver.sent_bodies()[-1]).json()["results"][0]["maps"]
    printed = numbers(run([sys.executable, "-c", program(driver, "#map", "Python")]))
    assert printed == pytest.approx(np.ravel(maps[0]["matrix"]).tolist(), abs=6e-4)
    layers = rest.post("/v1/compare", json=driver.sent_bodies("/v1/compare")[-1]).json()["layers"]
    printed = numbers(run([sys.executable, "-c", program(driver, "#comparison", "Python")]))
    assert printed == pytest.approx(np.ravel(layers[-1]["cosine"]).tolist(), abs=6e-4)


def test_python_program_sends_a_pair(driver: PageDriver) -> None:
    driver.open("v=1&t0=The+bank+is+closed.&p0=He+left.&explore=1&segments=a_to_b")
    source = program(driver, "#map", "Python")
    assert 'Input("The bank is closed.", pair="He left.")' in source
    assert len(numbers(run([sys.executable, "-c", source]))) == 5 * 3


def parse_command(command: str) -> tuple[dict[str, Any], str]:
    """Return the message and method of a grpcurl command."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "grpcurl"
    return json.loads(words[words.index("-d") + 1]), words[-1]


@pytest.mark.parametrize(
    "view", [{"kind": "probs", "combine": "none", "head": "5"}, {"kind": "norm"}, {"special": "keep"}]
)
def test_grpc_message_returns_the_values_of_the_view(
    driver: PageDriver, server: RunningServer, rest: httpx.Client, view: dict[str, str]
) -> None:
    """grpcurl parses the same JSON, but is not a test dependency."""
    driver.choose(**view)
    body, method = parse_command(program(driver, "#map", "gRPC"))
    assert method == "attendant.v1.EncoderService/Attend"
    with grpc.insecure_channel(server.grpc) as channel:
        _, first, *_ = stub(channel).Attend(json_format.ParseDict(body, pb.AttendRequest()))
    maps = rest.post("/v1/attend", json=driver.sent_bodies()[-1]).json()["results"][0]["maps"]
    assert np.frombuffer(first.map.matrix.data, np.float32) == pytest.approx(np.ravel(maps[0]["matrix"]), abs=1e-5)


def test_grpc_message_of_the_comparison(driver: PageDriver, server: RunningServer, rest: httpx.Client) -> None:
    body, method = parse_command(program(driver, "#comparison", "gRPC"))
    assert method == "attendant.v1.EncoderService/Compare"
    with grpc.insecure_channel(server.grpc) as channel:
        response = stub(channel).Compare(json_format.ParseDict(body, pb.CompareRequest()))
    layers = rest.post("/v1/compare", json=driver.sent_bodies("/v1/compare")[-1]).json()["layers"]
    assert np.frombuffer(response.layers[-1].cosine.data, np.float32) == pytest.approx(
        np.ravel(layers[-1]["cosine"]), abs=1e-5
    )


def test_request_can_be_copied_and_has_a_reference(new_driver: NewDriver) -> None:
    driver = new_driver(permissions=["clipboard-read", "clipboard-write"]).open()
    text = program(driver, "#comparison", "Python")
    driver.page.locator("#comparison .request").get_by_role("button", name="Copy").click()
    driver.page.get_by_text("Copied.").wait_for()
    assert driver.page.evaluate("navigator.clipboard.readText()") == text
    link = driver.page.locator("#comparison .request a")
    assert link.get_attribute("href") == "docs#/native/compare"
    driver.page.goto(f"{driver.base}/docs#/native/compare")
    driver.page.locator("#operations-native-compare").wait_for()


def test_programs_of_the_similarity_tab(opened: PageDriver, server: RunningServer, rest: httpx.Client) -> None:
    """All three forms return the displayed scores. The query contains shell metacharacters."""
    opened.page.get_by_role("tab", name="Similarity").click()
    opened.page.get_by_label("Query", exact=True).fill(SHELL_CHARACTERS)
    opened.page.wait_for_function("() => document.querySelector('#word-pairs tbody th')?.textContent === \"It's\"")
    response = rest.post("/v1/similarity", json=opened.sent_bodies("/v1/similarity")[-1]).json()
    (scores,) = response["scores"]
    shown = opened.page.locator("#similarity .score").all_inner_texts()
    assert [float(text.split()[-1].replace("\u2212", "-")) for text in shown] == pytest.approx(scores, abs=6e-4)
    assert json.loads(run(["bash", "-c", program(opened, "#similarity", "curl")]))["scores"] == [scores]
    printed = numbers(run([sys.executable, "-c", program(opened, "#similarity", "Python")]))
    assert printed == pytest.approx(scores, abs=6e-4)
    body, method = parse_command(program(opened, "#similarity", "gRPC"))
    assert method == "attendant.v1.EncoderService/Similarity"
    with grpc.insecure_channel(server.grpc) as channel:
        message = stub(channel).Similarity(json_format.ParseDict(body, pb.SimilarityRequest()))
    assert np.frombuffer(message.scores.data, np.float32) == pytest.approx(scores, abs=1e-5)


def test_programs_of_a_step_return_its_weights(opened: PageDriver, server: RunningServer) -> None:
    """All three forms return the weights of all heads for the followed token."""
    opened.page.get_by_role("tab", name="How attention works").click()
    opened.page.locator("#attention .formulas math").first.wait_for()
    response = json.loads(run(["bash", "-c", program(opened, "#attention", "curl")]))
    weights = response["results"][0]["layer_outputs"][0]["weights"]
    expected = np.frombuffer(base64.b64decode(weights["data"]), np.float32)
    assert weights["shape"] == [12, 1, 5]
    printed = numbers(run([sys.executable, "-c", program(opened, "#attention", "Python")]))
    assert printed == pytest.approx(expected.tolist(), abs=6e-4)
    body, method = parse_command(program(opened, "#attention", "gRPC"))
    assert method == "attendant.v1.EncoderService/Attend"
    with grpc.insecure_channel(server.grpc) as channel:
        _, message, *_ = stub(channel).Attend(json_format.ParseDict(body, pb.AttendRequest()))
    assert np.frombuffer(message.layer_outputs.weights.data, np.float32) == pytest.approx(expected, abs=1e-5)


def test_programs_verify_a_private_ca(new_driver: NewDriver, default_artifact: Path, tmp_path: Path) -> None:
    ca = Identity.make_ca("server CA")
    identity = ca.issue("server")
    for name, content in (("ca", ca.pem), ("cert", identity.pem), ("key", identity.key_pem)):
        (tmp_path / name).write_bytes(content)
    files = {"tls_cert_file": tmp_path / "cert", "tls_key_file": tmp_path / "key"}
    with serving(model_dir=default_artifact, **files) as running:
        driver = new_driver(running.rest, ignore_https_errors=True).open_texts(*TWO_SENTENCES, explore=True)
        curl, python, grpcurl = (program(driver, "#map", form) for form in ("curl", "Python", "gRPC"))
        response = run(["bash", "-c", curl], ATTENDANT_CA=str(tmp_path / "ca"))
        printed = run([sys.executable, "-c", python], ATTENDANT_CA=str(tmp_path / "ca"))
        with pytest.raises(subprocess.CalledProcessError):
            run(["bash", "-c", curl])  # with public CAs only
    (first, *_) = json.loads(response)["results"][0]["maps"]
    assert numbers(printed) == pytest.approx(np.ravel(first["matrix"]), abs=2e-3)
    assert '-cacert "$ATTENDANT_CA"' in grpcurl
    assert "-plaintext" not in grpcurl
