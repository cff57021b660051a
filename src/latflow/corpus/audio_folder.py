"""Audio files of a corpus folder: those that exist nowhere else.

Mixed cuts, and what commands print (Kaldi's pipes), are written once, when the corpus
is prepared.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from lhotse import AudioSource, Recording

from latflow.corpus.audio import (
    BadAudio,
    Found,
    agreeing,
    confirm,
    probe,
    refuse_effects,
    refuse_others,
)
from latflow.corpus.ids import file_name
from latflow.errors import UserError

# First bytes of a file, and the end of its name.
_SUFFIXES = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"NIST": ".sph"}


@dataclass(frozen=True)
class AudioFolder:
    """A folder for audio, which is made with the first file.

    Attributes:
        folder: where it is written.
        final: where it lies when the corpus is whole.
        allow_commands: whether commands are run, and what they print is written here.
    """

    folder: Path
    final: Path
    allow_commands: bool = False

    def place(self, name: str, suffix: str) -> Path:
        """Return the path that a file is written to.

        Args:
            name: of a cut or a recording, any characters.
            suffix: of the file's name.

        Raises:
            BadAudio: the name is too long.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return self.folder / file_name(name, suffix)
        except UserError as error:
            raise BadAudio(error.what, error.remedy or "") from None

    def final_path(self, path: Path) -> str:
        """Return where a file of the folder will lie."""
        return str(self.final / path.name)

    def probe(self, recording_id: str, source: AudioSource, *, verify: bool) -> Found:
        """Make a recording of a source; what a command prints is kept as a file.

        Raises:
            BadAudio: see `latflow.corpus.audio.probe`; or the command fails.
        """
        refuse_others(source.type, allow_commands=self.allow_commands)
        if source.type != "command":
            return probe(recording_id, source, verify=verify)
        command = str(source.source)
        path = self._run(recording_id, command)
        try:
            found = probe(
                recording_id, AudioSource("file", [0], str(path)), verify=True
            )
        except BadAudio as fault:
            path.unlink()
            reason = fault.reason.replace(f"audio file {path}", "it")
            raise BadAudio(
                f"command {command!r} printed no readable audio ({reason})",
                "let the command print WAV or FLAC",
            ) from fault
        one = replace(found.recording.sources[0], source=self.final_path(path))
        return Found(replace(found.recording, sources=[one]), found.facts)

    def confirm(self, recording: Recording, *, verify: bool) -> Found:
        """Check a recording of a manifest; what its commands print is kept as files.

        Raises:
            BadAudio: see `latflow.corpus.audio.confirm`; or a command fails.
        """
        if all(source.type != "command" for source in recording.sources):
            return confirm(recording, verify=verify)
        refuse_effects(recording)
        sources, facts = [], []
        for number, source in enumerate(recording.sources):
            name = f"{recording.id}.{number}" if number else recording.id
            found = self.probe(name, source, verify=verify)
            (one,) = found.recording.sources
            sources.append(replace(source, type="file", source=one.source))
            facts += found.facts
        return agreeing(replace(recording, sources=sources), facts)

    def _run(self, name: str, command: str) -> Path:
        """Run a command of the shell, and keep the audio file that it prints.

        Raises:
            BadAudio: it fails, or prints nothing.
        """
        raw = self.place(name, ".part")
        with raw.open("wb") as stream:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.PIPE,
                check=False,
            )
        if done.returncode != 0 or raw.stat().st_size == 0:
            raw.unlink()
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise BadAudio(
                f"command {command!r} gave no audio (exit status {done.returncode}"
                f"{last})",
                "run the command in a shell and fix it",
            )
        with raw.open("rb") as stream:
            suffix = _SUFFIXES.get(stream.read(4), ".audio")
        return raw.rename(raw.with_name(f"{raw.name.removesuffix('.part')}{suffix}"))
