import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download
from support import tiny

from ms_eagle.checkpoints import hub as hub_source
from ms_eagle.checkpoints import sources
from ms_eagle.checkpoints.directory import Checkpoint
from ms_eagle.errors import UserError
from ms_eagle.system.progress import Progress

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SILENT = Progress(quiet=True)


class Hub:
    """A Hub of one repository, ``org/tiny``, over HTTP; ``asked`` lists the files it served."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: set[str] = set()
        self.failure: tuple[int, str] | None = None
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                self.answer(with_body=True)

            def answer(self, with_body: bool) -> None:
                headers, body = {}, b""
                status = 200
                _, _, name = self.path.partition(f"/resolve/{COMMIT}/")
                if hub.failure is not None:
                    status, headers["X-Error-Code"] = hub.failure
                elif self.path.startswith("/api/models/org/tiny/revision/"):
                    siblings = [{"rfilename": name} for name in hub.files]
                    body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
                elif name in hub.files:
                    hub.asked.add(name)
                    body = hub.files[name]
                    headers |= {"ETag": f'"{abs(hash(body)):x}"', "X-Repo-Commit": COMMIT}
                else:
                    status = 404
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                """Tests read their own output."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def connect(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hub cache and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    connect(monkeypatch, "http://127.0.0.1:9")  # nothing listens there
    return tmp_path / "hub"


@pytest.fixture
def snapshot(cache: Path) -> Path:
    """A repository in the layout of the Hub cache, built by hand."""
    repository = cache / "models--org--tiny"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    tiny.save("llama", folder)
    return folder


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    tiny.save("llama", tmp_path / "original")
    files = {path.name: path.read_bytes() for path in (tmp_path / "original").iterdir()}
    files |= {
        "pytorch_model.bin": b"never",
        "consolidated.safetensors": b"never",
        "original/params.json": b"never",
        "onnx/model.safetensors": b"never",
        "README.md": b"never",
        "tokenizer.model": b"pieces",
        "chat_template.jinja": b"{{ messages }}",
    }
    hub = Hub(files)
    connect(monkeypatch, hub.url)
    yield hub
    hub.stop()


@pytest.mark.parametrize("reference", ["org/tiny", "org/tiny@main", f"org/tiny@{COMMIT}"])
def test_a_cached_snapshot_needs_no_network(snapshot: Path, reference: str) -> None:
    files = sources.resolve(f"hf:{reference}")
    assert files.directory == snapshot
    assert files.origin == f"hf:org/tiny@{COMMIT}"
    assert len(Checkpoint.open(files.directory).names) == 2 * 9 + 3


def test_offline_mode_is_respected(snapshot: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.utils.reset_sessions()
    try:
        assert hub_source.fetch("org/tiny", SILENT)[0] == snapshot
        with pytest.raises(UserError, match="not in the local Hugging Face cache"):
            hub_source.fetch("org/absent", SILENT)
    finally:
        monkeypatch.undo()
        huggingface_hub.utils.reset_sessions()
    assert hub.asked == set()


def test_neither_network_nor_cache(cache: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"hf:org/tiny@v1 is not in the local .* cannot be reached; .*a local copy: a directory",
    ):
        sources.resolve("hf:org/tiny@v1")


def test_only_safe_and_needed_files_are_downloaded(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    directory, commit = hub_source.fetch("org/tiny", SILENT)
    assert commit == f"org/tiny@{COMMIT}"
    wanted = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.model",
        "chat_template.jinja",
    }
    assert hub.asked == wanted
    assert {path.name for path in directory.iterdir()} == wanted
    assert len(Checkpoint.open(directory).names) == 2 * 9 + 3
    assert capsys.readouterr() == ("", "")
    hub.stop()
    assert hub_source.fetch("org/tiny", SILENT)[0] == directory


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((404, "RepoNotFound"), "hf:org/tiny: no such repository, or a private one"),
        ((404, "RevisionNotFound"), "no such revision"),
        ((403, "GatedRepo"), "needs its licence accepted and a login"),
        ((500, ""), "is not in the local Hugging Face cache and the Hub cannot be reached"),
    ],
)
def test_refusals_of_the_hub_are_told_apart(hub: Hub, failure: tuple[int, str], message: str) -> None:
    hub.failure = failure
    with pytest.raises(UserError, match=message):
        hub_source.fetch("org/tiny", SILENT)


def test_a_repository_of_pickles_is_refused(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(UserError, match=r"has no \.safetensors files"):
        hub_source.fetch("org/tiny", SILENT)
    assert "pytorch_model.bin" not in hub.asked


@pytest.mark.parametrize("reference", ["tiny", "org/tiny/more", "org/tiny@", "", "../x@y z", "org/ti ny"])
def test_malformed_references(reference: str) -> None:
    with pytest.raises(UserError, match=r"not of the form hf:org/name\[@revision\]"):
        hub_source.fetch(reference, SILENT)


def test_a_name_the_hub_forbids(cache: Path) -> None:
    with pytest.raises(UserError, match="not a repository name of the Hub"):
        hub_source.fetch("org/a--b", SILENT)
