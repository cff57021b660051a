"""Take away what Linux has and macOS lacks, at the start of a process of Python.

A folder on `PYTHONPATH` that holds this file makes every process below see a system
without calls of Linux alone, and our modules one without `/proc`. What other packages
read there is left to them: on macOS they have ways of their own.
"""

import ctypes
import errno
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
from pathlib import Path

PREFIXES = {
    os: (
        "posix_fadvise", "posix_fallocate", "POSIX_FADV_", "memfd_create", "MFD_",
        "sched_getaffinity", "sched_setaffinity", "pidfd_open", "eventfd", "EFD_",
        "copy_file_range", "splice", "getrandom", "GRND_", "setns", "unshare",
        "getxattr", "setxattr", "listxattr", "removexattr", "O_DIRECT", "O_TMPFILE",
        "O_PATH", "O_NOATIME", "getresuid", "setresuid", "sync_file_range",
    ),
    select: ("epoll", "EPOLL"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRT", "SIGPWR"),
    resource: ("prlimit",),
    socket: ("AF_NETLINK", "AF_VSOCK", "SO_PEERCRED", "SO_PASSCRED"),
}  # fmt: skip
OF_GLIBC = {"prctl", "malloc_trim", "mallopt", "gnu_get_libc_version"}
STANDARD = (sysconfig.get_path("stdlib"), "<frozen")
PROC = ("/proc/", "/sys/")


def take_names() -> None:
    """Remove functions and constants of modules."""
    for module, prefixes in PREFIXES.items():
        for name in [name for name in dir(module) if name.startswith(prefixes)]:
            delattr(module, name)
    if hasattr(os, "process_cpu_count"):  # its definition calls what has gone
        os.process_cpu_count = os.cpu_count


def take_library() -> None:
    """Have the C library lack what only glibc has."""
    find = ctypes.CDLL.__getattr__

    def without(library: ctypes.CDLL, name: str) -> object:
        if name in OF_GLIBC and library._name is None:
            raise AttributeError(name)
        return find(library, name)

    ctypes.CDLL.__getattr__ = without


def take_kinds() -> None:
    """Refuse arguments that macOS knows not."""
    limit, pair = resource.setrlimit, socket.socketpair

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        limit(kind, limits)

    def socketpair(family=None, type=socket.SOCK_STREAM, proto=0):
        if type == socket.SOCK_SEQPACKET:
            raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")
        return pair(family, type, proto)

    resource.setrlimit, socket.socketpair = setrlimit, socketpair


def hide_proc(event: str, arguments: tuple) -> None:
    """Refuse files of `/proc` to our modules."""
    if event not in {"open", "os.listdir", "os.scandir"} or not arguments:
        return
    path = arguments[0]
    if not isinstance(path, str | os.PathLike) or not str(path).startswith(PROC):
        return
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(STANDARD):
        if "site-packages" in frame.f_code.co_filename:
            break
        frame = frame.f_back
    if frame is not None and "latflow" in Path(frame.f_code.co_filename).parts:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))


take_names()
take_library()
take_kinds()
sys.addaudithook(hide_proc)
