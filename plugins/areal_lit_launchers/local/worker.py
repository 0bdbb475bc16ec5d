"""The first lines every child of the launcher ``local`` runs; started by path, with any interpreter.

Only the standard library is imported here, and the rest when the target needs it: another virtualenv may have
nothing of areal-lit, and start-up time is time to the first step.

    worker.py exec PARENT COMMAND...         become the command
    worker.py serve PARENT DESCRIPTOR NAME   read what to do from the socket and do it; the name is for `ps`
    worker.py fork PARENT DESCRIPTOR NAME    be a fork server (``fork_server.py``), whose processes go on as if served
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from pkgutil import resolve_name
from queue import SimpleQueue
from typing import Any

HEARTBEAT_S = 1.0
HEADER = struct.Struct("<QQI")
MESSAGE_BYTES = 1 << 17
"""The longest message to a fork server."""


def main() -> None:
    mode, parent = sys.argv[1], int(sys.argv[2])
    die_with(parent)
    if mode == "exec":
        command = sys.argv[3:]
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.exit(f"cannot run {command[0]!r}: {error}")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a hung process is asked for its stacks before it is killed
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    connection = socket.socket(fileno=int(sys.argv[3]))
    if mode == "fork":
        connection = forked(connection)
    orders = pickle.loads(read(connection, struct.unpack("<Q", read(connection, 8))[0]))
    settle(orders)
    if orders["path"]:
        sys.path[:] = orders["path"]
    if orders["kind"] == "rank":
        serve_rank(connection, orders)
    else:
        serve_process(connection, orders)


def forked(control: socket.socket) -> socket.socket:
    """Serve as a fork server; in a process that it forks, the socket on which that is told what to do."""
    sys.path[:] = pickle.loads(control.recv(MESSAGE_BYTES))
    from areal_lit_launchers.local.fork_server import serve

    server = os.getpid()
    child = serve(control, message_bytes=MESSAGE_BYTES)
    die_with(server)
    rename(child.name)
    if child.unfit:
        print(f"{child.name} is a fresh interpreter: {child.unfit}", flush=True)
        os.set_inheritable(child.connection.fileno(), True)
        arguments = ["serve", str(server), str(child.connection.fileno()), child.name]
        os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), *arguments])
    return child.connection


def settle(orders: dict[str, Any]) -> None:
    """Give a process that was forked what another has from its start."""
    os.environ.clear()
    os.environ.update(orders["env"])
    if "torch" in sys.modules and orders["num_threads"]:
        sys.modules["torch"].set_num_threads(orders["num_threads"])
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all would draw the same; the module `random` sees to it by itself


def rename(name: str) -> None:
    """Show the process to ``ps`` as what it is: write over the arguments of its fork server, which are longer."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
        start, end = map(int, stat.read().rpartition(")")[2].split()[45:47])
    head = f"{sys.executable}\0{os.path.abspath(__file__)}\0serve\0{os.getppid()}\0forked".encode()
    tail = f"\0{name}\0".encode()
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write((head.ljust(end - start - len(tail)) + tail)[-(end - start) :])


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit if it already has.

    As ``areal_lit.parent_death``, which a command's or another virtualenv's interpreter may not have.
    """
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def read(connection: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; exits when the parent is gone."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data


def beat_for_ever(beat: Any) -> None:
    """Show the parent that this process runs and its interpreter answers; exit when nobody listens."""
    while True:
        try:
            beat()
        except OSError:
            os._exit(1)
        time.sleep(HEARTBEAT_S)


def exit_at_eof(connection: socket.socket) -> None:
    read(connection, 1)


def serve_process(connection: socket.socket, orders: dict[str, Any]) -> None:
    """Run ``target(address, **kwargs)`` to its end; say so when it returns, for that is no death."""
    beat = HEADER.pack(0, 0, 0)
    threading.Thread(target=beat_for_ever, args=(lambda: connection.sendall(beat),), daemon=True).start()
    threading.Thread(target=exit_at_eof, args=(connection,), daemon=True).start()
    resolve_name(orders["target"])(orders["address"], **pickle.loads(orders["kwargs"]))
    connection.sendall(HEADER.pack(0, 1, 0) + b".")


def serve_rank(connection: socket.socket, orders: dict[str, Any]) -> None:
    """Construct ``target(Rank)`` and answer calls, in order, in this thread."""
    from areal_lit_launchers.local.channel import Channel

    channel = Channel(connection)
    frames: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    threading.Thread(target=beat_for_ever, args=(channel.beat,), daemon=True).start()
    threading.Thread(target=queue_frames, args=(channel, frames), daemon=True).start()

    from areal_lit.contracts.strategy import Rank

    rank = Rank(rank=orders["rank"], num_ranks=orders["num_ranks"], local_rank=orders["local_rank"])
    subject = resolve_name(orders["target"])(rank)
    while answer(channel, subject, *frames.get()):
        pass
    if hasattr(subject, "close"):
        subject.close()


def queue_frames(channel: Any, frames: SimpleQueue[tuple[int, Any]]) -> None:
    while True:
        try:
            frames.put(channel.receive())
        except (EOFError, OSError):
            os._exit(1)


def answer(channel: Any, subject: Any, call_id: int, parts: Any) -> bool:
    """Run one call and send its reply, that of a future once it is done; False after the last call."""
    from areal_lit_launchers.local.channel import loads

    try:
        call = loads(parts)
        if call.is_last:
            return False
        value = getattr(subject, call.method)(*call.args)
    except Exception as error:  # noqa: BLE001 - whatever the method raised belongs to the caller, who counts it
        channel.send(call_id, reply(error=error))
    else:
        if isinstance(value, Future):
            value.add_done_callback(lambda done: channel.send(call_id, reply_of(done)))
        else:
            channel.send(call_id, reply(value))
    return True


def reply_of(done: Future[Any]) -> Any:
    error = done.exception()
    return reply(error=error) if error else reply(done.result())


def reply(value: Any = None, error: BaseException | None = None) -> Any:
    """A reply's frame; an error's says where it was raised, and so does that of a value that does not pickle."""
    from areal_lit_launchers.local.channel import Reply, dumps

    if error is None:
        try:
            return dumps(Reply(value=value))
        except Exception as unfit:  # noqa: BLE001 - pickling runs any class's code; the caller gets what it raised
            error = unfit
    trace = "".join(traceback.format_exception(error))
    return dumps(Reply(error=portable(error), origin=f"{socket.gethostname()}, process {os.getpid()}\n{trace}"))


def portable(error: BaseException) -> BaseException:
    """The exception, or a RuntimeError with its text where it does not survive pickling."""
    from areal_lit_launchers.local.channel import dumps, loads

    try:
        loads(dumps(error))
    except Exception:  # noqa: BLE001 - exceptions with constructors of their own fail to unpickle in any way they like
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    main()
