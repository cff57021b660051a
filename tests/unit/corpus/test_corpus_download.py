"""`fetch`, the stage of a recipe's downloads, against a local HTTP server."""

import http.server
import threading
from functools import partial

import pytest

from latflow.corpus.download import fetch
from latflow.errors import UserError

LEXICON = b"ONE W AH N\nTWO T UW\n" * 1000


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; of `short.txt` less than it promises."""

    def do_GET(self) -> None:
        """Answer a request."""
        if not self.path.endswith("short.txt"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"too little")
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


@pytest.fixture
def address(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "lexicon.txt").write_bytes(LEXICON)
    handler = partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_fetched_files_have_the_bytes_of_the_server(address, tmp_path):
    path = tmp_path / "new" / "lexicon.txt"
    fetch(f"{address}/lexicon.txt", path)
    assert path.read_bytes() == LEXICON


@pytest.mark.parametrize(
    ("name", "message"), [("none.txt", "404"), ("short.txt", "10 of 100 bytes")]
)
def test_what_is_missing_or_cut_short_leaves_no_file(address, tmp_path, name, message):
    path = tmp_path / "lexicon.txt"
    with pytest.raises(UserError, match=message):
        fetch(f"{address}/{name}", path)
    assert not path.exists()


def test_a_server_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be fetched"):
        fetch("http://127.0.0.1:9/lexicon.txt", tmp_path / "lexicon.txt")
