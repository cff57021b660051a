"""A SLURM cluster of two virtual nodes on this machine's loopback, without accounting.

The daemons are Debian's. All they write is in a run directory, except for `slurm.conf`
and `gres.conf`: commands look for those in /etc/slurm, since the executor plug-in takes
the variable that would name another place from its jobs. What is started is stopped, by
its pid; files in /etc/slurm that are not ours are never touched.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ETC = Path("/etc/slurm")
MARK = "# of latflow's cluster tests: removed when they end\n"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NODES = ("n1", "n2")
KILL_WAIT = 20  # seconds from SIGTERM to SIGKILL; a checkpoint is written in between

CONFIGURATION = """\
ClusterName=latflow
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
# All daemons listen on 127.0.0.1 only.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
CryptoType=crypto/munge
# A requeued job may start after so many seconds (2 minutes by default): no earlier than
# the processes of the attempt before are killed at the latest.
AuthInfo=cred_expire={kill_wait}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd.%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd.%n.log
# The nodes claim more memory than the machine may have.
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# squeue tells of finished jobs for so long (s); tests look at all of theirs.
MinJobAge=3600
SlurmctldTimeout=30
SlurmdTimeout=60
KillWait={kill_wait}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "CPUs=16 Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 "
    "RealMemory=256000 Gres=gpu:1 State=UNKNOWN"
)
# Any device file will do: nothing opens it. A count without files is refused.
GPUS = """\
AutoDetect=off
NodeName=n1 Name=gpu File=/dev/zero
NodeName=n2 Name=gpu File=/dev/full
"""


def why_not() -> str | None:
    """Why no cluster can be started here; None where it can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (make cluster-packages)"
    ours = (ETC / "slurm.conf", ETC / "gres.conf")
    foreign = [path for path in ours if path.exists() and not _is_ours(path)]
    if foreign:
        return f"{foreign[0]} is there: this machine has a SLURM of its own"
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "no address"
    if not address.startswith("127."):
        return f"the host name stands for {address}, not for loopback"
    return None


def _is_ours(path: Path) -> bool:
    """Whether a file is one that these tests wrote (and were killed)."""
    return path.read_text(encoding="utf-8").startswith(MARK)


@dataclass
class Cluster:
    """The daemons; `start` and `stop`.

    Attributes:
        run: the run directory.
        started: processes that we started, in their order.
    """

    run: Path
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self):
        """Start what is needed, each when the one before answers."""
        self._configure()
        if _call("munge", "-n").returncode != 0:
            self._start_munge()
        self._start("slurmctld", "-D")
        wait_until(
            "slurmctld answers", lambda: _call("scontrol", "ping").returncode == 0
        )
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        wait_until("both nodes are idle", lambda: _states() == ["idle", "idle"])

    def stop(self):
        """Cancel all jobs, stop the daemons that we started, remove our files."""
        _call("scancel", "--user=root", "--full")
        until = time.monotonic() + KILL_WAIT + 10
        while _call("squeue", "-h", "-t", "R,CG").stdout and time.monotonic() < until:
            time.sleep(0.2)
        for process in reversed(self.started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink(missing_ok=True)

    def _configure(self):
        for folder in ("state", "spool"):
            (self.run / folder).mkdir(parents=True)
        text = CONFIGURATION.format(
            host=socket.gethostname(),
            ports=_free_ports(3),
            run=self.run,
            node=NODE,
            kill_wait=KILL_WAIT,
        )
        ETC.mkdir(exist_ok=True)
        (ETC / "slurm.conf").write_text(MARK + text, encoding="utf-8")
        (ETC / "gres.conf").write_text(MARK + GPUS, encoding="utf-8")

    def _start_munge(self):
        folder = Path("/run/munge")
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, "munge", "munge")
        folder.chmod(0o755)
        self._start("munged", "--foreground", user="munge")
        wait_until("munged answers", lambda: _call("munge", "-n").returncode == 0)

    def _start(self, *command: str, user: str | None = None):
        with (self.run / f"{command[0]}{len(self.started)}.out").open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                user=user,
                extra_groups=[] if user else None,
                start_new_session=True,
            )
        self.started.append(process)

    def told(self) -> str:
        """The ends of the daemons' logs."""
        logs = sorted(self.run.glob("*.log")) + sorted(self.run.glob("*.out"))
        ends = (f"== {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in logs)
        return "\n".join(ends)


@dataclass(frozen=True)
class Job:
    """What SLURM says of a job, by the names that `scontrol show job` has."""

    facts: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.facts[name]

    @property
    def id(self) -> str:
        return self.facts["JobId"]

    @property
    def is_running(self) -> bool:
        return self.facts["JobState"] == "RUNNING"

    @property
    def is_left(self) -> bool:
        """Whether it waits, runs, or has processes that are being ended."""
        return self.facts["JobState"] in {"PENDING", "RUNNING", "COMPLETING"}

    @property
    def minutes(self) -> int:
        """Its time limit."""
        days, _, clock = self.facts["TimeLimit"].rpartition("-")
        hours, minutes, _ = clock.split(":")
        return (24 * int(days or 0) + int(hours)) * 60 + int(minutes)


def jobs() -> list[Job]:
    """All jobs that SLURM knows, in the order of their submission."""
    text = _call("scontrol", "--oneliner", "show", "job").stdout
    found = [
        Job(dict(re.findall(r"(?:^|\s)([\w/:]+)=(\S*)", line)))
        for line in text.splitlines()
        if line.startswith("JobId=")
    ]
    return sorted(found, key=lambda job: int(job.id))


def pids_of(job: Job) -> list[int]:
    """Our processes of a job, not SLURM's: Pythons with its number as a variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_python = (path / "comm").read_text().startswith("python")
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_python and f"SLURM_JOB_ID={job.id}".encode() in variables:
            found.append(int(path.name))
    return sorted(found)


def _call(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _states() -> list[str]:
    return _call("sinfo", "-h", "-N", "-o", "%T").stdout.split()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def wait_until(what: str, is_true, seconds: float = 180.0):
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds} s: {what}")
        time.sleep(0.1)
